//! Damaged bytes in every kind of file: what is read fails and says where, the rest serves, and
//! `verify` finds it while the engine serves and when the directory is closed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use vmemkv_engine::{
    Condition, Engine, ErrorKind, KeyRange, Operation, Options, ScanOptions, Sharding,
    VerifyReport, offline,
};

const VALUE_BYTES: usize = 5000;
const LOGGED: u8 = 8;

fn key(number: u8) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

fn options() -> Options {
    let boundaries = vec![key(5)];
    Options { sharding: Sharding::Alone { boundaries }, ..Options::for_tests() }
}

/// Changes a byte where it is, without cutting the file, which may be mapped.
fn flip(file: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x24], offset).unwrap();
}

fn position(file: &Path, what: &[u8]) -> u64 {
    let bytes = fs::read(file).unwrap();
    bytes.windows(what.len()).position(|window| window == what).unwrap() as u64
}

/// Damages the record of a key so that every way of reading meets it: the key in it.
fn damage_record(data: &Path, number: u8) {
    let file = data.join("t2/0.t2");
    let mut record = key(number);
    record.extend([number; 64]);
    flip(&file, position(&file, &record) + 4);
}

/// An engine with keys 0 to 9 in a checkpoint, and some more in the log.
fn engine(data: &Path) -> Engine {
    let engine = Engine::open(data, options()).unwrap();
    for number in 0..10 {
        engine.put(&key(number), &[number; VALUE_BYTES], &Condition::None).unwrap();
    }
    engine.checkpoint().unwrap();
    for number in 0..LOGGED {
        let written = engine.put(&[b'l', number], &[number; 100], &Condition::None).unwrap();
        engine.wait_durable(written.lsn).unwrap();
    }
    engine
}

/// Every place where a changed byte is damage: file, offset, and whether the offset is said.
fn places(data: &Path, log: (u64, u64)) -> Vec<(PathBuf, u64, bool)> {
    let mut places = Vec::new();
    let only = |folder: &str| {
        let files = fs::read_dir(data.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.collect::<Vec<_>>()
    };
    let mut all = |file: &str, offsets: &mut dyn Iterator<Item = u64>| {
        // Magic and version say what file it is: there is no offset to give.
        places.extend(offsets.map(|offset| (data.join(file), offset, offset >= 12)));
    };
    all("IDENTITY", &mut (0..56));
    let manifest_bytes = fs::metadata(data.join("MANIFEST")).unwrap().len();
    all("MANIFEST", &mut (0..20).chain((24..manifest_bytes).step_by(5)));
    // Reserved and the sequence (4..8) are not looked at.
    all("t2/0.t2", &mut (0..28));
    let record = position(&data.join("t2/0.t2"), &[&key(3)[..], &[3; 64]].concat()) - 32;
    all("t2/0.t2", &mut (0..4).chain(8..60).chain([1000, 5000]).map(|at| record + at));
    for file in only("t1") {
        let len = fs::metadata(&file).unwrap().len();
        places.extend((0..len).step_by(3).map(|offset| (file.clone(), offset, offset >= 12)));
    }
    // The log's header, and records with proof behind them that they were durable.
    for file in only("wal") {
        let bytes = fs::read(&file).unwrap();
        let seq: u64 = file.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        if &bytes[..7] != b"VMKVWAL" || word(16) != seq {
            // A spare.
            continue;
        }
        let start = word(24);
        assert!(start <= log.0 && log.1 < start + bytes.len() as u64);
        places.extend((0..52).map(|offset| (file.clone(), offset, false)));
        let records = (log.0..log.1).step_by(7).map(|lsn| 4096 + lsn - start);
        places.extend(records.map(|offset| (file.clone(), offset, true)));
    }
    places
}

fn assert_found(report: &VerifyReport, file: &Path, offset: u64, says_offset: bool) {
    // A log without a header is missing as a whole: its folder is named.
    let name = if file.parent().unwrap().ends_with("wal") && !says_offset {
        file.parent().unwrap()
    } else {
        file
    };
    let found = report.problems.iter().any(|problem| {
        problem.contains(name.to_str().unwrap())
            && (!says_offset || problem.contains(" at offset "))
    });
    assert!(found, "byte {offset} of {}: {:?}", file.display(), report.problems);
}

#[test]
fn verify_finds_a_changed_byte_in_every_file_open_and_closed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let engine = engine(&data);
    let stats = engine.stats();
    let durable = stats.wal.durable_lsn.0;
    // Of the last two records nothing is proven when the process has gone.
    let record = (durable - stats.wal.checkpoint_lsn.0) / u64::from(LOGGED);
    let log = (stats.wal.checkpoint_lsn.0, durable - 2 * record);
    let clean = engine.verify(&|| false).unwrap();
    assert_eq!(clean.problems, Vec::<String>::new());
    assert_eq!(clean.records, 10 + u64::from(LOGGED), "live keys");
    let places = places(&data, log);
    for kind in ["IDENTITY", "MANIFEST", "t1/", "t2/", "wal/"] {
        let touched = places.iter().filter(|place| place.0.to_str().unwrap().contains(kind));
        assert!(touched.count() > 20, "{kind}");
    }
    for (file, offset, says_offset) in &places {
        flip(file, *offset);
        assert_found(&engine.verify(&|| false).unwrap(), file, *offset, *says_offset);
        flip(file, *offset);
    }
    assert_eq!(engine.verify(&|| false).unwrap(), clean);
    drop(engine);
    assert_eq!(offline::verify(&data).unwrap().problems, Vec::<String>::new());
    for (file, offset, says_offset) in &places {
        flip(file, *offset);
        assert_found(&offline::verify(&data).unwrap(), file, *offset, *says_offset);
        flip(file, *offset);
    }
    // The damage of one file does not hide that of another.
    for file in ["IDENTITY", "t2/0.t2"] {
        flip(&data.join(file), 20);
    }
    let t1 = fs::read_dir(data.join("t1")).unwrap().map(|entry| entry.unwrap().path());
    let t1: Vec<PathBuf> = t1.collect();
    assert_eq!(t1.len(), 2);
    t1.iter().for_each(|file| flip(file, 60));
    let report = offline::verify(&data).unwrap();
    assert_eq!(report.problems.len(), 4, "{:?}", report.problems);
}

fn scan(range: KeyRange, reverse: bool) -> ScanOptions {
    ScanOptions { range, reverse, ..ScanOptions::default() }
}

#[test]
fn a_damaged_record_fails_its_reads_by_name_and_the_rest_serves() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    engine(&data).close().unwrap();
    damage_record(&data, 3);
    let engine = Engine::open(&data, options()).unwrap();
    let assert_damaged = |error: vmemkv_engine::Error| {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(error.key(), Some(&key(3)[..]));
        assert!(error.message().contains("t2/0.t2 at offset"), "{error}");
    };
    assert_damaged(engine.get(&key(3)).unwrap_err());
    assert_eq!(engine.stats().counters.corrupt_reads, 1);
    let expected = Condition::IfValueEquals(vec![3; VALUE_BYTES]);
    assert_damaged(engine.put(&key(3), b"x", &expected).unwrap_err());
    for number in (0..10).filter(|number| *number != 3) {
        assert_eq!(engine.get(&key(number)).unwrap().unwrap(), [number; VALUE_BYTES]);
    }
    let numbers = |entries: &[(Vec<u8>, Vec<u8>)]| -> Vec<u8> {
        entries.iter().map(|(_, value)| value[0]).collect()
    };
    let keys = KeyRange::new("key", "l");
    // Forward: what is before it, then its name, then from behind it.
    let chunk = engine.scan(&scan(keys.clone(), false)).unwrap();
    assert_eq!((numbers(&chunk.entries), chunk.done), (vec![0, 1, 2], false));
    assert_eq!(chunk.covered_to, key(3));
    let rest = KeyRange { start: chunk.covered_to, ..keys.clone() };
    let error = engine.scan(&scan(rest, false)).unwrap_err();
    let mut behind = error.key().unwrap().to_vec();
    assert_damaged(error);
    behind.push(0);
    let rest = KeyRange { start: behind, ..keys.clone() };
    let chunk = engine.scan(&scan(rest, false)).unwrap();
    assert_eq!((numbers(&chunk.entries), chunk.done), (vec![4, 5, 6, 7, 8, 9], true));
    // In reverse.
    let chunk = engine.scan(&scan(keys.clone(), true)).unwrap();
    assert_eq!((numbers(&chunk.entries), chunk.done), (vec![9, 8, 7, 6, 5, 4], false));
    let rest = KeyRange { end: chunk.covered_to, ..keys.clone() };
    let error = engine.scan(&scan(rest, true)).unwrap_err();
    let rest = KeyRange { end: error.key().unwrap().to_vec(), ..keys.clone() };
    assert_damaged(error);
    let chunk = engine.scan(&scan(rest, true)).unwrap();
    assert_eq!((numbers(&chunk.entries), chunk.done), (vec![2, 1, 0], true));
    // A limit that is met before it.
    let limited = ScanOptions { limit: 3, ..scan(keys.clone(), false) };
    assert!(engine.scan(&limited).unwrap().done);
    // Keys alone are in the index.
    let keys_only = ScanOptions { keys_only: true, ..scan(keys, false) };
    assert_eq!(engine.scan(&keys_only).unwrap().entries.len(), 10);
    // A new value takes its place; a batch does too.
    let put = |number| Operation::Put { key: key(number), value: vec![number; 100] };
    engine.write_batch(&[put(2), put(3)]).unwrap();
    assert_eq!(engine.get(&key(3)).unwrap().unwrap(), [3; 100]);
    assert_eq!(engine.verify(&|| false).unwrap().problems, Vec::<String>::new());
}
