//! Disks that fail: every operation of a workload in turn, once and for good, full or broken.
//!
//! Under test: nothing panics or hangs; a refused write leaves no trace; what was acknowledged is
//! there after the disk heals and the directory is reopened, also after a power cut; a failed sync
//! makes the engine read-only for good.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use support::{Change, History, contents, fast_dir, put_durable, seed, small, verify, watchdog};
use vmemkv_engine::io::testing::{CrashDisk, Fault, FaultDisk, Operation as Io, PowerCut};
use vmemkv_engine::{
    Condition, Continue, DefragmentOptions, Engine, ErrorKind, KeyRange, Lsn, MergeShards,
    Operation, Options, ShardId, SplitShard, State,
};

/// A workload that goes on over errors.
struct Faulty {
    _dir: tempfile::TempDir,
    crash: Arc<CrashDisk>,
    disk: Arc<FaultDisk>,
    engine: Option<Engine>,
    history: History,
    /// How many shards there may be.
    shards: Vec<usize>,
    at: String,
}

fn options() -> Options {
    Options { value_log_max_bytes: 256 << 20, ..small() }
}

impl Faulty {
    fn new(at: String) -> Self {
        let dir = fast_dir();
        let crash = CrashDisk::new(dir.path()).unwrap();
        let disk = FaultDisk::with_seed(crash.clone(), 7);
        Self {
            _dir: dir,
            crash,
            disk,
            engine: None,
            history: History::default(),
            shards: vec![1],
            at,
        }
    }

    /// Opens; an error is fine while there are faults.
    fn open(&mut self) {
        if let Some(engine) = self.engine.take() {
            // Closing makes a checkpoint, which may fail.
            let _ = engine.close();
        }
        self.engine = Engine::open_on(self.disk.clone(), options()).ok();
        if let Some(engine) = &self.engine {
            // What the last life had not made durable may be gone now, and stays gone.
            let count = self.history.check(&contents(engine), 0, &self.at);
            self.history.keep(count);
            self.history.acknowledged(Lsn(u64::MAX), 0);
            let shards = engine.shards().len();
            assert!(self.shards.contains(&shards), "{}: {shards} shards", self.at);
            self.shards = vec![shards];
        }
    }

    /// What a write did: applied, or refused without a trace.
    fn wrote(&mut self, result: vmemkv_engine::Result<Lsn>, change: Change, wait: bool) {
        let Some(engine) = &self.engine else { return };
        match result {
            Ok(lsn) => {
                self.history.applied(lsn, 0, change);
                if wait && engine.wait_durable(lsn).is_ok() {
                    self.history.acknowledged(lsn, 0);
                }
            }
            Err(error) => {
                for (key, _) in &change {
                    // Durable data is read, also when read-only; what was applied last may be
                    // not durable, and then the answer is an error.
                    match engine.get(key) {
                        Ok(found) => assert_eq!(
                            found.as_ref(),
                            self.history.model.get(key),
                            "{}: {error} left a trace",
                            self.at
                        ),
                        Err(other) => {
                            assert_eq!(other.kind(), ErrorKind::ReadOnly, "{}: {other}", self.at);
                        }
                    }
                }
            }
        }
    }

    fn put(&mut self, key: &str, value: &[u8], wait: bool) {
        let Some(engine) = &self.engine else { return };
        let result = engine.put(key.as_bytes(), value, &Condition::None).map(|w| w.lsn);
        self.wrote(result, vec![(key.into(), Some(value.to_vec()))], wait);
    }

    fn delete(&mut self, key: &str, wait: bool) {
        let Some(engine) = &self.engine else { return };
        let result = engine.delete(key.as_bytes(), &Condition::None).map(|w| w.lsn);
        self.wrote(result, vec![(key.into(), None)], wait);
    }

    fn batch(&mut self, keys: &[&str], value: &[u8]) {
        let Some(engine) = &self.engine else { return };
        let put = |key: &&str| Operation::Put { key: (*key).into(), value: value.to_vec() };
        let result = engine.write_batch(&keys.iter().map(put).collect::<Vec<_>>());
        let change = keys.iter().map(|key| ((*key).into(), Some(value.to_vec()))).collect();
        self.wrote(result, change, true);
    }

    fn delete_range(&mut self, from: &str, to: &str) {
        let Some(engine) = &self.engine else { return };
        let range = KeyRange::new(from, to);
        let result = engine.delete_range(&range, 100).map(|deleted| deleted.lsn);
        let gone = self.history.model.keys().filter(|key| range.contains(key));
        let change: Change = gone.map(|key| (key.clone(), None)).collect();
        if change.is_empty() && result.is_ok() {
            return;
        }
        self.wrote(result, change, true);
    }

    fn checkpoint(&mut self) {
        if let Some(engine) = &self.engine {
            let _ = engine.checkpoint();
        }
    }

    /// Splits the only shard at a key, or merges the two that there are. What an error leaves is the
    /// one or the other; a change that returned stays.
    fn change_shards(&mut self, at: &str) {
        let Some(engine) = &self.engine else { return };
        let shards = engine.shards();
        let (operation, epoch) =
            (shards.iter().map(|s| s.id.0).max().unwrap() + 1, shards[0].epoch + 1);
        let result = match &shards[..] {
            [left, right] => engine.merge_shards(&MergeShards {
                operation,
                left: left.id,
                right: right.id,
                merged: ShardId(operation),
                epoch,
            }),
            _ => engine.split_shard(&SplitShard {
                operation,
                shard: shards[0].id,
                key: at.into(),
                left: ShardId(operation),
                right: ShardId(operation + 1),
                epoch,
            }),
        };
        let before = shards.len();
        match result {
            Ok(_) => self.shards = vec![3 - before],
            // Refused before anything was changed: nothing that comes later can make it so.
            Err(_) if engine.shards().len() == before => {}
            Err(_) => self.shards.push(3 - before),
        }
    }

    /// Some records move out of segments whose large values are dead; an error is fine.
    fn defragment(&mut self) {
        let Some(engine) = &self.engine else { return };
        let options = DefragmentOptions { min_dead_ratio: 0.001, max_bytes: 0 };
        let done = engine.defragment(&options, &|_| Continue::Yes);
        if self.disk.failed() == 0 {
            assert!(done.unwrap().records_moved > 0, "{}: nothing to do", self.at);
        }
    }

    /// The workload. Large values open a second value segment and roll the log.
    fn run(&mut self) {
        self.open();
        for i in 0..4 {
            self.put(&format!("a{i}"), &[i; 100], i % 2 == 0);
        }
        self.checkpoint();
        self.put("big1", &vec![1; 5 << 20], true);
        self.change_shards("b");
        self.put("a1", b"inline", false);
        self.put("a2", &[9; 90], true);
        self.put("big2", &vec![2; 5 << 20], true);
        if let Some(engine) = &self.engine {
            let _ = engine.reorganize(None);
        }
        self.delete("a3", true);
        self.batch(&["b1", "b2", "b3"], &[5; 3000]);
        self.checkpoint();
        self.change_shards("");
        self.delete_range("b", "b3");
        self.put("big1", &vec![3; 4 << 20], true);
        self.open();
        self.change_shards("a2");
        self.put("c", &[6; 500], true);
        self.checkpoint();
        self.defragment();
        self.put("a2", &[8; 90], true);
        self.checkpoint();
        self.put("d", &[7; 500], true);
    }

    /// The disk is well again: the engine is healthy and complete, or read-only until reopened.
    fn heal(&mut self) {
        self.disk.heal();
        if let Some(engine) = &self.engine {
            match engine.stats().state {
                State::Healthy => {
                    put_durable(engine, b"healed", &[1; 50]);
                    self.history.applied(Lsn(0), 0, vec![(b"healed".into(), Some(vec![1; 50]))]);
                    self.history.acknowledged(Lsn(u64::MAX), 0);
                    engine.checkpoint().unwrap_or_else(|error| panic!("{}: {error}", self.at));
                    assert!(contents(engine) == self.history.model, "{}: healed", self.at);
                }
                State::ReadOnly { reason } => {
                    assert!(!reason.is_empty());
                    let error = engine.put(b"x", b"y", &Condition::None).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{}", self.at);
                    assert!(error.message().contains(&reason), "{}: {error}", self.at);
                    assert_eq!(engine.checkpoint().unwrap_err().kind(), ErrorKind::ReadOnly);
                }
                other => panic!("{}: {other:?}", self.at),
            }
        }
        // The power goes now, before anything is closed.
        let cut = fast_dir();
        let image = cut.path().join("image");
        let disk = support::cut_to(&self.crash, None, &image, &PowerCut::strict());
        self.check(disk, "after a power cut");
        drop(self.engine.take());
        let disk = self.disk.clone();
        self.check(disk, "after a reopen");
    }

    fn check(&self, disk: Arc<dyn vmemkv_engine::io::Disk>, when: &str) {
        let at = format!("{} {when}", self.at);
        let engine = Engine::open_on(disk, options());
        let engine = engine.unwrap_or_else(|error| panic!("{at}: open: {error:?}"));
        self.history.check(&contents(&engine), 0, &at);
        let shards = engine.shards();
        assert!(self.shards.contains(&shards.len()), "{at}: {shards:?}, not {:?}", self.shards);
        verify(&engine, &at);
        put_durable(&engine, b"zz", b"new");
        engine.checkpoint().unwrap();
    }
}

/// How many disk operations the workload has.
fn operations() -> u64 {
    let mut run = Faulty::new("without faults".into());
    run.run();
    run.disk.count_all()
}

/// One in `step` operations, beginning with another one each time; every one with
/// `VMEMKV_ALL_FAULTS=1`.
fn sweep(name: &str, step: usize, fault: impl Fn(u64) -> Fault) {
    let all = std::env::var_os("VMEMKV_ALL_FAULTS").is_some();
    let step = if all { 1 } else { step };
    let first = seed(name) % step as u64;
    watchdog(name, if all { 3600 } else { 300 }, || {
        let count = operations();
        assert!(count > 100, "{count} operations");
        for n in (first..count).step_by(step) {
            let mut run = Faulty::new(format!("{name}: operation {n} of {count}"));
            run.disk.inject(fault(n));
            run.run();
            run.heal();
        }
    });
}

#[test]
fn any_operation_fails_once_with_an_io_error() {
    sweep("EIO once", 4, |n| Fault::new(Io::ALL, libc::EIO).at(n).short_writes());
}

#[test]
fn any_operation_fails_once_for_want_of_space() {
    sweep("ENOSPC once", 4, |n| Fault::new(Io::ALL, libc::ENOSPC).at(n).short_writes());
}

#[test]
fn the_disk_is_full_from_some_operation_on() {
    sweep("ENOSPC for good", 8, |n| {
        Fault::new(Io::SPACE, libc::ENOSPC).at(n / 2).forever().short_writes()
    });
}

#[test]
fn the_disk_is_broken_from_some_operation_on() {
    sweep("EIO for good", 10, |n| Fault::new(Io::ALL, libc::EIO).at(n).forever());
}

#[test]
fn every_sync_fails_in_turn() {
    watchdog("every sync", 300, || {
        for n in 0.. {
            let errno = [libc::EIO, libc::ENOSPC][n as usize % 2];
            let mut run = Faulty::new(format!("sync {n} fails with {errno}"));
            run.disk.inject(Fault::new(&[Io::Sync, Io::SyncDir], errno).at(n));
            run.run();
            let failed = run.disk.failed() > 0;
            run.heal();
            if !failed {
                break;
            }
        }
    });
}

/// The identity too: after a failed sync nothing is written any more, until a reopen.
#[test]
fn a_failed_sync_of_the_identity_makes_the_engine_read_only() {
    for operation in [Io::Sync, Io::SyncDir, Io::Rename] {
        let dir = fast_dir();
        let crash = CrashDisk::new(dir.path()).unwrap();
        let disk = FaultDisk::with_seed(crash, 7);
        let engine = Engine::open_on(disk.clone(), options()).unwrap();
        put_durable(&engine, b"k", b"v");
        let mut identity = engine.identity();
        identity.cluster_id = 7;
        // Full: nothing was replaced, so nothing is in doubt.
        disk.inject(Fault::new(&[Io::Write], libc::ENOSPC));
        let error = engine.set_identity(identity).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
        assert_eq!(engine.stats().state, State::Healthy);
        disk.inject(Fault::new(&[operation], libc::EIO));
        let error = engine.set_identity(identity).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{operation:?}: {error}");
        assert_eq!(engine.identity().cluster_id, 0);
        disk.heal();
        let State::ReadOnly { reason } = engine.stats().state else {
            panic!("{operation:?}: {:?}", engine.stats().state)
        };
        assert!(reason.contains("identity could not be stored"), "{reason}");
        let kind = |result: vmemkv_engine::Result<()>| result.unwrap_err().kind();
        assert_eq!(kind(engine.set_identity(identity)), ErrorKind::ReadOnly);
        let write = engine.put(b"k", b"w", &Condition::None).map(drop);
        assert_eq!(kind(write), ErrorKind::ReadOnly);
        assert_eq!(engine.get(b"k").unwrap().unwrap(), b"v");
        drop(engine);
        let engine = Engine::open_on(disk, options()).unwrap();
        assert_eq!(engine.stats().state, State::Healthy);
        engine.set_identity(identity).unwrap();
        assert_eq!(engine.identity().cluster_id, 7);
    }
}
