//! Putting records in order, seen from the inside: where they lie before and after.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::api::{Condition, Continue};
use crate::io::OsDisk;
use crate::io::testing::{CrashDisk, Fault, FaultDisk, Operation, PowerCut};
use crate::options::Options;
use crate::recovery;

/// Coprime to the step that spreads the puts.
const KEYS: u64 = 4001;

struct Bench {
    dir: tempfile::TempDir,
    disk: Arc<CrashDisk>,
    core: Arc<Core>,
}

impl Bench {
    /// What a power cut leaves, after as many syncs or now.
    fn after(&self, point: Option<usize>, cut: &Path) -> Core {
        self.disk.materialise(point, cut, &PowerCut::strict()).unwrap();
        let disk = CrashDisk::new(cut).unwrap();
        recovery::open(disk, options()).unwrap()
    }
}

/// One kind of record in all segments.
fn options() -> Options {
    Options { write_once_bytes: usize::MAX, ..Options::for_tests() }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    format!("{number:0900}").into_bytes()
}

fn put(core: &Core, number: u64, value: &[u8]) {
    core.put(&key(number), value, &Condition::None).unwrap();
}

fn loaded() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let disk = CrashDisk::new(dir.path().join("data")).unwrap();
    let core = Arc::new(recovery::open(disk.clone(), options()).unwrap());
    load(&core);
    Bench { dir, disk, core }
}

/// Records that were put in an order far from that of their keys, all base.
fn load(core: &Core) {
    for step in 0..KEYS {
        let number = step * 1237 % KEYS;
        put(core, number, &value(number));
    }
    // Fills the segment up: one that is being written is left alone.
    for number in 0..200 {
        core.put(format!("z{number}").as_bytes(), &[1; 100_000], &Condition::None).unwrap();
    }
    core.checkpoint().unwrap();
}

/// Where the records are, in key order.
fn disorder(core: &Core) -> Disorder {
    let all: HashSet<u32> = (0..core.store.value_log.segments_made()).collect();
    Disorder::of(&core.collect(&KeyRange::new("key", "kez"), &all, &mut |_| true).locations)
}

fn in_order(core: &Core) -> DefragmentReport {
    core.put_in_order(&DefragmentOptions::default(), &KeyRange::all(), &|_| Continue::Yes).unwrap()
}

fn check(core: &Core, expected: &dyn Fn(u64) -> Option<Vec<u8>>) {
    for number in 0..KEYS {
        let found = core.get(&key(number)).unwrap();
        assert!(found == expected(number), "{number}");
    }
    assert_eq!(core.recount_live(), Vec::<String>::new());
}

#[test]
fn after_a_random_load_records_lie_in_key_order() {
    let bench = loaded();
    let before = disorder(&bench.core);
    assert_eq!(before.records, KEYS);
    assert!(before.jumps > KEYS * 95 / 100 && before.is_worth_a_rewrite(), "{before:?}");
    let report = in_order(&bench.core);
    assert!(report.records_moved >= KEYS && !report.cancelled, "{report:?}");
    let after = disorder(&bench.core);
    assert_eq!((after.records, after.bytes), (before.records, before.bytes));
    assert!(after.jumps < KEYS / 100 && !after.is_worth_a_rewrite(), "{after:?}");
    check(&bench.core, &|number| Some(value(number)));
    // Neither now nor once the copies may move is there more to do.
    assert_eq!(in_order(&bench.core).records_moved, 0);
    bench.core.checkpoint().unwrap();
    assert_eq!(in_order(&bench.core).records_moved, 0);
    check(&bench.core, &|number| Some(value(number)));
}

/// F3 and F4, in a rewrite: what changed between the copy and the repoint stays changed, and a
/// power cut before or after the next checkpoint finds the same.
#[test]
fn f03_what_changes_during_a_rewrite_is_not_repointed() {
    let expected = |number: u64| match number % 10 {
        3 => Some(vec![7; 950]),
        5 => None,
        _ => Some(value(number)),
    };
    for step in [DefragmentStep::Read, DefragmentStep::Write, DefragmentStep::Repoint] {
        let bench = loaded();
        let core = &bench.core;
        let done = AtomicBool::new(false);
        let report =
            core.put_in_order(&DefragmentOptions::default(), &KeyRange::all(), &|progress| {
                if progress.step == step && !done.swap(true, Ordering::Relaxed) {
                    for number in 0..KEYS {
                        match number % 10 {
                            3 => put(core, number, &[7; 950]),
                            5 => {
                                core.delete(&key(number), &Condition::None).unwrap();
                            }
                            _ => {}
                        }
                    }
                }
                Continue::Yes
            });
        let report = report.unwrap();
        assert!(report.records_skipped >= KEYS / 5 && report.records_moved > 0, "{report:?}");
        check(core, &expected);
        let lsn = core.put(b"last", b"one", &Condition::None).unwrap().lsn;
        core.wal.wait(lsn).unwrap();
        for life in ["before", "after"] {
            let cut = bench.dir.path().join(life);
            check(&bench.after(None, &cut), &expected);
            core.checkpoint().unwrap();
        }
    }
}

#[test]
fn a_rewrite_ends_when_its_caller_says_so() {
    for step in [DefragmentStep::Walk, DefragmentStep::Read, DefragmentStep::Repoint] {
        let bench = loaded();
        let before = disorder(&bench.core);
        let report =
            bench.core.put_in_order(&DefragmentOptions::default(), &KeyRange::all(), &|progress| {
                if progress.step == step { Continue::No } else { Continue::Yes }
            });
        let report = report.unwrap();
        assert!(report.cancelled && report.records_moved == 0, "{report:?}");
        assert_eq!(disorder(&bench.core), before);
        check(&bench.core, &|number| Some(value(number)));
        // Nothing is held on to: the next call does it all.
        assert!(in_order(&bench.core).records_moved >= KEYS);
    }
}

/// Whatever a rewrite and the checkpoint behind it have synced when the power goes, nothing of
/// what was there before is lost.
#[test]
fn a_power_cut_at_any_sync_of_a_rewrite_loses_nothing() {
    let bench = loaded();
    let first = bench.disk.crash_points();
    assert!(in_order(&bench.core).records_moved >= KEYS);
    bench.core.checkpoint().unwrap();
    let points = first..bench.disk.crash_points();
    assert!(points.len() >= 3, "{points:?}");
    for point in points {
        let cut = bench.dir.path().join(format!("cut{point}"));
        check(&bench.after(Some(point), &cut), &|number| Some(value(number)));
        std::fs::remove_dir_all(&cut).unwrap();
    }
}

/// Space is reclaimed between two slices, not at the end.
#[test]
fn nothing_is_held_between_two_slices() {
    let bench = loaded();
    let core = &bench.core;
    let (between, within) = (Cell::new(0), Cell::new(0));
    // The second slice would be another one.
    let options = DefragmentOptions { max_bytes: 2 << 20, ..<_>::default() };
    let report = core.put_in_order(&options, &KeyRange::all(), &|progress| {
        let is_free = core.defragmenting.try_lock().is_some();
        assert_eq!(is_free, progress.step == DefragmentStep::Done, "{progress:?}");
        let count = if is_free { &between } else { &within };
        count.set(count.get() + 1);
        if is_free {
            let all = DefragmentOptions { min_dead_ratio: 0.001, max_bytes: 0 };
            assert!(core.defragment(&all, &|_| Continue::Yes).unwrap().records_moved > 0);
        }
        Continue::Yes
    });
    let report = report.unwrap();
    assert!(between.get() == 1 && within.get() > 3, "{between:?} {within:?}");
    assert!(
        (2 << 20..3 << 20).contains(&report.bytes_moved) && !report.short_of_space,
        "{report:?}"
    );
    check(core, &|number| Some(value(number)));
}

/// What copies would take from the reserve, or let dead space grow beyond what it may be.
#[test]
fn a_rewrite_ends_when_space_is_short_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { capacity_bytes: Some(83 << 20), ..options() };
    let core = recovery::open(CrashDisk::new(dir.path()).unwrap(), options).unwrap();
    load(&core);
    let report = in_order(&core);
    assert!(report.short_of_space && report.records_moved == 0 && !report.cancelled, "{report:?}");
    check(&core, &|number| Some(value(number)));

    // There is disk enough: here dead space is as much as it may be, spread over segments.
    let bench = loaded();
    let core = &bench.core;
    let large = |number: u64| format!("y{number:02}").into_bytes();
    for number in 0..15 {
        core.put(&large(number), &vec![1; 5 << 20], &Condition::None).unwrap();
    }
    core.checkpoint().unwrap();
    assert!(slice_bytes(&core.order_room()).is_some());
    for number in (0..15).filter(|number| number % 3 != 0) {
        core.delete(&large(number), &Condition::None).unwrap();
    }
    core.checkpoint().unwrap();
    let report = in_order(core);
    assert!(report.short_of_space && report.records_moved == 0, "{report:?}");
    // The reclaimed space is there for it.
    let all = DefragmentOptions { min_dead_ratio: 0.001, max_bytes: 0 };
    core.defragment(&all, &|_| Continue::Yes).unwrap();
    core.checkpoint().unwrap();
    assert!(in_order(core).records_moved >= KEYS);
    check(core, &|number| Some(value(number)));
}

/// A full disk ends a rewrite, and any other fault is an error; neither loses anything.
#[test]
fn any_operation_of_a_rewrite_may_fail() {
    let (mut short, mut failed) = (0, 0);
    for number in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        let disk = FaultDisk::new(Arc::new(OsDisk::new(dir.path())));
        let core = recovery::open(disk.clone(), options()).unwrap();
        load(&core);
        let errno = if number % 2 == 0 { libc::ENOSPC } else { libc::EIO };
        disk.inject(Fault::new(Operation::ALL, errno).at(number / 2));
        let done =
            core.put_in_order(&DefragmentOptions::default(), &KeyRange::all(), &|_| Continue::Yes);
        disk.heal();
        match done {
            Ok(report) if report.short_of_space => short += 1,
            Ok(report) => {
                assert!(report.records_moved > 0 || !report.problems.is_empty(), "{report:?}");
            }
            Err(_) => failed += 1,
        }
        check(&core, &|number| Some(value(number)));
        drop(core);
        let core = recovery::open(disk, options()).unwrap();
        check(&core, &|number| Some(value(number)));
    }
    assert!(short > 0 && failed > 0, "{short} {failed}");
}
