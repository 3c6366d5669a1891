//! Splits and merges of shards: what they leave, also after a crash, and what they refuse.
//!
//! Under test: a change of shards is durable when it returns and never done twice; every key is in
//! exactly one shard, with its value, before, while and after; an operation has one outcome for good.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::{Bench, contents, put_durable, small, watchdog};
use vmemkv_engine::io::testing::PowerCut;
use vmemkv_engine::{
    Engine, ErrorKind, KeyRange, MergeShards, OperationOutcome, Options, ShardId, Sharding,
    SplitShard,
};

fn key(number: usize) -> Vec<u8> {
    format!("k{number:04}").into_bytes()
}

fn split(operation: u64, shard: u64, at: &[u8], to: [u64; 2], epoch: u64) -> SplitShard {
    let [left, right] = to.map(ShardId);
    SplitShard { operation, shard: ShardId(shard), key: at.to_vec(), left, right, epoch }
}

fn merge(operation: u64, from: [u64; 2], merged: u64, epoch: u64) -> MergeShards {
    let [left, right] = from.map(ShardId);
    MergeShards { operation, left, right, merged: ShardId(merged), epoch }
}

/// Id, start and epoch of each shard; fails unless they are the whole key space.
fn map(engine: &Engine) -> Vec<(u64, String, u64)> {
    let shards = engine.shards();
    assert!(shards[0].range.start.is_empty() && shards.last().unwrap().range.end.is_empty());
    assert!(shards.windows(2).all(|pair| pair[0].range.end == pair[1].range.start));
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    shards.iter().map(|shard| (shard.id.0, text(&shard.range.start), shard.epoch)).collect()
}

fn shard(id: u64, start: &str, epoch: u64) -> (u64, String, u64) {
    (id, start.to_owned(), epoch)
}

fn filled(options: Options) -> Bench {
    let bench = Bench::new(options);
    for n in 0..100 {
        support::put(&bench.engine, &key(n), &[n as u8; 60]);
    }
    put_durable(&bench.engine, b"z", b"last");
    bench
}

fn managed() -> Options {
    Options { sharding: Sharding::Managed, ..small() }
}

#[test]
fn a_split_and_a_merge_are_durable_when_they_return() {
    watchdog("durable", 120, || {
        for checkpoint in [false, true] {
            for reorganize in [false, true] {
                let bench = filled(small());
                let engine = &bench.engine;
                let before = contents(engine);
                let check = |expected: &[(u64, String, u64)], at: &str| {
                    assert_eq!(map(engine), expected, "{at}");
                    assert!(contents(engine) == before, "{at}");
                    bench.survives(at);
                    let after = bench.after(&PowerCut::strict(), at);
                    assert_eq!(map(&after), expected, "{at}: after a cut");
                    if reorganize {
                        engine.reorganize(None).unwrap();
                    }
                    if checkpoint {
                        engine.checkpoint().unwrap();
                        bench.survives(at);
                        let after = bench.after(&PowerCut::strict(), at);
                        assert_eq!(map(&after), expected, "{at}: checkpoint");
                        assert_eq!(after.operation_outcome(2), engine.operation_outcome(2));
                    }
                };
                engine.split_shard(&split(1, 1, b"k0050", [7, 8], 2)).unwrap();
                check(&[shard(7, "", 2), shard(8, "k0050", 2)], "split");
                engine.split_shard(&split(2, 8, b"k0060", [9, 10], 3)).unwrap();
                let three = [shard(7, "", 2), shard(9, "k0050", 3), shard(10, "k0060", 3)];
                check(&three, "second split");
                engine.merge_shards(&merge(3, [7, 9], 11, 4)).unwrap();
                check(&[shard(11, "", 4), shard(10, "k0060", 3)], "merge");
                engine.merge_shards(&merge(4, [11, 10], 12, 5)).unwrap();
                check(&[shard(12, "", 5)], "second merge");
                for operation in 1..=4 {
                    assert_eq!(engine.operation_outcome(operation), Some(OperationOutcome::Done));
                }
                let counters = engine.stats().counters;
                assert_eq!((counters.shard_splits, counters.shard_merges), (2, 2));
            }
        }
    });
}

#[test]
fn what_was_written_around_a_change_survives_it() {
    watchdog("around", 120, || {
        let bench = filled(small());
        let engine = &bench.engine;
        engine.reorganize(None).unwrap();
        // In the sorted region, in the append region, and after the change: each updated, each
        // deleted.
        let touch = |round: u8| {
            for n in (round as usize..100).step_by(7) {
                support::put(engine, &key(n), &[round; 90]);
                support::delete(engine, &key((n + 3) % 100));
                support::put(engine, &key(n + 200), &[round; 5]);
            }
            put_durable(engine, b"round", &[round]);
        };
        touch(1);
        engine.split_shard(&split(0, 1, b"k0040", [2, 3], 2)).unwrap();
        touch(2);
        bench.survives("after the split");
        // A child that still has the parent's regions is split, and merged.
        engine.split_shard(&split(0, 3, b"k0070", [4, 5], 3)).unwrap();
        touch(3);
        engine.merge_shards(&merge(0, [2, 4], 6, 4)).unwrap();
        touch(4);
        bench.survives("after the merge");
        engine.checkpoint().unwrap();
        touch(5);
        bench.survives("after the checkpoint");
        engine.merge_shards(&merge(0, [6, 5], 7, 5)).unwrap();
        touch(6);
        bench.survives("after the last merge");
        engine.reorganize(None).unwrap();
        bench.survives("merged");
        assert_eq!(engine.shards()[0].keys as usize, contents(engine).len());
    });
}

/// Revisions go on over splits and merges, and over a restart after them.
#[test]
fn revisions_grow_over_splits_and_merges() {
    watchdog("revisions", 60, || {
        let bench = filled(small());
        let engine = &bench.engine;
        let revisions = || engine.shards().iter().map(|s| s.revision.0).collect::<Vec<_>>();
        assert_eq!(revisions(), [101]);
        engine.split_shard(&split(0, 1, b"k0050", [2, 3], 2)).unwrap();
        assert_eq!(revisions(), [101, 101]);
        for _ in 0..9 {
            support::put(engine, b"k0001", b"v");
        }
        put_durable(engine, b"k0099", b"v");
        assert_eq!(revisions(), [110, 102]);
        assert!(bench.after(&PowerCut::strict(), "cut").shards()[1].revision.0 >= 102);
        engine.merge_shards(&merge(0, [2, 3], 4, 3)).unwrap();
        assert_eq!(revisions(), [110]);
        put_durable(engine, b"k0099", b"v");
        assert_eq!(revisions(), [111]);
        engine.checkpoint().unwrap();
        let after = bench.after(&PowerCut::strict(), "checkpoint");
        assert_eq!(after.shards()[0].revision.0, 111);
    });
}

#[test]
fn an_operation_is_executed_once() {
    watchdog("once", 60, || {
        let bench = filled(small());
        let first = split(77, 1, b"k0050", [2, 3], 2);
        let lsn = bench.engine.split_shard(&first).unwrap();
        assert_eq!(bench.engine.split_shard(&first).unwrap(), lsn);
        let after = bench.after(&PowerCut::strict(), "once");
        after.split_shard(&first).unwrap();
        assert_eq!(map(&after), map(&bench.engine));
        assert_eq!(after.operation_outcome(77), Some(OperationOutcome::Done));
        let error = after.refuse_operation(77, "late").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyDone);
        after.forget_operation(77).unwrap();
        assert_eq!(after.operation_outcome(77), None);
        // Now it is another one, of a shard that is gone.
        assert_eq!(after.split_shard(&first).unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn a_refusal_is_for_good_until_it_is_forgotten() {
    watchdog("refusal", 60, || {
        let bench = filled(small());
        let engine = &bench.engine;
        let refused = Some(OperationOutcome::Refused { reason: "the map moved on".into() });
        engine.refuse_operation(5, "the map moved on").unwrap();
        engine.refuse_operation(5, "another reason").unwrap();
        let cut = bench.after(&PowerCut::strict(), "log");
        engine.checkpoint().unwrap();
        let checkpoint = bench.after(&PowerCut::strict(), "checkpoint");
        for engine in [engine, &cut, &checkpoint] {
            assert_eq!(engine.operation_outcome(5), refused);
            let error = engine.split_shard(&split(5, 1, b"k0050", [2, 3], 2)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert!(error.message().contains("the map moved on"), "{error}");
            assert_eq!(map(engine), [shard(1, "", 1)]);
            engine.forget_operation(5).unwrap();
            assert_eq!(engine.operation_outcome(5), None);
            engine.split_shard(&split(5, 1, b"k0050", [2, 3], 2)).unwrap();
        }
        let after = bench.after(&PowerCut::strict(), "forgotten");
        assert_eq!(after.operation_outcome(5), Some(OperationOutcome::Done));
        assert_eq!(engine.refuse_operation(0, "x").unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    watchdog("wrong", 60, || {
        let bench = Bench::new(managed());
        let engine = &bench.engine;
        for (id, start, end) in [(1, "b", "f"), (2, "f", "m"), (3, "p", "")] {
            engine.create_shard(ShardId(id), &KeyRange::new(start, end), 4).unwrap();
        }
        put_durable(engine, b"c", b"v");
        let before = engine.shards();
        let wrong_splits = [
            split(1, 9, b"c", [10, 11], 5),
            split(1, 1, b"b", [10, 11], 5),
            split(1, 1, b"f", [10, 11], 5),
            split(1, 1, b"a", [10, 11], 5),
            split(1, 1, b"", [10, 11], 5),
            split(1, 1, b"c", [10, 10], 5),
            split(1, 1, b"c", [1, 10], 5),
            split(1, 1, b"c", [10, 3], 5),
            split(1, 1, b"c", [10, 11], 4),
            split(1, 1, &[b'c'; 5000], [10, 11], 5),
        ];
        for wrong in &wrong_splits {
            let error = engine.split_shard(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong:?}: {error}");
        }
        let wrong_merges = [
            merge(1, [1, 3], 10, 5),
            merge(1, [2, 1], 10, 5),
            merge(1, [1, 1], 10, 5),
            merge(1, [3, 1], 10, 5),
            merge(1, [1, 9], 10, 5),
            merge(1, [1, 2], 2, 5),
            merge(1, [1, 2], 10, 4),
        ];
        for wrong in &wrong_merges {
            let error = engine.merge_shards(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong:?}: {error}");
        }
        assert_eq!(engine.shards(), before);
        assert_eq!(engine.operation_outcome(1), None);
        // A refused try does not stand in the way of a right one.
        engine.split_shard(&split(1, 1, b"c", [10, 11], 5)).unwrap();
        engine.merge_shards(&merge(2, [11, 2], 12, 6)).unwrap();
        bench.survives("right");
    });
}

#[test]
fn the_split_key_halves_the_bytes() {
    watchdog("split key", 60, || {
        for (reorganize, inline) in [(false, true), (true, true), (true, false)] {
            let bench = Bench::new(Options { inline, ..small() });
            let engine = &bench.engine;
            assert_eq!(engine.split_key(ShardId(1)).unwrap(), None, "no key");
            put_durable(engine, b"k0100", b"v");
            assert_eq!(engine.split_key(ShardId(1)).unwrap(), None, "one key");
            // The first ten hold half of the bytes.
            for n in 0..1000 {
                support::put(engine, &key(n), &vec![1; if n < 10 { 100_000 } else { 1000 }]);
            }
            support::put(engine, &[&key(999)[..], b"tail"].concat(), b"v");
            if reorganize {
                engine.reorganize(None).unwrap();
            }
            let at = engine.split_key(ShardId(1)).unwrap().unwrap();
            assert!(at > key(8) && at < key(60), "{}", at.escape_ascii());
            // All but the huge ones go: half of what is left.
            let range = KeyRange::new(key(0), key(10));
            engine.delete_range(&range, 1000).unwrap();
            let at = engine.split_key(ShardId(1)).unwrap().unwrap();
            assert!(at > key(490) && at < key(520), "{}", at.escape_ascii());
            engine.delete_range(&KeyRange::new("", key(999)), 1000).unwrap();
            let at = engine.split_key(ShardId(1)).unwrap().unwrap();
            assert_eq!(at, b"k0999t", "between the last two");
            engine.split_shard(&split(0, 1, &at, [2, 3], 2)).unwrap();
            assert_eq!(engine.split_key(ShardId(2)).unwrap(), None);
        }
    });
}

/// Of a large shard samples are looked at: the halves are about even all the same, whatever is where.
#[test]
fn a_large_shard_is_halved_by_samples() {
    const KEYS: usize = 100_000;
    watchdog("samples", 200, || {
        // The last tenth holds most of the bytes.
        let value = |n: usize| vec![7; if n < KEYS / 10 * 9 { 1 } else { 100 }];
        let size = |n: usize| if n < KEYS / 10 * 9 { 22 } else { 150 };
        let key = |n: usize| format!("{n:06}").into_bytes();
        let bench = Bench::new(Options { append_capacity: 1 << 17, ..small() });
        let engine = &bench.engine;
        for half in 0..2 {
            // Half of the keys are in the sorted region, half in the append region.
            for n in (0..KEYS).filter(|n| n % 2 == half) {
                support::put(engine, &key(n), &value(n));
            }
            if half == 0 {
                engine.reorganize(None).unwrap();
            }
        }
        let total: usize = (0..KEYS).map(size).sum();
        for sorted in [false, true] {
            if sorted {
                engine.reorganize(None).unwrap();
            }
            let at = engine.split_key(ShardId(1)).unwrap().unwrap();
            let below: usize = (0..KEYS).filter(|n| key(*n) < at).map(size).sum();
            let percent = below * 100 / total;
            assert!((47..=53).contains(&percent), "{percent} % before {}", at.escape_ascii());
        }
        let at = engine.split_key(ShardId(1)).unwrap().unwrap();
        engine.split_shard(&split(0, 1, &at, [2, 3], 2)).unwrap();
        // Each half is cut within its own range while both share their regions.
        for (shard, range) in [(2, KeyRange::new("", at.clone())), (3, KeyRange::new(at, ""))] {
            let at = engine.split_key(ShardId(shard)).unwrap().unwrap();
            assert!(range.contains(&at) && at > range.start, "{shard}: {}", at.escape_ascii());
        }
    });
}

/// Seed 002: instances and T1 files of shards that are gone do not pile up.
#[test]
fn shards_that_are_gone_leave_no_files() {
    watchdog("no files", 60, || {
        let bench = filled(small());
        let engine = &bench.engine;
        engine.checkpoint().unwrap();
        for round in 0..5 {
            let id = 10 * (round + 1);
            let only = engine.shards()[0].id.0;
            engine.split_shard(&split(0, only, b"k0050", [id, id + 1], 2 * round + 2)).unwrap();
            engine.checkpoint().unwrap();
            assert_eq!(support::index_files(bench.crash_root()).len(), 2);
            engine.merge_shards(&merge(0, [id, id + 1], id + 2, 2 * round + 3)).unwrap();
            engine.checkpoint().unwrap();
            assert_eq!(support::index_files(bench.crash_root()).len(), 1);
        }
        bench.survives("rounds");
    });
}
