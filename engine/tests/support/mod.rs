//! What the tests of crashes, faults and races share: seeds, a watchdog, a history of writes to
//! compare a recovered engine with, and a disk that stops where it is told ([`GateDisk`]).
//!
//! Invariant: nothing here sleeps to wait for an event; waiting is for a channel or a condition.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

mod gate;
mod history;
mod scribble;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

pub(crate) use gate::GateDisk;
pub(crate) use history::{Change, History, Model, difference};
pub(crate) use scribble::{cut_to, killed_to, scribble};

use vmemkv_engine::io::testing::{CrashDisk, PowerCut};
use vmemkv_engine::{Condition, Engine, Lsn, Options, ScanOptions};

/// The seed of a random test: from `VMEMKV_SEED`, or the clock. Printed either way.
pub(crate) fn seed(test: &str) -> u64 {
    let given = std::env::var("VMEMKV_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64 & 0xffff_ffff)
    });
    println!("{test}: VMEMKV_SEED={seed}");
    seed
}

/// Runs `body` and ends the process with a message if it takes longer than `seconds`: a hang is a
/// failure, not a wait for whoever looks at the screen.
pub(crate) fn watchdog<R>(name: &str, seconds: u64, body: impl FnOnce() -> R) -> R {
    let (done, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{name}: hangs, or takes longer than {seconds} s");
                std::process::abort();
            }
        });
        let answer = body();
        drop(done);
        answer
    })
}

/// A temporary folder, in memory where the system has such: these tests write many images, and
/// their disks sync nothing for real.
pub(crate) fn fast_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Small segments, so that a test of a few hundred writes rolls and reuses them.
pub(crate) fn small() -> Options {
    Options {
        wal_segment_bytes: 16 << 10,
        value_segment_bytes: (8 << 20) + (16 << 10),
        value_log_max_bytes: 1 << 30,
        checkpoint_wal_bytes: 64 << 10,
        wal_keep_bytes: 32 << 10,
        ..Options::for_tests()
    }
}

/// Sets a key, without waiting.
pub(crate) fn put(engine: &Engine, key: &[u8], value: &[u8]) -> Lsn {
    engine.put(key, value, &Condition::None).unwrap().lsn
}

/// Removes a key, without waiting.
pub(crate) fn delete(engine: &Engine, key: &[u8]) -> Lsn {
    engine.delete(key, &Condition::None).unwrap().lsn
}

/// Sets a key and waits until it is durable.
pub(crate) fn put_durable(engine: &Engine, key: &[u8], value: &[u8]) -> Lsn {
    let lsn = put(engine, key, value);
    engine.wait_durable(lsn).unwrap();
    lsn
}

/// An engine behind a gate, on a disk whose power can be cut.
pub(crate) struct Bench {
    pub(crate) engine: Engine,
    pub(crate) disk: Arc<GateDisk>,
    pub(crate) crash: Arc<CrashDisk>,
    pub(crate) options: Options,
    images: AtomicUsize,
    /// Last: the folder goes when nobody writes there any more.
    pub(crate) dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new(options: Options) -> Self {
        let dir = fast_dir();
        let crash = CrashDisk::new(dir.path().join("data")).unwrap();
        let disk = GateDisk::new(crash.clone());
        let engine = Engine::open_on(disk.clone(), options.clone()).unwrap();
        Self { dir, crash, disk, engine, options, images: AtomicUsize::new(0) }
    }

    /// Where the files are.
    pub(crate) fn crash_root(&self) -> &std::path::Path {
        vmemkv_engine::io::Disk::root(&*self.crash)
    }

    /// A folder name that is not used yet.
    pub(crate) fn fresh(&self) -> std::path::PathBuf {
        self.dir.path().join(self.images.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// What a power cut leaves now.
    pub(crate) fn cut(&self, cut: &PowerCut) -> Arc<CrashDisk> {
        let image = self.fresh();
        cut_to(&self.crash, None, &image, cut)
    }

    /// Opens and verifies what a power cut leaves now.
    pub(crate) fn after(&self, cut: &PowerCut, at: &str) -> Engine {
        let engine = Engine::open_on(self.cut(cut), self.options.clone());
        let engine = engine.unwrap_or_else(|error| panic!("{at}: open: {error:?}"));
        verify(&engine, at);
        engine
    }

    /// Fails unless the worst power cut leaves all that the engine shows now.
    pub(crate) fn survives(&self, at: &str) {
        let expected = contents(&self.engine);
        let found = contents(&self.after(&PowerCut::strict(), at));
        assert!(found == expected, "{at}: {}", difference(&found, &expected));
    }
}

/// Sets a flag when dropped: threads that work until it is set end also when a check fails.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives something that must not happen a chance to happen: waits for a message for a moment.
pub(crate) fn a_moment<T>(receiver: &Receiver<T>) -> Option<T> {
    receiver.recv_timeout(Duration::from_millis(60)).ok()
}

/// Everything that the engine holds.
pub(crate) fn contents(engine: &Engine) -> Model {
    let mut options = ScanOptions::default();
    let mut found = Model::new();
    loop {
        let chunk = engine.scan(&options).unwrap();
        found.extend(chunk.entries);
        if chunk.done {
            return found;
        }
        options.range.start = chunk.covered_to;
    }
}

/// Fails unless every record and file is whole.
pub(crate) fn verify(engine: &Engine, at: &str) {
    let report = engine.verify(&|| false).unwrap();
    assert_eq!(report.problems, Vec::<String>::new(), "{at}");
}

/// The T1 files of a data directory.
pub(crate) fn index_files(root: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(root.join("t1"))
        .map(|dir| dir.map(|e| e.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}
