//! Small runs of the subcommands beside the matrix on the real engine: they end well, and their
//! output has the fields that tools read.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn start(dir: &Path, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmemkv-bench"))
        .args(arguments.split_whitespace())
        .args(["--json", "-", "--dir"])
        .arg(dir)
        .output()
        .expect("start vmemkv-bench")
}

/// Runs in a new directory and returns the object; nothing but our marker may be left.
fn run(arguments: &str) -> Value {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    let output = start(dir.path(), arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {complaint}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().count(), 1, "{arguments}: {text}");
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .expect("list")
        .map(|entry| entry.expect("entry").file_name().into_string().expect("name"))
        .filter(|name| name.starts_with("run-") || name == "swap")
        .collect();
    assert!(left.is_empty(), "{arguments}: {left:?}");
    serde_json::from_str(&text).expect("one JSON object")
}

fn numbers(value: &Value, fields: &str) {
    for field in fields.split(' ') {
        let is_finite = value[field].as_f64().is_some_and(f64::is_finite);
        assert!(is_finite, "{field}: {value}");
    }
}

#[test]
fn recovery() {
    let result = run("recovery --records 20000 --rounds 2 --log-bytes 4000000 --threads 4");
    numbers(&result, "keys open_s replay_mb_per_s page_cache_left_bytes");
    assert_eq!(result["keys"], 20_000);
    assert_eq!(result["opens_s"].as_array().map(Vec::len), Some(2));
    assert!(result["open_s"].as_f64() > Some(0.0));
    assert!(result["replay_mb_per_s"].as_f64() > Some(0.0));
    assert!(result["replay_log_bytes"].as_u64() >= Some(4_000_000));
}

#[test]
fn memory() {
    for arguments in ["", " --key-bytes 40 --shared-prefix 24 --key-shape scattered"] {
        let result = run(&format!("memory --records 20000{arguments}"));
        numbers(&result, "keys key_bytes bytes_per_key");
        let of = |field: &str| result[field].as_f64().expect("number");
        let (load, reopen) = (of("after_load_bytes_per_key"), of("after_reopen_bytes_per_key"));
        assert_eq!(of("bytes_per_key"), load.max(reopen));
        // The key alone, and not the values, which are 100 bytes each beside the fixed costs.
        assert!(load > of("index_bytes_per_key"), "{result}");
        assert!(result["after_load"]["value_log_bytes"].as_u64() > Some(20_000 * 100));
    }
}

#[test]
fn checkpoint() {
    let result = run("checkpoint --records 40000 --small 5000 --large 20000");
    numbers(&result, "index_ratio growth_pct");
    let ratio = result["index_ratio"].as_f64().expect("number");
    assert!(ratio > 0.0 && ratio < 0.5, "{result}");
    let measured = result["measured"].as_array().expect("array");
    assert_eq!(measured.len(), 3);
    for one in measured {
        numbers(one, "records shards first_ms updated_ms one_shard_ms one_shard_index_bytes");
        assert!(one["updated_index_bytes"].as_u64() < one["first_index_bytes"].as_u64());
    }
}

#[test]
fn splits() {
    let result = run("splits --seconds 2 --threads 4 --shard-max-bytes 65536 --min-splits 2");
    numbers(
        &result,
        "splits pause_p50_ms pause_p999_ms pause_max_ms insert_ops_per_s insert_loss_pct",
    );
    let of = |field: &str| result[field].as_f64().expect("number");
    assert!(of("splits") >= 2.0 && of("shards") > of("splits"), "{result}");
    assert!(of("pause_p50_ms") <= of("pause_p999_ms"));
    assert!(of("pause_p999_ms") <= of("pause_max_ms"));
    assert_eq!(of("pairs"), 4.0 * of("splits"));
    assert_eq!(result["shard_max_bytes"], 65_536);
}

#[test]
fn a_run_with_too_few_splits_fails() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    let output = start(dir.path(), "splits --seconds 1 --threads 2 --min-splits 1000000");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--shard-max-bytes"));
}

#[test]
fn jobs() {
    let result = run("jobs --records 140000 --threads 4 --seconds 0.3 --before-seconds 0.2 \
                      --rounds 1 --work-bytes 70000000 --merge-keys 3000 --without ltm");
    let jobs = result["jobs"].as_array().expect("jobs");
    let names: Vec<_> = jobs.iter().map(|job| job["job"].as_str().expect("name")).collect();
    assert_eq!(names, ["reorganize", "checkpoint", "defragment"]);
    for job in jobs {
        numbers(
            job,
            "duration_s window_s work_bytes insert_loss_pct update_loss_pct scan_loss_pct",
        );
        assert_eq!(job["scenario"], "mem");
        assert_eq!(job["work_is_whole"], true, "{job}");
        assert!(job["duration_s"].as_f64() > Some(0.0));
    }
}

#[test]
fn amplification() {
    let result = run("amplification --records 100000 --threads 4 --times 1 --seconds 2 --fill 0.2");
    numbers(&result, "space write minutes stalls space_peak longest_stall_s");
    let of = |field: &str| result[field].as_f64().expect("number");
    assert!(of("space") >= 1.0 && of("space") <= of("space_peak"), "{result}");
    assert!(of("write") >= 1.0, "each byte is at least in the log: {result}");
    assert_eq!(result["free_disk"]["writes"], 100_000);
    assert_eq!(result["live_bytes"], 100_000 * 1064);
}
