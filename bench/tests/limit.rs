//! A cell under a memory limit: where a cgroup can be made the limit holds and is reported, where
//! none can be made the command says so and fails.

use std::process::Command;

use serde_json::Value;

#[test]
fn a_cell_larger_than_memory_is_limited_or_refused() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    let limit: u64 = 256 << 20;
    let output = Command::new(env!("CARGO_BIN_EXE_vmemkv-bench"))
        .args("engine --scenario 1kb-ltm --workload get-hit-uniform --threads 2".split(' '))
        .args("--records 3000 --seconds 0.2 --swap-bytes 0 --json - --dir".split(' '))
        .arg(dir.path())
        .args(["--memory-limit", &limit.to_string()])
        .output()
        .expect("start vmemkv-bench");
    let complaint = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        assert!(complaint.contains("none can be made"), "{complaint}");
        assert!(output.stdout.is_empty());
        return;
    }
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(result["verified"], true, "{result}");
    assert_eq!(result["memory_limit_bytes"], limit);
    assert_eq!(result["swap_file_bytes"], 0);
    let peak = result["memory_peak_bytes"].as_u64();
    assert!(peak.is_none_or(|peak| (1 << 20..=limit).contains(&peak)), "{result}");
}

#[test]
fn too_little_memory_is_reported_as_a_kill_and_never_as_a_figure() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    let output = Command::new(env!("CARGO_BIN_EXE_vmemkv-bench"))
        .args("engine --scenario 1kb-ltm --workload insert --threads 2".split(' '))
        .args("--records 3000 --seconds 5 --swap-bytes 0 --json - --dir".split(' '))
        .arg(dir.path())
        .args(["--memory-limit", "16777216"])
        .output()
        .expect("start vmemkv-bench");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{complaint}");
    let is_named = complaint.contains("killed for memory") || complaint.contains("can be made");
    assert!(is_named, "{complaint}");
    assert!(output.stdout.is_empty());
}
