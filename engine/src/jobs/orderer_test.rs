//! The trigger on an engine whose values are all taken for cold: what its thread would do, step by
//! step on a clock of the test's, and the thread itself.

use super::*;
use crate::api::{Condition, ScanOptions};
use crate::engine::Engine;
use crate::index::{RangeIter, Slot};
use crate::io::OsDisk;
use crate::options::Options;
use crate::recovery;
use crate::stats::CounterValues;
use crate::types::KeyRange;
use crate::value_log::Location;

/// Coprime to the step that spreads the puts.
const KEYS: u64 = 4001;

fn options() -> Options {
    Options { value_segment_bytes: (8 << 20) + (16 << 10), ..Options::for_tests() }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

fn value(number: u64, version: u64) -> Vec<u8> {
    format!("{number} {version:0900}").into_bytes()
}

fn put(core: &Core, number: u64, version: u64) {
    core.put(&key(number), &value(number, version), &Condition::None).unwrap();
}

/// Records that were put in an order far from that of their keys, all base.
fn load(core: &Core) {
    for step in 0..KEYS {
        put(core, step * 1237 % KEYS, 0);
    }
    close_segment(core);
    core.store.value_log.all_cold.store(true, Ordering::Relaxed);
}

/// Fills the open segment up: it is left alone. What fills it is dead.
fn close_segment(core: &Core) {
    for _ in 0..2 {
        core.put(b"z", &vec![1; 5 << 20], &Condition::None).unwrap();
    }
    core.delete(b"z", &Condition::None).unwrap();
    core.checkpoint().unwrap();
}

fn loaded(options: Options) -> (tempfile::TempDir, Core) {
    let dir = tempfile::tempdir().unwrap();
    let core = recovery::open(Arc::new(OsDisk::new(dir.path())), options).unwrap();
    load(&core);
    (dir, core)
}

/// Scans everything as often.
fn scan(core: &Core, times: usize) {
    let options = ScanOptions { max_bytes: 64 << 20, ..ScanOptions::default() };
    for _ in 0..times {
        let chunk = core.scan(&options).unwrap();
        assert!(chunk.done && chunk.entries.len() as u64 == KEYS);
    }
}

/// Records that do not lie close behind the one with the key before.
fn jumps(core: &Core) -> usize {
    let mut locations = Vec::new();
    for shard in core.store.table.load_full().shards() {
        let bundle = shard.load();
        let mut entries = RangeIter::new(&bundle, KeyRange::all(), false);
        while let Some(item) = entries.next() {
            if let Slot::Value(at) = item.entry.decode() {
                locations.push(Location(at));
            }
        }
    }
    locations.windows(2).filter(|pair| !pair[1].is_close_behind(pair[0])).count()
}

fn counters(core: &Core) -> CounterValues {
    core.store.counters.snapshot()
}

fn check(core: &Core, version: impl Fn(u64) -> u64) {
    for number in 0..KEYS {
        assert_eq!(core.get(&key(number)).unwrap(), Some(value(number, version(number))));
    }
    assert_eq!(core.recount_live(), Vec::<String>::new());
}

/// A clock that is put forward.
struct Clock(Instant);

impl Clock {
    fn after(&mut self, seconds: u64) -> Instant {
        self.0 += Duration::from_secs(seconds);
        self.0
    }
}

#[test]
fn scans_that_pay_for_a_random_load_bring_a_rewrite_and_pay_no_more() {
    let (_dir, core) = loaded(options());
    let mut clock = Clock(Instant::now());
    let mut orderer = Orderer::new(clock.0);
    assert!(!orderer.step(&core, clock.after(100)), "nobody scans");
    scan(&core, 1);
    let paid = counters(&core).scan_cold_jumps;
    assert!(paid > KEYS / 2, "{paid}");
    assert!(!orderer.step(&core, clock.after(100)), "one scan is no reason");
    scan(&core, 4);
    assert!(orderer.step(&core, clock.after(1)));
    let after = counters(&core);
    assert!(after.order_runs == 1 && after.order_records >= KEYS, "{after:?}");
    assert!(after.order_bytes >= KEYS * 900 && core.stats().last_order_us > 0, "{after:?}");
    assert!(jumps(&core) < KEYS as usize / 100, "{}", jumps(&core));
    check(&core, |_| 0);
    let before = counters(&core).scan_cold_jumps;
    scan(&core, 4);
    let paid = counters(&core).scan_cold_jumps - before;
    assert!(paid < KEYS / 10, "{paid}");
    assert!(!orderer.step(&core, clock.after(100)));
}

#[test]
fn updates_bring_no_rewrite_before_they_have_paid_for_it() {
    let (_dir, core) = loaded(options());
    let mut clock = Clock(Instant::now());
    let mut orderer = Orderer::new(clock.0);
    scan(&core, 5);
    assert!(orderer.step(&core, clock.after(1)));
    let moved = counters(&core).order_records;
    // An eighth, far apart: enough that scans would pay for ever.
    let is_changed = |number: u64| number.is_multiple_of(8);
    (0..KEYS).filter(|number| is_changed(*number)).for_each(|number| put(&core, number, 1));
    close_segment(&core);
    assert!(jumps(&core) > KEYS as usize / 5);
    scan(&core, 40);
    for _ in 0..10 {
        scan(&core, 5);
        assert!(!orderer.step(&core, clock.after(100)));
    }
    assert_eq!(counters(&core).order_records, moved);
    for version in 2..4 {
        (0..KEYS)
            .filter(|number| is_changed(*number))
            .for_each(|number| put(&core, number, version));
    }
    close_segment(&core);
    scan(&core, 40);
    assert!(orderer.step(&core, clock.after(1)), "three changes for eight records");
    assert!(counters(&core).order_runs == 2);
    check(&core, |number| if is_changed(number) { 3 } else { 0 });
}

#[test]
fn nothing_is_rewritten_while_space_is_short_or_the_engine_closes() {
    let (_dir, core) = loaded(Options { capacity_bytes: Some(64 << 20), ..options() });
    let mut clock = Clock(Instant::now());
    let mut orderer = Orderer::new(clock.0);
    scan(&core, 5);
    for _ in 0..3 {
        assert!(!orderer.step(&core, clock.after(100)));
    }
    assert_eq!(counters(&core).order_runs, 0);

    let (_dir, core) = loaded(options());
    scan(&core, 5);
    let paid = || core.store.table.load().shards()[0].cold_scans.jumps();
    let before = (paid(), jumps(&core));
    core.requests.close();
    let mut orderer = Orderer::new(clock.0);
    assert!(orderer.step(&core, clock.after(1)));
    assert_eq!(counters(&core).order_records, 0);
    assert_eq!((paid(), jumps(&core)), before, "as if nothing had been");
    check(&core, |_| 0);
}

#[test]
fn the_thread_that_reclaims_space_does_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { background: true, ..options() };
    let engine = Engine::open_on(Arc::new(OsDisk::new(dir.path())), options).unwrap();
    let core = &*engine.core;
    load(core);
    let until = Instant::now() + Duration::from_secs(60);
    while counters(core).order_records < KEYS {
        assert!(Instant::now() < until, "{:?}", counters(core));
        scan(core, 1);
    }
    assert!(jumps(core) < KEYS as usize / 100, "{}", jumps(core));
    for number in 0..KEYS {
        assert_eq!(engine.get(&key(number)).unwrap(), Some(value(number, 0)));
    }
    engine.close().unwrap();
}
