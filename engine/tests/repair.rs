//! The way out of a log that is damaged in its middle.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vmemkv_engine::io::Disk;
use vmemkv_engine::io::testing::{CrashDisk, PowerCut};
use vmemkv_engine::{
    Condition, Engine, ErrorKind, KeyRange, Lsn, Options, Revision, ScanOptions, State, offline,
};

const LOGGED: usize = 20;

fn key(number: usize) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

fn put(engine: &Engine, key: &[u8], value: &[u8]) -> Lsn {
    let lsn = engine.put(key, value, &Condition::None).unwrap().lsn;
    engine.wait_durable(lsn).unwrap();
    lsn
}

fn open(data: &Path) -> vmemkv_engine::Result<Engine> {
    Engine::open(data, Options::for_tests())
}

fn files(data: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for folder in ["", "t1", "t2", "wal"] {
        for entry in fs::read_dir(data.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && !path.ends_with("LOCK") {
                files.insert(path.clone(), fs::read(path).unwrap());
            }
        }
    }
    files
}

/// Changes a byte of the log record that starts at `lsn`, wherever it lies.
fn damage(data: &Path, lsn: Lsn) {
    for (path, bytes) in files(data) {
        let Some(stem) = path.file_name().unwrap().to_str().unwrap().strip_suffix(".wal") else {
            continue;
        };
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (seq, start, len) = (word(16), word(24), word(40));
        if &bytes[..7] == b"VMKVWAL"
            && seq == stem.parse::<u64>().unwrap()
            && (start..start + len - 4096).contains(&lsn.0)
        {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            let at = 4096 + lsn.0 - start + 60;
            file.write_all_at(&[!bytes[at as usize]], at).unwrap();
        }
    }
}

/// A closed directory: `base` in the checkpoint, keys 0 to 19 in the log. Where each record ends,
/// the checkpoint's end first.
fn directory(data: &Path) -> Vec<Lsn> {
    let engine = open(data).unwrap();
    put(&engine, b"base", &[1; 100]);
    let mut ends = vec![engine.checkpoint().unwrap().lsn];
    ends.extend((0..LOGGED).map(|number| put(&engine, &key(number), &[number as u8; 100])));
    drop(engine);
    ends
}

fn keys(engine: &Engine) -> Vec<Vec<u8>> {
    let chunk = engine.scan(&ScanOptions::default()).unwrap();
    assert!(chunk.done);
    chunk.entries.into_iter().map(|(key, _)| key).collect()
}

fn expected(count: usize) -> Vec<Vec<u8>> {
    std::iter::once(b"base".to_vec()).chain((0..count).map(key)).collect()
}

#[test]
fn it_says_what_would_go_and_changes_nothing_until_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let ends = directory(&data);
    // A log that is well is not cut.
    let error = offline::repair(&data, Some(ends[3]), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("not damaged"), "{error}");

    damage(&data, ends[10]);
    let refused = open(&data).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    let before = files(&data);
    let found = offline::repair(&data, None, false).unwrap();
    assert_eq!(found.damage, refused.message());
    assert!(found.damage.contains(".wal at offset "), "{}", found.damage);
    assert_eq!((found.checkpoint_lsn, found.valid_to, found.to_lsn), (ends[0], ends[10], ends[10]));
    let record = ends[11].0 - ends[10].0;
    let dropped = &found.dropped;
    // Record 10 cannot be read; 11 to 19 can, and 19 is proven by nothing.
    assert_eq!((dropped.records, dropped.bytes), (9, 9 * record));
    assert_eq!((dropped.first_lsn, dropped.end_lsn), (ends[11], ends[20]));
    assert_eq!(dropped.unreadable_bytes, record);
    assert_eq!((dropped.durable_lsn, dropped.durable_records), (ends[19], 8));
    assert_eq!((&dropped.first_key, &dropped.last_key), (&Some(key(11)), &Some(key(19))));
    assert!(!found.mixed && !found.applied);
    // An earlier end gives up more.
    let earlier = offline::repair(&data, Some(ends[4]), false).unwrap();
    assert_eq!(earlier.dropped.records, 15);
    assert_eq!(earlier.dropped.first_key, Some(key(4)));
    // Ends that are none.
    for (to, says) in [
        (Lsn(ends[0].0 - 8), format!("the checkpoint holds everything below LSN {}", ends[0])),
        (ends[11], format!("up to LSN {}", ends[10])),
        (Lsn(u64::MAX), format!("up to LSN {}", ends[10])),
        (Lsn(ends[5].0 + 8), format!("nearest end of one below is {}", ends[5])),
        (Lsn(ends[5].0 - 1), format!("nearest end of one below is {}", ends[4])),
    ] {
        let error = offline::repair(&data, Some(to), true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains(&says), "{to}: {error}");
    }
    assert!(before == files(&data), "looking changed something");
}

#[test]
fn after_a_repair_the_log_ends_there_for_good() {
    for kept in [0, 1, 5, 10] {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let ends = directory(&data);
        damage(&data, ends[10]);
        let before = files(&data);
        let to = if kept == 10 { None } else { Some(ends[kept]) };
        assert!(offline::repair(&data, to, true).unwrap().applied);
        // The manifest has another revision floor; that it is sound the next open shows.
        for (path, bytes) in before.into_iter().filter(|(path, _)| !path.ends_with("MANIFEST")) {
            assert!(fs::read(&path).unwrap() == bytes, "{} was changed", path.display());
        }
        assert_eq!(offline::verify(&data).unwrap().problems, Vec::<String>::new());
        let error = offline::repair(&data, None, true).unwrap_err();
        assert!(error.message().contains("not damaged"), "{error}");
        for life in 0..3usize {
            let engine = open(&data).unwrap();
            assert_eq!(engine.stats().state, State::Healthy);
            let mut expected = expected(kept);
            expected.extend((0..life).map(|life| vec![b'n', life as u8]));
            assert_eq!(keys(&engine), expected, "kept {kept}, life {life}");
            put(&engine, &[b'n', life as u8], &[9; 3000]);
        }
        open(&data).unwrap().close().unwrap();
        assert_eq!(keys(&open(&data).unwrap()).len(), kept + 4);
    }
}

#[test]
fn a_log_without_its_beginning_ends_at_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    directory(&data);
    for entry in fs::read_dir(data.join("wal")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(open(&data).map(drop).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(offline::repair(&data, None, true).unwrap().applied);
    assert_eq!(keys(&open(&data).unwrap()), expected(0));
}

/// Damage below what was durable when the checkpoint was committed: the manifest proves more.
#[test]
fn a_cut_below_the_checkpoints_freeze_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (round, checkpoint, freeze) = (0..50)
        .find_map(|round| {
            let data = &data;
            let engine = open(data).unwrap();
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for number in 0..300u32 {
                        engine.put(&number.to_le_bytes(), &[round; 50], &Condition::None).unwrap();
                    }
                });
                while !writer.is_finished() {
                    engine.checkpoint().unwrap();
                }
            });
            put(&engine, b"last", &[round]);
            drop(engine);
            let found = offline::inspect(data).unwrap();
            (found.checkpoint_lsn < found.freeze_lsn).then_some((
                round,
                found.checkpoint_lsn,
                found.freeze_lsn,
            ))
        })
        .expect("a write between the two LSNs of a checkpoint");
    damage(&data, checkpoint);
    assert_eq!(open(&data).map(drop).unwrap_err().kind(), ErrorKind::Corrupt);
    let found = offline::repair(&data, Some(checkpoint), true).unwrap();
    assert!(found.mixed && found.applied);
    assert!(found.dropped.durable_lsn >= freeze);
    let engine = open(&data).unwrap();
    too_old(&engine, 0);
    assert_ne!(engine.get(b"last").unwrap(), Some(vec![round]));
    put(&engine, b"last", b"2");
    drop(engine);
    assert_eq!(open(&data).unwrap().get(b"last").unwrap().unwrap(), b"2");
}

fn all() -> KeyRange {
    KeyRange::new(Vec::new(), Vec::new())
}

/// The oldest position that is served, which this one is not.
fn too_old(engine: &Engine, after: u64) -> Revision {
    match engine.changes_since(&all(), Revision(after), 0).map_err(|error| error.kind()) {
        Err(ErrorKind::TooOld { oldest }) => oldest,
        answer => panic!("{after}: {answer:?}"),
    }
}

/// What was given up had revisions, and readers have seen it: nothing else may get them.
#[test]
fn readers_of_changes_begin_anew_after_a_repair() {
    for end in [4, 10] {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let ends = directory(&data);
        let seen = {
            let engine = open(&data).unwrap();
            engine.changes_since(&all(), Revision(1), 0).unwrap().next
        };
        assert_eq!(seen.0, LOGGED as u64 + 1);
        damage(&data, ends[10]);
        assert!(offline::repair(&data, Some(ends[end]), true).unwrap().applied);
        let mut engine = open(&data).unwrap();
        for checkpoint in [false, true] {
            for after in [0, 1, 5, 11, seen.0] {
                // Above all that the log may ever have had, for it does not say how much that was.
                assert!(too_old(&engine, after).0 > seen.0 + (1 << 39));
            }
            let oldest = too_old(&engine, 0);
            assert!(engine.wait_changes(&all(), seen, std::time::Duration::from_secs(9)).unwrap());
            let before = engine.changes_since(&all(), oldest, 0).unwrap().next;
            for number in 0..LOGGED {
                put(&engine, &key(number), b"new");
            }
            let changes = engine.changes_since(&all(), before, 0).unwrap();
            assert_eq!(changes.records.len(), LOGGED);
            assert!(changes.records.iter().all(|change| change.revision > seen));
            if checkpoint {
                engine.checkpoint().unwrap();
            }
            drop(engine);
            engine = open(&data).unwrap();
        }
        assert!(too_old(&engine, seen.0) > seen, "the checkpoint has forgotten it");
    }
}

#[test]
fn what_is_not_the_logs_damage_is_not_repaired() {
    for (name, why) in [("MANIFEST", "which files belong together"), ("t1", "in this file only")] {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let ends = directory(&data);
        damage(&data, ends[10]);
        let file = match name {
            "t1" => fs::read_dir(data.join(name)).unwrap().next().unwrap().unwrap().path(),
            _ => data.join(name),
        };
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
        let before = files(&data);
        let error = offline::repair(&data, None, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(why), "{error}");
        assert!(error.message().contains(file.to_str().unwrap()), "{error}");
        assert!(error.message().contains("restore the directory from a backup"), "{error}");
        assert!(before == files(&data), "{name}");
    }
}

/// A power cut at each sync of a repair leaves the directory as damaged, or repaired; and after one
/// that was reported as done, every cut leaves it repaired.
#[test]
fn a_repair_may_be_cut_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let ends = directory(&data);
    damage(&data, ends[10]);
    let disk = CrashDisk::new(&data).unwrap();
    let first = disk.crash_points();
    let shared: Arc<dyn Disk> = disk.clone();
    assert!(offline::repair_on(&shared, Some(ends[7]), true).unwrap().applied);
    let last = disk.crash_points();
    assert!(last >= first + 3, "file, folder and header are synced");
    let (mut damaged, mut repaired) = (0, 0);
    for (round, point) in (first..=last).flat_map(|point| (0..8).map(move |n| (n, point))) {
        let cut = if round == 0 { PowerCut::strict() } else { PowerCut::random(round) };
        let target = dir.path().join(format!("cut-{point}-{round}"));
        disk.materialise((point < last).then_some(point), &target, &cut).unwrap();
        match open(&target) {
            Ok(engine) => {
                repaired += 1;
                assert_eq!(keys(&engine), expected(7), "point {point} round {round}");
            }
            Err(error) => {
                damaged += 1;
                assert!(point < last, "point {point} round {round}: {error}");
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                assert!(offline::repair(&target, Some(ends[7]), true).unwrap().applied);
                assert_eq!(keys(&open(&target).unwrap()), expected(7));
            }
        }
        fs::remove_dir_all(&target).unwrap();
    }
    assert!(damaged > 0 && repaired > 0, "{damaged} {repaired}");
}
