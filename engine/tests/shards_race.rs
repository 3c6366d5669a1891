//! Writers, readers and scans in both directions while shards are split and merged, by call and by
//! the engine's own policy; and what a writer waits for meanwhile.
//!
//! Under test: no key is missing from a scan or there twice, no acknowledged write is lost or goes
//! back, shards neither grow without bound nor stay stuck. `VMEMKV_SEED` runs one again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use support::{Bench, StopOnDrop, contents, put_durable, seed, small, verify, watchdog};
use vmemkv_engine::io::testing::{Operation as Io, PowerCut};
use vmemkv_engine::{
    Condition, Engine, ErrorKind, MergeShards, Operation, Options, ScanOptions, ShardId, SplitShard,
};

const KEYS: usize = 600;

fn key(number: usize) -> Vec<u8> {
    format!("tenant/{number:05}").into_bytes()
}

/// Splits or merges something; what has changed meanwhile is no fault.
fn change_some_shard(engine: &Engine, random: &mut StdRng, next_id: &AtomicU64) {
    let shards = engine.shards();
    let chosen = random.random_range(0..shards.len());
    let id = next_id.fetch_add(2, Ordering::Relaxed);
    let result = if shards.len() < 8 && random.random_bool(0.5) {
        let shard = &shards[chosen];
        let (shard, epoch, key) = (shard.id, shard.epoch + 1, key(random.random_range(0..KEYS)));
        let (left, right) = (ShardId(id), ShardId(id + 1));
        engine.split_shard(&SplitShard { operation: id, shard, key, left, right, epoch })
    } else if let [left, right, ..] = &shards[chosen..] {
        let epoch = left.epoch.max(right.epoch) + 1;
        let (left, right, merged) = (left.id, right.id, ShardId(id));
        engine.merge_shards(&MergeShards { operation: id, left, right, merged, epoch })
    } else {
        return;
    };
    if let Err(error) = result {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

/// Scans everything in small chunks: every key once, in order, none older than what was known.
fn scan(engine: &Engine, known: &[AtomicU64], reverse: bool, max_bytes: usize) {
    let before: Vec<u64> = known.iter().map(|known| known.load(Ordering::SeqCst)).collect();
    let mut options = ScanOptions { reverse, max_bytes, ..ScanOptions::default() };
    let mut found = Vec::new();
    loop {
        let chunk = engine.scan(&options).unwrap();
        found.extend(chunk.entries);
        if chunk.done {
            break;
        }
        if reverse {
            options.range.end = chunk.covered_to;
        } else {
            options.range.start = chunk.covered_to;
        }
    }
    if reverse {
        found.reverse();
    }
    let expected = (0..KEYS).map(key);
    assert!(found.iter().map(|entry| &entry.0).eq(&expected.collect::<Vec<_>>()), "keys");
    for ((_, value), before) in found.iter().zip(before) {
        let count = u64::from_le_bytes(value[..8].try_into().unwrap());
        assert!(count >= before, "{count} after {before}");
    }
}

fn write(engine: &Engine, known: &[AtomicU64], random: &mut StdRng, own: impl Fn(usize) -> usize) {
    let mut numbers = vec![own(random.random_range(0..KEYS))];
    if random.random_bool(0.3) {
        numbers.extend((0..4).map(|_| own(random.random_range(0..KEYS))));
        numbers.sort_unstable();
        numbers.dedup();
    }
    let count = |number: &usize| known[*number].load(Ordering::SeqCst) + 1;
    let put = |number: &usize| Operation::Put {
        key: key(*number),
        value: count(number).to_le_bytes().repeat(1 + number % 20),
    };
    let lsn = engine.write_batch(&numbers.iter().map(put).collect::<Vec<_>>()).unwrap();
    if random.random_bool(0.7) {
        engine.wait_durable(lsn).unwrap();
        // Read your own writes, whatever shard they are in now.
        let value = engine.get(&key(numbers[0])).unwrap().unwrap();
        assert_eq!(value[..8], count(&numbers[0]).to_le_bytes());
    }
    for number in &numbers {
        known[*number].fetch_add(1, Ordering::SeqCst);
    }
}

/// F13, F14, F16 as a race: also with checkpoints and reorganizes, and a power cut at the end.
#[test]
fn f13_f14_f16_no_gap_and_no_duplicate_while_shards_change() {
    const WRITERS: usize = 3;
    let seed = seed("shards race");
    watchdog("shards race", 300, || {
        for round in 0..6 {
            // By call only, or with the policy at work too.
            let background = round % 2 == 1;
            let options = Options {
                background,
                shard_max_entries: 100,
                shard_merge_after: Duration::ZERO,
                wal_segment_bytes: 1 << 20,
                checkpoint_wal_bytes: 4 << 20,
                ..small()
            };
            let bench = Bench::new(options);
            let engine = &bench.engine;
            let known: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
            for number in 0..KEYS {
                put_durable(engine, &key(number), &0u64.to_le_bytes());
            }
            let (stop, next_id) = (AtomicBool::new(false), AtomicU64::new(1 << 40));
            std::thread::scope(|scope| {
                let _stop = StopOnDrop(&stop);
                let (stop, known) = (&stop, &known[..]);
                for thread in 0..WRITERS {
                    scope.spawn(move || {
                        let _stop = StopOnDrop(stop);
                        let mut random = StdRng::seed_from_u64(seed + round * 100 + thread as u64);
                        while !stop.load(Ordering::Relaxed) {
                            let own = |number| number / WRITERS * WRITERS + thread;
                            write(engine, known, &mut random, own);
                        }
                    });
                }
                for thread in 0..2 {
                    scope.spawn(move || {
                        let _stop = StopOnDrop(stop);
                        let mut random = StdRng::seed_from_u64(seed + round * 100 + 50 + thread);
                        while !stop.load(Ordering::Relaxed) {
                            scan(engine, known, thread == 0, random.random_range(1..9000));
                        }
                    });
                }
                scope.spawn(move || {
                    let _stop = StopOnDrop(stop);
                    while !stop.load(Ordering::Relaxed) {
                        engine.checkpoint().unwrap();
                        engine.reorganize(None).unwrap();
                    }
                });
                let mut random = StdRng::seed_from_u64(seed + round);
                let end = Instant::now() + Duration::from_millis(1500);
                while Instant::now() < end && !stop.load(Ordering::Relaxed) {
                    change_some_shard(engine, &mut random, &next_id);
                }
            });
            let counters = engine.stats().counters;
            assert!(counters.shard_splits > 2 && counters.shard_merges > 0, "{counters:?}");
            engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
            scan(engine, &known, false, 1 << 20);
            verify(engine, "race");
            let expected = contents(engine);
            let after = bench.after(&PowerCut::strict(), "race");
            assert!(contents(&after) == expected, "seed {seed} round {round}");
        }
    });
}

/// A put does not wait for the merge that a split brings, nor for the split's own durability.
#[test]
fn a_put_during_a_split_waits_for_no_merge() {
    const MANY: usize = 200_000;
    watchdog("pause", 300, || {
        let options = Options {
            append_capacity: 1 << 18,
            wal_segment_bytes: 32 << 20,
            checkpoint_wal_bytes: 1 << 30,
            ..small()
        };
        let bench = Bench::new(options);
        let engine = &bench.engine;
        for first in (0..MANY).step_by(4000) {
            let put = |n| Operation::Put { key: key(n), value: b"12345678".to_vec() };
            engine.write_batch(&(first..first + 4000).map(put).collect::<Vec<_>>()).unwrap();
        }
        engine.reorganize(None).unwrap();
        // Some recent keys too, all over.
        for n in (0..MANY).step_by(97) {
            support::put(engine, &key(n), b"recent");
        }
        engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
        let at = engine.split_key(ShardId(1)).unwrap().unwrap();
        // The merge of a child needs the log durable: behind this gate it cannot even begin.
        let gate = bench.disk.close(Io::Sync, "wal/");
        std::thread::scope(|scope| {
            let split = SplitShard {
                operation: 1,
                shard: ShardId(1),
                key: at.clone(),
                left: ShardId(2),
                right: ShardId(3),
                epoch: 2,
            };
            let splitting = scope.spawn(move || engine.split_shard(&split));
            gate.reached();
            while engine.shards().len() == 1 {
                std::thread::yield_now();
            }
            let reorganizing = scope.spawn(|| engine.reorganize(None));
            // Each would wait for ever if it waited for split or merge; the watchdog would tell.
            let mut longest = Duration::ZERO;
            for n in (0..MANY).step_by(1999) {
                let started = Instant::now();
                engine.put(&key(n), b"new", &Condition::None).unwrap();
                engine.delete(&key(n + 1), &Condition::None).unwrap();
                longest = longest.max(started.elapsed());
            }
            println!("longest write during the split: {longest:?}");
            assert!(
                !splitting.is_finished() && !reorganizing.is_finished(),
                "both are at the gate"
            );
            assert_eq!(engine.operation_outcome(1), None, "not durable yet");
            gate.open();
            splitting.join().unwrap().unwrap();
            reorganizing.join().unwrap().unwrap();
        });
        let counters = engine.stats().counters;
        println!("pause of the split: {} us", counters.shard_pauses_us);
        assert_eq!(engine.get(&key(1999)).unwrap().unwrap(), b"new");
        assert_eq!(engine.get(&key(2000)).unwrap(), None);
        let keys: u64 = engine.shards().iter().map(|shard| shard.keys).sum();
        assert_eq!(keys as usize, MANY - MANY.div_ceil(1999));
    });
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(100);
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within 100 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Seed 002: a split asked for twice, or given up once, left shards that grew without bound.
#[test]
fn alone_no_shard_grows_without_bound() {
    watchdog("policy", 200, || {
        for job_threads in [1, 3] {
            let options = Options {
                background: true,
                job_threads,
                shard_max_bytes: 64 << 10,
                shard_max_entries: 400,
                ..small()
            };
            let bench = Bench::new(options.clone());
            let engine = &bench.engine;
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    scope.spawn(move || {
                        for n in 0..1500 {
                            let key = format!("{:03}/{thread}", n * 7919 % 1500);
                            support::put(engine, key.as_bytes(), &[n as u8; 100]);
                        }
                    });
                }
            });
            let is_within = || {
                let shards = engine.shards();
                shards.iter().all(|s| s.keys <= 400 && s.live_bytes <= 64 << 10)
            };
            wait_until("every shard is within its limits", is_within);
            assert!(engine.stats().counters.shard_splits >= 8);
            assert_eq!(contents(engine).len(), 4500);
            assert!(engine.split_candidates().is_empty());
            let live: u64 = engine.shards().iter().map(|shard| shard.live_bytes).sum();
            let stats = engine.stats().value_log.live_bytes;
            assert!(live.abs_diff(stats) < stats / 5, "{live} counted, {stats} live");
            bench.survives("policy");
        }
    });
}

/// Seed 002: a split that cannot be is given up and neither repeated for ever nor in the way later.
#[test]
fn a_split_that_cannot_be_does_not_stay_stuck() {
    watchdog("stuck", 200, || {
        let options =
            Options { background: true, shard_max_bytes: 64 << 10, inline: false, ..small() };
        let bench = Bench::new(options);
        let engine = &bench.engine;
        // One key that is too large alone.
        put_durable(engine, b"huge", &[1; 100_000]);
        for _ in 0..20 {
            put_durable(engine, b"huge", &[2; 100_000]);
        }
        assert_eq!(engine.shards().len(), 1);
        // Left out while its regions are being merged.
        wait_until("it is named", || !engine.split_candidates().is_empty());
        let keys: Vec<_> = engine.split_candidates().into_iter().filter_map(|c| c.key).collect();
        assert!(keys.is_empty(), "there is no key to split at: {keys:?}");
        // With others around it is cut off, at both sides.
        for n in 0..60 {
            put_durable(engine, format!("a{n}").as_bytes(), &[3; 2000]);
            put_durable(engine, format!("z{n}").as_bytes(), &[3; 2000]);
        }
        wait_until("the others are split off", || {
            let shards = engine.shards();
            shards.iter().all(|s| s.live_bytes <= 64 << 10 || s.keys == 1)
        });
        assert_eq!(contents(engine).len(), 121);
    });
}

/// Small neighbours become one, not too early, and no further than the limits.
#[test]
fn alone_small_neighbours_are_merged() {
    watchdog("merge policy", 200, || {
        let options = Options {
            background: true,
            shard_max_entries: 400,
            shard_merge_after: Duration::from_secs(1),
            ..small()
        };
        let bench = Bench::new(options);
        let engine = &bench.engine;
        for n in 0..2000 {
            support::put(engine, &key(n), &[n as u8; 50]);
        }
        wait_until("splits", || engine.stats().counters.shard_splits >= 4);
        engine.delete_range(&vmemkv_engine::KeyRange::new("", key(1990)), 5000).unwrap();
        // Nobody merges the deletes into the sorted regions but the policy itself.
        wait_until("merges", || engine.shards().len() == 1);
        assert_eq!(contents(engine).len(), 10);
        bench.survives("merged");
    });
}

/// Seed 002: a checkpoint trigger that counted entries never fired with 64 KiB values.
#[test]
fn large_values_trigger_checkpoints() {
    watchdog("64 KiB values", 200, || {
        let options = Options { background: true, checkpoint_wal_bytes: 1 << 20, ..small() };
        let bench = Bench::new(options);
        let engine = &bench.engine;
        for n in 0..64 {
            // Few keys, in place where they can be: nothing but bytes grows.
            put_durable(engine, &key(n % 4), &[n as u8; 64 << 10]);
        }
        wait_until("a checkpoint", || engine.stats().counters.checkpoints >= 1);
        wait_until("the log is short", || {
            let wal = engine.stats().wal;
            wal.appended_lsn.0 - wal.checkpoint_lsn.0 <= 2 << 20
        });
    });
}

/// What a shard says it holds is what its index points to, whatever came between.
#[test]
fn live_bytes_are_right_after_splits_and_merges_under_load() {
    let seed = seed("live_bytes");
    watchdog("live bytes", 200, || {
        for round in 0..4 {
            let bench = Bench::new(small());
            let engine = &bench.engine;
            let next_id = AtomicU64::new(100);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (stop, mut random) =
                        (&stop, StdRng::seed_from_u64(seed ^ round << 8 ^ thread));
                    scope.spawn(move || {
                        while !stop.load(Ordering::Relaxed) {
                            let key = key(random.random_range(0..KEYS));
                            if random.random_bool(0.2) {
                                engine.delete(&key, &Condition::None).unwrap();
                            } else {
                                let value = vec![1; random.random_range(0..2000)];
                                support::put(engine, &key, &value);
                            }
                        }
                    });
                }
                let _stop = StopOnDrop(&stop);
                let mut random = StdRng::seed_from_u64(seed ^ round << 8 ^ 99);
                for _ in 0..40 {
                    change_some_shard(engine, &mut random, &next_id);
                }
            });
            // Every shard gets regions of its own.
            engine.reorganize(None).unwrap();
            assert_eq!(engine.recount_live(), Vec::<String>::new(), "round {round}");
        }
    });
}
