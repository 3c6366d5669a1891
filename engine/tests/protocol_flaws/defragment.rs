//! Schedules of defragment: F2 to F6. What a callback between its steps, or a gate in the disk,
//! forces to come in between.

use std::cell::Cell;

use vmemkv_engine::io::testing::{Keep, Operation as Io, PowerCut};
use vmemkv_engine::{Continue, DefragmentOptions, DefragmentProgress, DefragmentReport};
use vmemkv_engine::{DefragmentStep, Engine, Options, Sharding};

use crate::support::{
    Bench, Model, contents, delete, difference, put, put_durable, small, verify, watchdog,
};

const ANY: DefragmentOptions = DefragmentOptions { min_dead_ratio: 0.001, max_bytes: 0 };
const SEGMENT: u64 = (8 << 20) + (16 << 10);
/// A power cut that takes only names: what was stored through a mapping is there.
const KEEP: PowerCut = PowerCut { seed: 1, keep: Keep::Everything, unit: 4096 };

fn key(number: usize) -> Vec<u8> {
    format!("k{number:04}").into_bytes()
}

/// Several segments of 100 KB values in two shards, half of them dead, all base, all clean.
fn half_dead() -> Bench {
    let boundaries = vec![key(150)];
    let bench = Bench::new(Options { sharding: Sharding::Alone { boundaries }, ..roomy() });
    let engine = &bench.engine;
    for number in 0..300 {
        put(engine, &key(number), &vec![number as u8; 100_000]);
    }
    for number in (0..300).filter(|number| number % 2 == 0) {
        delete(engine, &key(number));
    }
    engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
    engine.checkpoint().unwrap();
    bench
}

fn roomy() -> Options {
    Options { wal_segment_bytes: 1 << 20, checkpoint_wal_bytes: 64 << 20, ..small() }
}

fn all(engine: &Engine, control: &dyn Fn(DefragmentProgress) -> Continue) -> DefragmentReport {
    engine.defragment(&ANY, control).unwrap()
}

/// Calls `then` at the first step of this kind.
fn at_first(step: DefragmentStep, then: impl Fn()) -> impl Fn(DefragmentProgress) -> Continue {
    let done = Cell::new(false);
    move |progress| {
        if progress.step == step && !done.replace(true) {
            then();
        }
        Continue::Yes
    }
}

/// Writes over everything that is free.
fn reuse(engine: &Engine) {
    for number in 0..300 {
        put_durable(engine, format!("new{number}").as_bytes(), &vec![0xee; 100_000]);
    }
}

/// What the engine says is what a crash leaves, now and after a checkpoint and reuse.
fn holds(bench: &Bench, expected: &Model, at: &str) {
    let engine = &bench.engine;
    let same = |found: &Model, at: &str| {
        assert!(found == expected, "{at}: {}", difference(found, expected));
    };
    same(&contents(engine), at);
    assert_eq!(engine.recount_live(), Vec::<String>::new(), "{at}");
    for cut in [PowerCut::strict(), KEEP] {
        same(&contents(&bench.after(&cut, at)), at);
    }
    engine.checkpoint().unwrap();
    reuse(engine);
    let mut now = contents(engine);
    now.retain(|key, _| !key.starts_with(b"new"));
    same(&now, at);
    verify(engine, at);
    for cut in [PowerCut::strict(), KEEP] {
        let mut found = contents(&bench.after(&cut, at));
        found.retain(|key, _| !key.starts_with(b"new"));
        same(&found, at);
    }
}

/// Without any schedule: records move, segments are freed, the disk is used again.
#[test]
fn emptied_segments_are_freed_by_the_next_checkpoint() {
    watchdog("defragment", 120, || {
        let bench = half_dead();
        let engine = &bench.engine;
        let expected = contents(engine);
        let before = engine.stats().value_log;
        let report = all(engine, &|_| Continue::Yes);
        assert!(report.segments >= 3 && report.problems.is_empty(), "{report:?}");
        assert!(report.bytes_freed > 10 << 20 && !report.cancelled, "{report:?}");
        let emptied = engine.stats();
        assert!(emptied.value_log.dead_bytes >= before.dead_bytes, "dead, not yet free");
        engine.checkpoint().unwrap();
        let after = engine.stats();
        assert_eq!(after.counters.value_segments_freed, report.segments);
        assert!(after.value_log.segments < before.segments, "{after:?}");
        assert_eq!(after.value_log.live_bytes, before.live_bytes);
        assert!(after.value_log.dead_bytes < before.dead_bytes / 3, "{before:?} {after:?}");
        holds(&bench, &expected, "defragment");
        let again = engine.stats().value_log;
        assert!(again.disk_bytes <= before.disk_bytes + 4 * SEGMENT, "{before:?} {again:?}");
    });
}

/// F1 for copies: a copy is base from the start, so an update of its key goes elsewhere, and a
/// checkpoint need not sync it again.
#[test]
fn f01_copies_are_never_changed_in_place() {
    watchdog("F1 copies", 120, || {
        let bench = half_dead();
        let engine = &bench.engine;
        all(engine, &|_| Continue::Yes);
        let in_place = engine.stats().counters.updates_in_place;
        for number in (0..300).filter(|number| number % 2 == 1) {
            if number == 151 {
                engine.checkpoint().unwrap();
            }
            put_durable(engine, &key(number), &vec![0x77; 100_000]);
        }
        assert_eq!(engine.stats().counters.updates_in_place, in_place);
        holds(&bench, &contents(engine), "F1 copies");
    });
}

/// F2, first half: C1-C5; D copies and repoints a frozen entry; C6 reads the copy; the manifest of
/// C3 does not know its segment. Second half: the merge has read the old payload, D repoints, the
/// merge publishes: the repoint is lost and its source freed. Rule: while a shard is frozen nobody
/// changes its frozen and sorted entries; D shadows them.
///
/// Shard 1 is between merge and publication at the gate, shard 2 is frozen and not merged yet.
#[test]
fn f02_a_frozen_shard_is_shadowed_not_changed() {
    watchdog("F2", 120, || {
        let bench = half_dead();
        let engine = &bench.engine;
        put_durable(engine, &key(1), b"makes shard 1 dirty");
        put_durable(engine, &key(299), b"makes shard 2 dirty");
        let expected = contents(engine);
        let gate = bench.disk.close(Io::Create, "t1/");
        std::thread::scope(|scope| {
            let checkpoint = scope.spawn(|| engine.checkpoint().unwrap());
            gate.reached();
            let report = all(engine, &|_| Continue::Yes);
            assert!(report.segments >= 2, "{report:?}");
            gate.open();
            checkpoint.join().unwrap();
        });
        holds(&bench, &expected, "F2");
    });
}

/// F3: D reads P; W shadows or deletes k (P's live count is taken back); D repoints the old entry
/// all the same (it is taken back again): counts drift, and a live segment is freed. Rule: D
/// repoints under the stripe, only if P is still the newest entry.
#[test]
fn f03_a_record_that_was_replaced_meanwhile_is_not_repointed() {
    watchdog("F3", 120, || {
        for step in [DefragmentStep::Write, DefragmentStep::Repoint] {
            for frozen in [false, true] {
                let bench = half_dead();
                let engine = &bench.engine;
                put_durable(engine, &key(299), b"makes shard 2 dirty");
                let gate = frozen.then(|| bench.disk.close(Io::Create, "t1/"));
                std::thread::scope(|scope| {
                    if let Some(gate) = &gate {
                        scope.spawn(|| engine.checkpoint().unwrap());
                        gate.reached();
                    }
                    let write = || {
                        for number in [1, 3, 5, 7, 151, 153, 155] {
                            put(engine, &key(number), &vec![9; 100_000]);
                        }
                        for number in [9, 11, 157, 159] {
                            delete(engine, &key(number));
                        }
                        put(engine, &key(13), b"inline");
                    };
                    let report = all(engine, &at_first(step, write));
                    assert!(report.records_skipped >= 12, "{report:?}");
                    drop(gate);
                });
                engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
                let expected = contents(engine);
                assert_eq!(expected[&key(1)], vec![9; 100_000]);
                assert_eq!(expected.get(&key(9)), None);
                holds(&bench, &expected, &format!("F3 {step:?} {frozen}"));
            }
        }
    });
}

/// F4: D empties S; the checkpoint skips the shard as unchanged and frees S; crash: the old T1
/// file points at garbage. Rule: a repoint marks the shard dirty.
#[test]
fn f04_a_repoint_makes_the_shard_dirty() {
    watchdog("F4", 120, || {
        let bench = half_dead();
        let engine = &bench.engine;
        let expected = contents(engine);
        let report = all(engine, &|_| Continue::Yes);
        assert!(report.segments >= 3, "{report:?}");
        engine.checkpoint().unwrap();
        assert!(engine.stats().counters.value_segments_freed >= 3);
        holds(&bench, &expected, "F4");
    });
}

/// F5: C1..C7; D empties S; C8 frees S, which the manifest and its T1 files still need. Rule: only
/// what was empty at C1 is freed.
#[test]
fn f05_a_segment_emptied_during_a_checkpoint_is_not_freed_by_it() {
    watchdog("F5", 120, || {
        let bench = half_dead();
        let engine = &bench.engine;
        put_durable(engine, &key(299), b"makes shard 2 dirty");
        let expected = contents(engine);
        let gate = bench.disk.close(Io::Rename, "MANIFEST");
        std::thread::scope(|scope| {
            let checkpoint = scope.spawn(|| engine.checkpoint().unwrap());
            gate.reached();
            let report = all(engine, &|_| Continue::Yes);
            assert!(report.segments >= 3, "{report:?}");
            gate.open();
            checkpoint.join().unwrap();
        });
        // Whatever C8 gave up is written over, and the power is cut with that on disk.
        reuse(engine);
        let mut found = contents(&bench.after(&KEEP, "F5"));
        found.retain(|key, _| !key.starts_with(b"new"));
        assert!(found == expected, "F5: {}", difference(&found, &expected));
        assert_eq!(engine.recount_live(), Vec::<String>::new(), "F5");
        verify(engine, "F5");
    });
}

/// A segment without anything live is a checkpoint's to free, perhaps of one that is under way: as
/// a source it could be used anew between walk and repoint, and an update in place there be lost.
#[test]
fn f05_a_segment_that_is_empty_already_is_no_source() {
    watchdog("f05 empty", 120, || {
        let bench = half_dead();
        let engine = &bench.engine;
        for number in 0..300 {
            delete(engine, &key(number));
        }
        put_durable(engine, b"last", &[1; 100]);
        engine.checkpoint().unwrap();
        // The first checkpoint freed what it saw empty; now some of what is used is dead again.
        reuse(engine);
        engine.checkpoint().unwrap();
        for number in 0..300 {
            delete(engine, format!("new{number}").as_bytes());
        }
        engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
        let chosen = Cell::new(0);
        let report = all(engine, &|progress| {
            chosen.set(progress.segments_chosen);
            Continue::Yes
        });
        // At most the one with the last key has anything to move.
        assert!(chosen.get() <= 1 && report.segments <= 1, "{} {report:?}", chosen.get());
        assert!(report.bytes_moved < 1000, "{report:?}");
    });
}

/// F6: D has copied, not yet repointed; C1 lists the destination as empty; D repoints; C8 frees
/// it. Rule: open segments, and those that copies are about to be pointed into, are no candidates.
#[test]
fn f06_a_destination_is_no_candidate() {
    watchdog("F6", 120, || {
        let bench = half_dead();
        let engine = &bench.engine;
        let expected = contents(engine);
        let gate = bench.disk.close(Io::Rename, "MANIFEST");
        std::thread::scope(|scope| {
            let checkpoint = std::sync::Mutex::new(None);
            let begin = || {
                *checkpoint.lock().unwrap() = Some(scope.spawn(|| engine.checkpoint().unwrap()));
                gate.reached();
            };
            // C1 comes before the first repoint, C8 behind the last.
            let report = all(engine, &at_first(DefragmentStep::Repoint, begin));
            assert!(report.segments >= 3, "{report:?}");
            gate.let_one_pass();
            let running = checkpoint.lock().unwrap().take();
            running.unwrap().join().unwrap();
        });
        gate.open();
        holds(&bench, &expected, "F6");
    });
}

/// A cancelled defragment leaves everything readable at each of its steps, and can be begun again.
#[test]
fn a_cancelled_defragment_leaves_no_trace() {
    watchdog("cancel", 120, || {
        let bench = half_dead();
        let engine = &bench.engine;
        let expected = contents(engine);
        use DefragmentStep::{Done, Read, Repoint, Walk, Write};
        for step in [Walk, Read, Write, Repoint, Done] {
            let report = all(engine, &|progress| {
                if progress.step == step { Continue::No } else { Continue::Yes }
            });
            assert!(report.cancelled, "{step:?}: {report:?}");
            assert!(contents(engine) == expected, "{step:?}");
            assert_eq!(engine.recount_live(), Vec::<String>::new(), "{step:?}");
            bench.survives(&format!("{step:?}"));
        }
        engine.checkpoint().unwrap();
        all(engine, &|_| Continue::Yes);
        holds(&bench, &expected, "after cancels");
    });
}
