//! Small cells of every workload on the real engine: measured, verified, and reported.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const WORKLOADS: [&str; 9] = [
    "insert",
    "update-zipf",
    "delete",
    "get-miss",
    "get-hit-zipf",
    "get-hit-uniform",
    "scan-zipf",
    "scan-uniform",
    "ycsb-e",
];

fn cell(dir: &Path, arguments: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_vmemkv-bench"))
        .args(["engine", "--threads", "2", "--records", "3000", "--seconds", "0.2"])
        .args(arguments.split_whitespace())
        .args(["--json", "-", "--dir"])
        .arg(dir)
        .output()
        .expect("start vmemkv-bench");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {complaint}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().count(), 1, "{arguments}: {text}");
    serde_json::from_str(&text).expect("one JSON object")
}

fn run_all(flavour: &str) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    for workload in WORKLOADS {
        let arguments = format!("--scenario 1kb-mem --flavour {flavour} --workload {workload}");
        let result = cell(dir.path(), &arguments);
        assert_eq!(result["verified"], true, "{workload}: {result}");
        assert_eq!(result["workload"], workload);
        assert_eq!(result["flavour"], flavour);
        assert!(result["ops_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{result}");
        assert!(result["p999_us"].as_f64() >= result["p50_us"].as_f64(), "{result}");
    }
}

#[test]
fn every_workload_of_the_seeds() {
    run_all("seed");
}

#[test]
fn every_workload_of_the_field() {
    run_all("field");
}

#[test]
fn every_variant() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    for variant in ["baseline", "bf", "inline", "pinrandom", "pinseq"] {
        let arguments =
            format!("--scenario 8b-mem --workload get-hit-zipf --store vmemkv:{variant}");
        let result = cell(dir.path(), &arguments);
        assert_eq!(result["verified"], true, "{variant}: {result}");
    }
}
