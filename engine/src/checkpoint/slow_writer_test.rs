//! Writers that dawdle under their stripe, which no test from outside can make them do: F1, and
//! what a freeze owes to whoever began before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::api::Condition;
use crate::core::Core;
use crate::io::testing::{CrashDisk, PowerCut};
use crate::options::Options;
use crate::recovery::{self, load_manifest};
use crate::store::Planned;
use crate::sync::WordIndex;
use crate::types::Lsn;
use crate::value_log::ValueLog;
use crate::wal::Op;

struct Bench {
    dir: tempfile::TempDir,
    disk: Arc<CrashDisk>,
    core: Arc<Core>,
}

fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let disk = CrashDisk::new(dir.path().join("data")).unwrap();
    let core = Arc::new(recovery::open(disk.clone(), Options::for_tests()).unwrap());
    Bench { dir, disk, core }
}

fn put(core: &Core, key: &[u8], value: &[u8]) -> Lsn {
    let lsn = core.put(key, value, &Condition::None).unwrap().lsn;
    core.wal.wait(lsn).unwrap();
    lsn
}

/// Sets the flag also when a check fails, so that the other threads end.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// F1. Rule: the base rises only after every writer that may have looked before has let go of its
/// stripe. So whoever holds a stripe never finds its place below the base.
#[test]
fn f01_the_base_waits_for_whoever_holds_a_stripe() {
    let Bench { core, dir, .. } = bench();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for thread in 0..3u8 {
            let (core, stop) = (&core, &stop);
            scope.spawn(move || {
                let _stop = StopOnDrop(stop);
                let key = [b'w', thread];
                let log = &core.store.value_log;
                let mut last = None;
                while !stop.load(Ordering::Relaxed) {
                    let held = core.stripes.lock([WordIndex::of(&key)]);
                    let in_place =
                        last.filter(|at| log.is_tail(*at) && ValueLog::fits(*at, 2, 100));
                    let allocation = log.allocate(2, 100).unwrap();
                    for _ in 0..20 {
                        std::thread::yield_now();
                    }
                    let new = log.write(allocation, &key, &[thread; 100], 0);
                    assert!(log.is_above_base(new), "the base passed an allocation");
                    if let Some(at) = in_place {
                        assert!(log.is_above_base(at), "the base passed an update in place");
                        log.overwrite(at, &key, &[thread; 90], 0);
                    }
                    drop(held);
                    if let Some(old) = last.replace(new) {
                        log.sub_live(old);
                    }
                }
                last.iter().for_each(|at| log.sub_live(*at));
            });
        }
        for _ in 0..60 {
            core.checkpoint().unwrap();
        }
    });
    drop(dir);
}

/// A writer has loaded the regions and dawdles; `structural` freezes the shard meanwhile; another
/// key is written after the freeze; only then the writer changes what it has loaded. Answers the
/// LSNs of the slow write and of the other.
fn freeze_meets_a_slow_writer(
    core: &Core,
    slow: (&[u8], Option<&[u8]>),
    structural: impl FnOnce() + Send,
) -> (Lsn, Lsn) {
    let (key, value) = slow;
    let word = WordIndex::of(key);
    // A key under another stripe.
    let other = (0..=u8::MAX).map(|i| [b'o', i]).find(|other| {
        let (a, b) = (WordIndex::of(other), word);
        a != b && key_stripe(a) != key_stripe(b)
    });
    let other = other.unwrap();
    let ops = [value.map_or(Op::delete(key), |value| Op::put(key, value))];
    let permit = core.wal.acquire(8192).unwrap();
    let held = core.stripes.lock([word]);
    let Ok(Planned::Ready(plan)) = core.store.plan(key, value) else { panic!("no plan") };
    std::thread::scope(|scope| {
        let (done, ended) = channel();
        scope.spawn(move || {
            structural();
            done.send(()).unwrap();
        });
        let is_frozen = || core.store.shard_of(key).unwrap().load().frozen.is_some();
        while !is_frozen() && ended.try_recv().is_err() {
            std::thread::yield_now();
        }
        let lsn_of_other = put(core, &other, &[5; 100]);
        // It must not get on; a moment is enough for it to if it could.
        let early = ended.recv_timeout(Duration::from_millis(60));
        let shard = plan.shard.clone();
        let in_flight = core.in_flight(held);
        in_flight.apply(plan);
        let lsn = core.log(permit, &[(&shard, &ops)]);
        in_flight.commit(lsn);
        assert!(early.is_err(), "nobody waited for the holder of a stripe");
        ended.recv().unwrap();
        (lsn, lsn_of_other)
    })
}

/// Stripes are not public: words that differ modulo 1024 lie under different ones.
fn key_stripe(word: WordIndex) -> u32 {
    let text = format!("{word:?}");
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u32>().unwrap() % 1024
}

/// Rules: a freeze passes every stripe before it merges; `checkpoint_lsn` is from before the freeze;
/// `freeze_lsn` is from behind the pass.
#[test]
fn a_checkpoint_has_what_was_written_while_it_froze() {
    for value in [Some(&b"inline"[..]), Some(&[7; 300]), None] {
        for key in [&b"sorted"[..], b"recent", b"new"] {
            let Bench { core, disk, dir } = bench();
            put(&core, b"sorted", &[1; 300]);
            core.checkpoint().unwrap();
            put(&core, b"recent", &[1; 300]);
            if key == b"new" && value.is_none() {
                continue;
            }
            let (slow, other) = freeze_meets_a_slow_writer(&core, (key, value), || {
                core.checkpoint().unwrap();
            });
            let manifest = load_manifest(&*disk).unwrap();
            assert!(manifest.freeze_lsn >= slow, "the freeze ended before a writer did");
            let shown = core.get(key).unwrap();
            assert_eq!(shown.as_deref(), value);
            // The other one may be in the file or in the log, but not in neither.
            assert!(manifest.checkpoint_lsn <= other);
            disk.materialise(None, &dir.path().join("cut"), &PowerCut::strict()).unwrap();
            let cut = CrashDisk::new(dir.path().join("cut")).unwrap();
            let after = recovery::open(cut, Options::for_tests()).unwrap();
            assert_eq!(after.get(key).unwrap(), shown);
            let all = crate::api::ScanOptions::default();
            assert_eq!(after.scan(&all).unwrap(), core.scan(&all).unwrap());
        }
    }
}

#[test]
fn a_reorganize_has_what_was_written_while_it_froze() {
    for value in [Some(&b"inline"[..]), Some(&[7; 300]), None] {
        for key in [&b"sorted"[..], b"recent"] {
            let Bench { core, dir, .. } = bench();
            put(&core, b"sorted", &[1; 300]);
            core.reorganize(None).unwrap();
            put(&core, b"recent", &[1; 300]);
            freeze_meets_a_slow_writer(&core, (key, value), || core.reorganize(None).unwrap());
            assert_eq!(core.get(key).unwrap().as_deref(), value);
            core.reorganize(None).unwrap();
            assert_eq!(core.get(key).unwrap().as_deref(), value);
            drop(dir);
        }
    }
}
