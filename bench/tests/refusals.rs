//! What the program refuses: by name, with the right exit status, and nothing on standard output.

use std::process::{Command, Output};

fn bench(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmemkv-bench"))
        .args(arguments.split_whitespace())
        .output()
        .expect("start vmemkv-bench")
}

fn refused(arguments: &str, status: i32, says: &str) {
    let output = bench(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments}: {complaint}");
    assert!(complaint.contains(says), "{arguments}: {complaint}");
    assert!(output.stdout.is_empty(), "{arguments}");
}

#[test]
fn rivals_are_not_built_yet() {
    for store in ["rocksdb", "rocksdb-blobdb:tuned", "lmdb:seed"] {
        let line = format!("engine --scenario 8b-mem --workload insert --store {store}");
        refused(&line, 1, "not built yet");
    }
}

#[test]
fn wrong_use_is_told_apart() {
    refused("", 2, "Usage");
    refused("matrix", 2, "unrecognized subcommand");
    refused("engine --scenario 8b-mem --workload insert --store leveldb", 2, "the stores are");
    refused("engine --scenario 8b-mem --workload insert --threads 0", 2, "threads");
    refused("engine --workload insert", 2, "--scenario");
    refused("memory --records 10", 2, "--records");
    refused("recovery --threads 0", 2, "--threads");
}

#[test]
fn only_our_own_directories_are_used_and_removed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    std::fs::write(dir.path().join("thesis.txt"), "precious").expect("write");
    let path = dir.path().display();
    let cell = "engine --scenario 8b-mem --workload insert";
    refused(&format!("{cell} --dir {path}"), 1, "holds other files");
    refused(&format!("clean --dir {path}"), 1, "it stays");
    assert!(dir.path().join("thesis.txt").exists());
}

#[test]
fn a_file_system_in_memory_is_refused() {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    if mounts.lines().any(|line| line.starts_with("tmpfs /dev/shm ")) {
        let dir = tempfile::tempdir_in("/dev/shm").expect("directory");
        let path = dir.path().display();
        let cell = "engine --scenario 8b-mem --workload insert";
        refused(&format!("{cell} --dir {path}"), 1, "in memory");
    }
}
