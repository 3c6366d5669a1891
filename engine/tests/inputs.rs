//! Bad input gives one clear error and changes nothing; a directory that is not ours is not
//! touched.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use vmemkv_engine::{
    Condition, Engine, ErrorKind, KeyRange, Operation, Options, ScanOptions, Sharding, offline,
};

fn open(dir: &Path) -> vmemkv_engine::Result<Engine> {
    Engine::open(dir, Options::for_tests())
}

fn all(engine: &Engine) -> Vec<(Vec<u8>, Vec<u8>)> {
    engine.scan(&ScanOptions::default()).unwrap().entries
}

/// Every file below a folder with its content, LOCK apart.
fn snapshot(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("LOCK") {
                files.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn keys_values_and_batches_beyond_the_limits() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("d")).unwrap();
    engine.put(b"k", b"v", &Condition::None).unwrap();
    let before = all(&engine);
    let long_key = vec![b'k'; 4097];
    let large = vec![0; (8 << 20) + 1];
    let expect = |result: vmemkv_engine::Result<()>, words: &[&str]| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        words.iter().for_each(|word| assert!(error.message().contains(word), "{error}"));
    };
    expect(engine.put(b"", b"v", &Condition::None).map(drop), &["key is empty"]);
    expect(engine.put(&long_key, b"v", &Condition::None).map(drop), &["4097", "4096"]);
    expect(engine.put(b"k", &large, &Condition::None).map(drop), &["8388609", "8388608"]);
    expect(engine.delete(b"", &Condition::None).map(drop), &["key is empty"]);
    expect(engine.get(b"").map(drop), &["key is empty"]);
    expect(engine.get(&long_key).map(drop), &["4097"]);
    let put = |key: &[u8], value: &[u8]| Operation::Put { key: key.into(), value: value.into() };
    expect(
        engine.write_batch(&[put(b"a", b"1"), put(b"", b"2")]).map(drop),
        &["operation 1", "key is empty"],
    );
    expect(engine.write_batch(&vec![put(b"a", b"1"); 4097]).map(drop), &["4097", "4096"]);
    let half = vec![0; 2 << 20];
    let halves = [put(b"a", &half), put(b"b", &half), put(b"c", b"1")];
    expect(engine.write_batch(&halves).map(drop), &["limit", "4194304"]);
    assert_eq!(all(&engine), before);
    // The largest of everything is fine.
    let largest = vec![7; 8 << 20];
    let key = vec![b'k'; 4096];
    engine.put(&key, &largest, &Condition::None).unwrap();
    assert_eq!(engine.get(&key).unwrap().as_deref(), Some(largest.as_slice()));
    engine.write_batch(&[put(&key, &largest)]).unwrap();
    drop(engine);
    let engine = open(&dir.path().join("d")).unwrap();
    assert_eq!(engine.get(&key).unwrap().as_deref(), Some(largest.as_slice()));
}

#[test]
fn a_directory_has_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    let error = open(dir.path()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.message().contains(&std::process::id().to_string()), "{error}");
    assert!(error.message().contains(&dir.path().display().to_string()), "{error}");
    assert_eq!(offline::verify(dir.path()).unwrap_err().kind(), ErrorKind::InUse);
    drop(engine);
    open(dir.path()).unwrap();
}

#[test]
fn a_foreign_directory_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("photo.jpg"), b"holiday").unwrap();
    let error = open(dir.path()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Foreign);
    assert!(error.message().contains("photo.jpg"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn without_create_a_missing_directory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let options = Options { create: false, ..Options::for_tests() };
    assert_eq!(Engine::open(&missing, options).err().unwrap().kind(), ErrorKind::Foreign);
    assert!(!missing.exists());
    assert_eq!(offline::inspect(&missing).unwrap_err().kind(), ErrorKind::Foreign);
    assert!(!missing.exists());
}

#[test]
fn newer_format_versions_are_refused_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("d");
    let engine = open(&data).unwrap();
    let value = vec![b'v'; 1000];
    let lsn = engine.put(b"k", &value, &Condition::None).unwrap().lsn;
    engine.wait_durable(lsn).unwrap();
    engine.close().unwrap();
    let t1 = fs::read_dir(data.join("t1")).unwrap().next().unwrap().unwrap().path();
    // The current segment; the spare behind it has no header yet.
    let wal = fs::read_dir(data.join("wal")).unwrap().map(|entry| entry.unwrap().path()).min();
    let files =
        [data.join("IDENTITY"), data.join("MANIFEST"), t1, data.join("t2/0.t2"), wal.unwrap()];
    for file in files {
        let good = fs::read(&file).unwrap();
        let mut newer = good.clone();
        newer[8] = 9;
        fs::write(&file, &newer).unwrap();
        let before = snapshot(&data);
        let error = open(&data).err().unwrap_or_else(|| panic!("{} was accepted", file.display()));
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(error.message().contains(&name), "{error}");
        assert!(snapshot(&data) == before, "{name}: something was rewritten");
        fs::write(&file, &good).unwrap();
    }
    assert_eq!(open(&data).unwrap().get(b"k").unwrap(), Some(value));
}

#[test]
fn broken_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("d");
    let engine = open(&data).unwrap();
    engine.put(b"k", &[b'v'; 1000], &Condition::None).unwrap();
    engine.close().unwrap();
    let t1 = fs::read_dir(data.join("t1")).unwrap().next().unwrap().unwrap().path();
    for file in [data.join("IDENTITY"), data.join("MANIFEST"), t1] {
        let good = fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let mut flipped = good.clone();
        let last = flipped.len() - 6;
        flipped[last] ^= 1;
        let cut = good[..good.len() - 3].to_vec();
        for bad in [flipped, cut, Vec::new()] {
            fs::write(&file, &bad).unwrap();
            let error = open(&data).err().unwrap_or_else(|| panic!("{name} was accepted"));
            assert!(error.message().contains(&name), "{error}");
            let report = offline::verify(&data);
            assert!(report.map_or(true, |report| !report.problems.is_empty()), "{name}");
        }
        fs::remove_file(&file).unwrap();
        let error = open(&data).err().unwrap_or_else(|| panic!("{name} is not missed"));
        assert!(
            error.message().contains("MANIFEST")
                || error.message().contains(&name)
                || name == "IDENTITY",
            "{error}"
        );
        fs::write(&file, &good).unwrap();
    }
    open(&data).unwrap();
}

#[test]
fn a_flipped_bit_in_a_value_is_found_and_the_rest_serves() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("d");
    let engine = open(&data).unwrap();
    engine.put(b"bad", &[b'x'; 5000], &Condition::None).unwrap();
    engine.put(b"good", &[b'y'; 5000], &Condition::None).unwrap();
    engine.close().unwrap();
    let file = data.join("t2/0.t2");
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(8).position(|window| window == [b'x'; 8]).unwrap();
    bytes[at + 100] ^= 4;
    fs::write(&file, &bytes).unwrap();
    let report = offline::verify(&data).unwrap();
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert!(report.problems[0].contains("0.t2"), "{:?}", report.problems);
    let engine = open(&data).unwrap();
    assert_eq!(engine.get(b"good").unwrap(), Some(vec![b'y'; 5000]));
    assert_eq!(engine.verify(&|| false).unwrap().problems.len(), 1);
}

#[test]
fn keys_outside_the_shards_are_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { sharding: Sharding::Managed, ..Options::for_tests() };
    let engine = Engine::open(dir.path(), options.clone()).unwrap();
    let kind = |result: vmemkv_engine::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(engine.put(b"k", b"v", &Condition::None).map(drop)), ErrorKind::NotServed);
    assert_eq!(kind(engine.get(b"k").map(drop)), ErrorKind::NotServed);
    let shard = vmemkv_engine::ShardId(5);
    engine.create_shard(shard, &KeyRange::new(b"b".to_vec(), b"m".to_vec()), 3).unwrap();
    engine.create_shard(shard, &KeyRange::new(b"b".to_vec(), b"m".to_vec()), 3).unwrap();
    let overlap = engine.create_shard(vmemkv_engine::ShardId(6), &KeyRange::all(), 3);
    assert_eq!(kind(overlap), ErrorKind::InvalidArgument);
    engine.put(b"k", b"v", &Condition::None).unwrap();
    assert_eq!(kind(engine.get(b"m").map(drop)), ErrorKind::NotServed);
    assert_eq!(kind(engine.get(b"a").map(drop)), ErrorKind::NotServed);
    drop(engine);
    let engine = Engine::open(dir.path(), options).unwrap();
    let shards = engine.shards();
    assert_eq!((shards.len(), shards[0].id, shards[0].epoch), (1, shard, 3));
    assert_eq!(engine.get(b"k").unwrap(), Some(b"v".to_vec()));
}

#[test]
fn options_that_do_not_fit_name_themselves() {
    let cases = [
        (Options { wal_segment_bytes: 1, ..Options::default() }, "wal_segment_bytes"),
        (Options { wal_ring_bytes: 3 << 20, ..Options::default() }, "wal_ring_bytes"),
        (Options { value_segment_bytes: 4096, ..Options::default() }, "value_segment_bytes"),
        (Options { value_log_max_bytes: 4096, ..Options::default() }, "value_log_max_bytes"),
        (Options { append_capacity: 10, ..Options::default() }, "append_capacity"),
        (Options { job_threads: 0, ..Options::default() }, "job_threads"),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (options, name) in cases {
        let error = Engine::open(dir.path().join("d"), options).err().unwrap();
        assert!(error.message().contains(name), "{error}");
        assert!(!dir.path().join("d").exists());
    }
}

#[test]
fn the_segment_size_of_a_directory_stays() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    engine.put(b"k", &[1; 100], &Condition::None).unwrap();
    engine.close().unwrap();
    let other = Options { value_segment_bytes: 32 << 20, ..Options::for_tests() };
    let engine = Engine::open(dir.path(), other).unwrap();
    assert_eq!(engine.get(b"k").unwrap(), Some(vec![1; 100]));
}
