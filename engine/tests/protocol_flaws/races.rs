//! Schedules that nobody can force from outside: threads look for them. F1, F9, F18, F21.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use vmemkv_engine::io::testing::PowerCut;
use vmemkv_engine::{Condition, Engine, KeyRange, Lsn, Operation, Options, Sharding};

use crate::support::{
    Bench, StopOnDrop, contents, difference, put, put_durable, seed, small, verify, watchdog,
};

/// Everything logged so far is durable.
fn quiesce(engine: &Engine) {
    engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
}

/// Log segments that are not rolled all the time.
fn roomy() -> Options {
    Options { wal_segment_bytes: 1 << 20, checkpoint_wal_bytes: 4 << 20, ..small() }
}

/// Waits for the log, so that the journal of the crash disk stays short.
fn now_and_then(random: &mut StdRng, engine: &Engine, lsn: Lsn) {
    if random.random_bool(0.2) {
        engine.wait_durable(lsn).unwrap();
    }
}

/// F1: a record is allocated or changed below the new base, and filled behind the sync. Rule:
/// after the base lengths are fixed every stripe is passed before the sync. Then nothing but the
/// checkpoint has the data: a torn record cannot be replayed.
#[test]
fn f01_records_below_a_base_are_whole() {
    let seed = seed("F1");
    watchdog("F1", 120, || {
        for round in 0..4 {
            let bench = Bench::new(roomy());
            let engine = &bench.engine;
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _stop = StopOnDrop(&stop);
                for thread in 0..3 {
                    let stop = &stop;
                    scope.spawn(move || {
                        let mut random = StdRng::seed_from_u64(seed + round * 10 + thread);
                        while !stop.load(Ordering::Relaxed) {
                            let key = format!("{thread}/{}", random.random_range(0..30));
                            let len = [60, 60, 900, 4000][random.random_range(0..4)];
                            let value = vec![random.random(); len];
                            let lsn = put(engine, key.as_bytes(), &value);
                            now_and_then(&mut random, engine, lsn);
                        }
                    });
                }
                for _ in 0..25 {
                    engine.checkpoint().unwrap();
                }
            });
            quiesce(engine);
            // The log is not needed any more.
            engine.checkpoint().unwrap();
            bench.survives(&format!("seed {seed} round {round}"));
        }
    });
}

/// F9: a reader sees new bytes and the old word. Rule: the in-flight bit is set before the first
/// byte, for a batch on all its stripes. Batches take long from their first byte to their LSN.
#[test]
fn f09_a_batch_is_not_seen_before_its_lsn_is_known() {
    const KEYS: usize = 400;
    watchdog("F9 race", 120, || {
        for inline in [true, false] {
            let bench = Bench::new(Options { inline, ..roomy() });
            let engine = &bench.engine;
            let key = |number: usize| format!("k{number:04}").into_bytes();
            let lsns = Mutex::new(vec![Lsn(0)]);
            let seen: Mutex<Vec<(usize, Lsn)>> = Mutex::default();
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _stop = StopOnDrop(&stop);
                for thread in 0..2 {
                    let (seen, stop) = (&seen, &stop);
                    scope.spawn(move || {
                        let mut found: Vec<(usize, Lsn)> = Vec::new();
                        while !stop.load(Ordering::Relaxed) {
                            if let Some(value) = engine.get(&key(thread)).unwrap() {
                                let count = u64::from_le_bytes(value[..8].try_into().unwrap());
                                let durable = engine.durable_lsn();
                                if found.last().is_none_or(|last| last.0 != count as usize) {
                                    found.push((count as usize, durable));
                                }
                            }
                        }
                        seen.lock().unwrap().append(&mut found);
                    });
                }
                let end = Instant::now() + Duration::from_millis(1200);
                let mut count = 0u64;
                while Instant::now() < end {
                    count += 1;
                    let put = |number| Operation::Put {
                        key: key(number),
                        value: count.to_le_bytes().to_vec(),
                    };
                    let batch: Vec<Operation> = (0..KEYS).map(put).collect();
                    let lsn = engine.write_batch(&batch).unwrap();
                    lsns.lock().unwrap().push(lsn);
                }
            });
            let (lsns, seen) = (lsns.into_inner().unwrap(), seen.into_inner().unwrap());
            assert!(seen.len() > 5, "readers saw {} versions", seen.len());
            for (count, durable) in seen {
                assert!(durable >= lsns[count], "batch {count} was shown at {durable}");
            }
        }
    });
}

/// F18: a writer marks the shard dirty, a freeze takes the mark away, the writer changes the new
/// regions: the next checkpoint skips the shard, and drops the log. Rule: the mark lives in the
/// bundle.
#[test]
fn f18_no_checkpoint_skips_a_shard_that_was_written() {
    let seed = seed("F18");
    watchdog("F18", 120, || {
        let boundaries = (1..12u8).map(|i| vec![i * 16]).collect();
        let options = Options { sharding: Sharding::Alone { boundaries }, ..roomy() };
        let bench = Bench::new(options);
        let engine = &bench.engine;
        for round in 0..12 {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _stop = StopOnDrop(&stop);
                for thread in 0..2 {
                    let stop = &stop;
                    scope.spawn(move || {
                        let mut random = StdRng::seed_from_u64(seed + round * 2 + thread);
                        while !stop.load(Ordering::Relaxed) {
                            let key = [random.random_range(0..12u8) * 16 + 1, thread as u8];
                            if random.random_bool(0.2) {
                                engine.delete(&key, &Condition::None).unwrap();
                            } else {
                                put(
                                    engine,
                                    &key,
                                    &vec![random.random(); random.random_range(0..60)],
                                );
                            }
                        }
                    });
                }
                for _ in 0..15 {
                    engine.checkpoint().unwrap();
                }
            });
            quiesce(engine);
            engine.checkpoint().unwrap();
            if round % 3 == 2 {
                bench.survives(&format!("seed {seed} round {round}"));
            }
        }
    });
}

/// F21: a range delete is logged behind a put that came after it: replay deletes the put. Rule:
/// hold every stripe of a chunk through its log append.
#[test]
fn f21_a_put_behind_a_range_delete_stays() {
    let seed = seed("F21");
    watchdog("F21", 120, || {
        let bench = Bench::new(roomy());
        let engine = &bench.engine;
        for round in 0..6u64 {
            let stop = AtomicBool::new(false);
            let puts = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let _stop = StopOnDrop(&stop);
                for thread in 0..2 {
                    let (stop, puts) = (&stop, &puts);
                    scope.spawn(move || {
                        let mut random = StdRng::seed_from_u64(seed + round * 2 + thread);
                        while !stop.load(Ordering::Relaxed) {
                            let number = puts.fetch_add(1, Ordering::Relaxed);
                            let key = format!("r/{:03}", random.random_range(0..100));
                            let value = number.to_le_bytes().repeat(2);
                            let lsn = put(engine, key.as_bytes(), &value);
                            now_and_then(&mut random, engine, lsn);
                        }
                    });
                }
                let end = Instant::now() + Duration::from_millis(300);
                while Instant::now() < end {
                    engine.delete_range(&KeyRange::new("r/", "r0"), 1000).unwrap();
                }
            });
            put_durable(engine, b"end", b"end");
            quiesce(engine);
            let live = contents(engine);
            let after = bench.after(&PowerCut::strict(), "F21");
            let found = contents(&after);
            let what = difference(&found, &live);
            assert!(found == live, "seed {seed} round {round}: replay differs: {what}");
            verify(&after, "F21");
        }
    });
}
