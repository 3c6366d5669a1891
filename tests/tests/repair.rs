//! `vmemkv engine repair` at the command line, on a directory whose log is damaged in its middle.
//!
//! Under test: what is refused and why, that what would be lost is said before it is, and that the
//! engine opens afterwards with all that lies before the damage, and no more.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use vmemkv_engine::{Condition, Engine, Lsn, Options, ScanOptions};
use vmemkv_tests::vmemkv;

const VMEMKV: &str = env!("CARGO_BIN_EXE_vmemkv-under-test");
/// Keys in the log, each in a record of its own.
const LOGGED: usize = 20;
/// The damaged record.
const DAMAGED: usize = 12;
/// Before the records of a log segment.
const HEADER_BYTES: u64 = 4096;

fn key(number: usize) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

fn open(data: &Path) -> vmemkv_engine::Result<Engine> {
    Engine::open(data, Options::for_tests())
}

/// A closed directory: `base` in the checkpoint, the others in the log; where each record ends, the
/// checkpoint first.
fn directory(data: &Path) -> Vec<Lsn> {
    let engine = open(data).unwrap();
    let put = |key: &[u8], value: &[u8]| {
        let lsn = engine.put(key, value, &Condition::None).unwrap().lsn;
        engine.wait_durable(lsn).unwrap();
        lsn
    };
    put(b"base", b"in the checkpoint");
    let mut ends = vec![engine.checkpoint().unwrap().lsn];
    ends.extend((0..LOGGED).map(|number| put(&key(number), &[number as u8; 100])));
    ends
}

fn keys(data: &Path) -> Vec<Vec<u8>> {
    let engine = open(data).unwrap();
    let chunk = engine.scan(&ScanOptions::default()).unwrap();
    assert!(chunk.done);
    chunk.entries.into_iter().map(|(key, _)| key).collect()
}

fn run(arguments: &[&str], data: &Path) -> (Output, String, String) {
    let output = vmemkv(VMEMKV).args(arguments).arg(data).output().unwrap();
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    (output, stdout, stderr)
}

fn json(arguments: &[&str], data: &Path) -> Value {
    let (output, stdout, stderr) = run(arguments, data);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// Changes a byte of the record that starts at `lsn`; its file, and where it starts there.
fn damage(data: &Path, lsn: Lsn) -> (PathBuf, u64) {
    let found = json(&["engine", "inspect", "--json"], data);
    let segments = found["wal_segments"].as_array().unwrap();
    let holds = |one: &&Value| {
        let range = one["start_lsn"].as_u64().unwrap()..one["end_lsn"].as_u64().unwrap();
        range.contains(&lsn.0)
    };
    let segment = segments.iter().find(holds).unwrap();
    let name = Path::new(segment["file"].as_str().unwrap()).file_name().unwrap().to_owned();
    let path = data.join("wal").join(name);
    let at = HEADER_BYTES + lsn.0 - segment["start_lsn"].as_u64().unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at + 60).unwrap();
    file.write_all_at(&[!byte[0]], at + 60).unwrap();
    (path, at)
}

#[test]
fn a_log_damaged_in_its_middle_is_ended_where_one_says() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let ends = directory(&data);
    let (output, _, stderr) = run(&["engine", "repair"], &data);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("not damaged"), "{stderr}");

    let (file, offset) = damage(&data, ends[DAMAGED]);
    let place = format!("{} at offset {offset}", file.display());
    let (output, stdout, stderr) = run(&["engine", "verify"], &data);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let named = [&stdout, &stderr].into_iter().any(|text| text.contains(&place));
    assert!(named, "no {place} in: {stdout}{stderr}");

    // What would be lost, and how to say yes; nothing is changed.
    let (output, stdout, stderr) = run(&["engine", "repair"], &data);
    assert!(output.status.success(), "{stderr}");
    for said in [
        place.clone(),
        format!("the log would end at LSN {};", ends[DAMAGED]),
        format!("{} readable records", LOGGED - DAMAGED - 1),
        "would be given up".to_owned(),
        format!("key \"{}\"", String::from_utf8(key(DAMAGED + 1)).unwrap()),
        format!("vmemkv engine repair DIR --to-lsn {} --yes", ends[DAMAGED]),
    ] {
        assert!(stdout.contains(&said), "no {said:?} in: {stdout}");
    }
    assert!(open(&data).is_err(), "it was not to be changed");
    let would = json(&["engine", "repair", "--json"], &data);
    assert_eq!(would["applied"], false);
    assert_eq!(would["to_lsn"], ends[DAMAGED].0);
    assert_eq!(would["dropped"]["records"], LOGGED - DAMAGED - 1);
    assert_eq!(would["dropped"]["first_key_hex"], hex(&key(DAMAGED + 1)));

    // Wrong ends, and no end at all.
    let inside = (ends[3].0 + 8).to_string();
    let beyond = ends[DAMAGED + 1].0.to_string();
    let below = (ends[0].0 - 8).to_string();
    for (lsn, why) in [
        (&inside, format!("nearest end of one below is {}", ends[3])),
        (&beyond, format!("up to LSN {}", ends[DAMAGED])),
        (&below, format!("the checkpoint holds everything below LSN {}", ends[0])),
    ] {
        let (output, _, stderr) = run(&["engine", "repair", "--to-lsn", lsn, "--yes"], &data);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(&why), "{lsn}: no {why:?} in: {stderr}");
    }
    for arguments in [&["engine", "repair", "--yes"][..], &["engine", "repair", "--to-lsn", "x"]] {
        let (output, _, stderr) = run(arguments, &data);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("--to-lsn"), "{stderr}");
    }
    assert!(open(&data).is_err(), "it was not to be changed");

    // An earlier end gives up more, and says so.
    let kept = DAMAGED - 2;
    let lsn = ends[kept].to_string();
    let (output, stdout, stderr) = run(&["engine", "repair", "--to-lsn", &lsn, "--yes"], &data);
    assert!(output.status.success(), "{stderr}");
    for said in [
        format!("the log ends at LSN {lsn};"),
        format!("{} readable records", LOGGED - kept - 1),
        "were given up".to_owned(),
        "done: start the server".to_owned(),
    ] {
        assert!(stdout.contains(&said), "no {said:?} in: {stdout}");
    }
    let all: Vec<_> = std::iter::once(b"base".to_vec()).chain((0..kept).map(key)).collect();
    assert_eq!(keys(&data), all);
    let verified = json(&["engine", "verify", "--json"], &data);
    assert_eq!(verified["ok"], true, "{verified}");
}

#[test]
fn what_is_no_directory_of_an_engine_is_not_repaired() {
    let folder = tempfile::tempdir().unwrap();
    for (data, status) in [(folder.path().join("none"), 1), (folder.path().to_owned(), 1)] {
        let (output, _, stderr) = run(&["engine", "repair"], &data);
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(stderr.contains(data.to_str().unwrap()), "{stderr}");
    }
    assert!(!folder.path().join("none").exists());
    let data = folder.path().join("data");
    let engine = open(&data).unwrap();
    let (output, _, stderr) = run(&["engine", "repair"], &data);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("stop the server"), "{stderr}");
    engine.close().unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
