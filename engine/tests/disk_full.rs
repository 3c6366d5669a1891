//! Single faults, one schedule each: a full disk in the value log and in the log, a failed sync of
//! the log, and a checkpoint that fails at each of its steps.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "disk_full/full_log.rs"]
mod full_log;
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use support::{
    GateDisk, contents, fast_dir, index_files, put, put_durable, small, verify, watchdog,
};
use vmemkv_engine::io::testing::{CrashDisk, Fault, FaultDisk, Operation as Io, PowerCut};
use vmemkv_engine::{Condition, Engine, ErrorKind, Operation, State};

struct Bench {
    engine: Engine,
    /// Outside of the faults: knows what was made.
    gates: Arc<GateDisk>,
    disk: Arc<FaultDisk>,
    crash: Arc<CrashDisk>,
    /// Last: the folder goes when nobody writes there any more.
    dir: tempfile::TempDir,
}

fn bench() -> Bench {
    let dir = fast_dir();
    let crash = CrashDisk::new(dir.path().join("data")).unwrap();
    let disk = FaultDisk::new(crash.clone());
    let gates = GateDisk::new(disk.clone());
    let engine = Engine::open_on(gates.clone(), small()).unwrap();
    Bench { dir, crash, disk, gates, engine }
}

impl Bench {
    fn root(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    /// Opens what a power cut leaves of it now.
    fn after_power_cut(&self, name: &str) -> Engine {
        let image = self.dir.path().join(name);
        let disk = support::cut_to(&self.crash, None, &image, &PowerCut::strict());
        Engine::open_on(disk, small()).unwrap()
    }
}

/// A full disk refuses what needs new space, leaves no trace, and writes resume by themselves.
#[test]
fn a_full_value_log_leaves_no_trace_and_writes_resume() {
    watchdog("full value log", 60, || {
        let bench = bench();
        let engine = &bench.engine;
        put_durable(engine, b"k", &[1; 100]);
        put_durable(engine, b"small", b"in place");
        bench.disk.inject(Fault::new(Io::SPACE, libc::ENOSPC).in_path("t2/").forever());
        let large = vec![5; 3 << 20];
        let mut accepted = 0;
        let error = loop {
            match engine.put(format!("large{accepted}").as_bytes(), &large, &Condition::None) {
                Ok(written) => engine.wait_durable(written.lsn).unwrap(),
                Err(error) => break error,
            }
            accepted += 1;
            assert!(accepted < 10, "the segment fills up");
        };
        assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
        assert!(error.message().contains("t2/"), "{error}");
        let before = (contents(engine), engine.shards(), engine.stats().counters.puts);
        // Neither a put over an old key, nor a part of a batch, nor a reservation.
        assert!(engine.put(b"k", &large, &Condition::None).is_err());
        let batch = [
            Operation::Put { key: b"a new key".into(), value: b"inline".to_vec() },
            Operation::Put { key: b"k".into(), value: vec![2; 50] },
            Operation::Delete { key: b"small".into() },
            Operation::Put { key: b"l".into(), value: large.clone() },
        ];
        for _ in 0..10_000 {
            // More often than the append region has entries.
            assert_eq!(engine.write_batch(&batch).unwrap_err().kind(), ErrorKind::DiskFull);
        }
        assert!((contents(engine), engine.shards(), engine.stats().counters.puts) == before);
        assert_eq!(engine.stats().state, State::DiskFull);
        // What needs no new segment is taken.
        put_durable(engine, b"inline", b"8 bytes!");
        put_durable(engine, b"k", &[3; 90]);
        engine.delete(b"small", &Condition::None).unwrap();
        assert!(bench.after_power_cut("full").get(b"l").unwrap().is_none());
        bench.disk.heal();
        put_durable(engine, b"l", &large);
        assert_eq!(engine.stats().state, State::Healthy);
        let expected = contents(engine);
        let engine = bench.after_power_cut("healed");
        assert!(contents(&engine) == expected);
        verify(&engine, "healed");
    });
}

/// A write whose sync failed is never acknowledged, nor is any later one; durable data is read.
#[test]
fn a_failed_log_sync_makes_the_engine_read_only() {
    watchdog("failed log sync", 60, || {
        let bench = bench();
        let engine = &bench.engine;
        put_durable(engine, b"old", &[1; 100]);
        bench.disk.inject(Fault::new(&[Io::Sync], libc::EIO).in_path("wal/"));
        let lost = put(engine, b"lost", &[2; 100]);
        let error = engine.wait_durable(lost).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        assert!(error.message().contains("wal"), "names the file: {error}");
        // The disk works again, and that changes nothing.
        let State::ReadOnly { reason } = engine.stats().state else { panic!("healthy") };
        let writes: [Box<dyn Fn() -> vmemkv_engine::Result<()>>; 5] = [
            Box::new(|| engine.put(b"k", b"v", &Condition::None).map(drop)),
            Box::new(|| engine.delete(b"old", &Condition::None).map(drop)),
            Box::new(|| engine.write_batch(&[Operation::Delete { key: b"old".into() }]).map(drop)),
            Box::new(|| engine.delete_range(&vmemkv_engine::KeyRange::all(), 10).map(drop)),
            Box::new(|| engine.checkpoint().map(drop)),
        ];
        for write in writes {
            let error = write().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
            assert!(error.message().contains(&reason), "{error}");
        }
        assert_eq!(engine.get(b"old").unwrap(), Some(vec![1; 100]));
        assert_eq!(engine.get(b"lost").unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(engine.try_get(b"lost").unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(engine.wait_durable(lost).unwrap_err().kind(), ErrorKind::ReadOnly);
        let (sender, answer) = std::sync::mpsc::channel();
        engine.on_durable(lost, Box::new(move |result| sender.send(result).unwrap()));
        assert_eq!(answer.recv().unwrap().unwrap_err().kind(), ErrorKind::ReadOnly);
        let Bench { engine, disk, dir, .. } = bench;
        assert!(engine.close().is_err());
        let engine = Engine::open_on(disk, small()).unwrap();
        assert_eq!(engine.get(b"old").unwrap(), Some(vec![1; 100]));
        put_durable(&engine, b"k", b"v");
        drop(dir);
    });
}

/// F20, F27: whatever step of a checkpoint fails, the next complete one (in this process, or in
/// the next if a sync failed) has everything; attempt numbers are not used twice, and the files
/// of failed attempts do not pile up.
#[test]
fn f20_f27_a_checkpoint_that_fails_at_any_step() {
    let steps: &[(&str, Io, &str)] = &[
        ("sync of the value log", Io::Sync, "t2/"),
        ("name of a value segment", Io::SyncDir, "t2"),
        ("making an index file", Io::Create, "t1/"),
        ("writing an index file", Io::Write, "t1/"),
        ("syncing an index file", Io::Sync, "t1/"),
        ("syncing t1/", Io::SyncDir, "t1"),
        ("making the manifest", Io::Create, "MANIFEST"),
        ("writing the manifest", Io::Write, "MANIFEST"),
        ("syncing the manifest", Io::Sync, "MANIFEST"),
        ("renaming the manifest", Io::Rename, "MANIFEST"),
        ("syncing the root", Io::SyncDir, ""),
    ];
    for &(name, operation, path) in steps {
        for errno in [libc::EIO, libc::ENOSPC] {
            let at = format!("{name}, errno {errno}");
            watchdog(&at.clone(), 60, || fail_at(&at, operation, path, errno));
        }
    }
}

fn fail_at(at: &str, operation: Io, path: &str, errno: i32) {
    let bench = bench();
    let engine = &bench.engine;
    for i in 0..50u8 {
        put_durable(engine, &[b'k', i], &[i; 100]);
    }
    if path != "t2" {
        // With a file, the shard is taken again only if it is still dirty. (The folder t2 is
        // synced once, by the first.)
        engine.checkpoint().unwrap();
    }
    let mut used = BTreeSet::new();
    let is_sync = matches!(operation, Io::Sync | Io::SyncDir);
    for round in 0..4 {
        // Every other time nothing has changed since the attempt that failed: what that one had
        // frozen must be taken again.
        let written = round / 2;
        if round % 2 == 0 {
            put_durable(engine, b"round", &[written; 200]);
        }
        // The sync of the folder t1 comes before that of the root.
        let skip = u64::from(path.is_empty());
        bench.disk.inject(Fault::new(&[operation], errno).in_path(path).at(skip));
        let failed = bench.disk.failed();
        let result = engine.checkpoint();
        bench.disk.heal();
        if bench.disk.failed() == failed {
            // Nothing left to do at this step (the folder is synced once).
            result.unwrap_or_else(|error| panic!("{at}: {error}"));
            break;
        }
        let error = result.expect_err(at);
        assert!(!error.message().is_empty());
        for file in index_files(&bench.root()) {
            used.insert(file);
        }
        assert!(index_files(&bench.root()).len() <= 2, "{at}: files pile up: {used:?}");
        assert_eq!(engine.get(b"round").unwrap(), Some(vec![written; 200]), "{at}");
        let healthy = engine.stats().state == State::Healthy;
        assert!(!(is_sync && healthy), "{at}: a failed sync must make it read-only");
        if !healthy {
            break;
        }
    }
    assert!(bench.disk.failed() > 0, "{at}: the step was met");
    if engine.stats().state == State::Healthy {
        let expected = contents(engine);
        let before: BTreeSet<String> = index_files(&bench.root()).into_iter().collect();
        engine.checkpoint().unwrap_or_else(|error| panic!("{at}: {error}"));
        let end = engine.stats().wal;
        assert_eq!(end.checkpoint_lsn, end.appended_lsn, "{at}: replay has nothing to do");
        let files = index_files(&bench.root());
        let new: Vec<_> = files.iter().filter(|file| !before.contains(*file)).collect();
        assert!(new.len() == 1 && !used.contains(new[0]), "{at}: {files:?} {used:?}");
        let engine = bench.after_power_cut("complete");
        assert!(contents(&engine) == expected, "{at}");
        verify(&engine, at);
    }
    let mut names = bench.gates.created("t1/");
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "{at}: a number was used twice: {names:?}");
    // And in the next life.
    let expected = contents_if_readable(&bench.engine);
    let image = bench.dir.path().join("look");
    bench.crash.materialise(None, &image, &PowerCut::strict()).unwrap();
    let left = index_files(&image);
    let engine = bench.after_power_cut("next");
    if let Some(expected) = expected {
        assert!(contents(&engine) == expected, "{at}");
    }
    put_durable(&engine, b"next life", &[1; 64]);
    engine.checkpoint().unwrap();
    verify(&engine, at);
    let files = index_files(&bench.dir.path().join("next"));
    // A name that the cut took was never durable, and may come again; one that it left may not.
    let new: Vec<_> = files.iter().filter(|file| !left.contains(*file)).collect();
    assert_eq!(new.len(), 1, "{at}: reused: {files:?} {left:?}");
}

fn contents_if_readable(engine: &Engine) -> Option<support::Model> {
    (engine.stats().state == State::Healthy).then(|| contents(engine))
}
