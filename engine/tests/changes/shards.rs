//! Readers over splits and merges: a position goes on for the range that it is of.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use vmemkv_engine::io::testing::PowerCut;
use vmemkv_engine::{
    Engine, ErrorKind, KeyRange, MergeShards, Options, Revision, ShardId, Sharding, SplitShard,
};

use crate::support::{Bench, StopOnDrop, put, put_durable, seed, small, watchdog};
use crate::{read_all, value};

/// One shard, that nobody splits or merges unless told.
fn one_shard() -> Bench {
    let bench = Bench::new(Options { sharding: Sharding::Managed, ..small() });
    bench.engine.create_shard(ShardId(1), &KeyRange::all(), 1).unwrap();
    bench
}

fn split(engine: &Engine, shard: u64, key: &[u8], left: u64, right: u64) {
    let epoch = engine.shards().iter().map(|shard| shard.epoch).max().unwrap() + 1;
    let (shard, left, right) = (ShardId(shard), ShardId(left), ShardId(right));
    let split = SplitShard { operation: 0, shard, key: key.to_vec(), left, right, epoch };
    engine.split_shard(&split).unwrap();
}

fn merge(engine: &Engine, left: u64, right: u64, merged: u64) {
    let epoch = engine.shards().iter().map(|shard| shard.epoch).max().unwrap() + 1;
    let (left, right, merged) = (ShardId(left), ShardId(right), ShardId(merged));
    engine.merge_shards(&MergeShards { operation: 0, left, right, merged, epoch }).unwrap();
}

/// The values of what comes after a position.
fn values(engine: &Engine, range: &KeyRange, after: Revision) -> Vec<String> {
    let found = read_all(engine, range, after).0;
    assert!(found.is_sorted_by(|a, b| a.revision < b.revision), "{found:?}");
    found.iter().map(|change| String::from_utf8(value(change).to_vec()).unwrap()).collect()
}

#[test]
fn a_childs_feed_goes_on_where_the_parents_was() {
    let bench = one_shard();
    let engine = &bench.engine;
    put_durable(engine, b"a", b"a1");
    put_durable(engine, b"z", b"z1");
    let at = read_all(engine, &KeyRange::all(), Revision(0)).1;
    put_durable(engine, b"a", b"a2");
    put_durable(engine, b"z", b"z2");
    split(engine, 1, b"m", 2, 3);
    put_durable(engine, b"z", b"z3");
    put_durable(engine, b"z", b"z4");
    put_durable(engine, b"a", b"a3");
    let (low, high) = (KeyRange::new(Vec::new(), *b"m"), KeyRange::new(*b"m", Vec::new()));
    let error = engine.changes_since(&KeyRange::all(), at, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotServed, "{error}");
    engine.checkpoint().unwrap();
    let check = |engine: &Engine, name: &str| {
        assert_eq!(values(engine, &low, at), ["a2", "a3"], "{name}");
        assert_eq!(values(engine, &high, at), ["z2", "z3", "z4"], "{name}");
        assert_eq!(values(engine, &high, Revision(0)), ["z1", "z2", "z3", "z4"], "{name}");
        let part = KeyRange::new(*b"y", *b"zz");
        assert_eq!(values(engine, &part, at), ["z2", "z3", "z4"], "{name}");
    };
    check(engine, "as it is");
    check(&bench.after(&PowerCut::strict(), "after a cut"), "after a cut");
    // One who had seen everything, and waits for its own range only.
    let next = read_all(engine, &low, at).1;
    assert!(!engine.wait_changes(&low, next, Duration::from_millis(20)).unwrap());
    put_durable(engine, b"z", b"z5");
    assert!(!engine.wait_changes(&low, next, Duration::from_millis(20)).unwrap());
    put_durable(engine, b"b", b"b1");
    assert!(engine.wait_changes(&low, next, Duration::from_secs(60)).unwrap());
}

/// What a position from before a merge means: it is of its parent's range. Over both it means
/// nothing, and would skip what the other parent has below it.
#[test]
fn a_merge_leaves_each_parents_position_to_its_range() {
    let bench = one_shard();
    let engine = &bench.engine;
    split(engine, 1, b"m", 2, 3);
    let (low, high) = (KeyRange::new(Vec::new(), *b"m"), KeyRange::new(*b"m", Vec::new()));
    for number in 1..=9 {
        put_durable(engine, b"a", format!("a{number}").as_bytes());
    }
    put_durable(engine, b"z", b"z1");
    let (low_at, high_at) = (Revision(8), Revision(0));
    merge(engine, 2, 3, 4);
    put_durable(engine, b"z", b"z2");
    put_durable(engine, b"a", b"a10");
    let all = KeyRange::all();
    let check = |engine: &Engine, name: &str| {
        assert_eq!(values(engine, &low, low_at), ["a9", "a10"], "{name}");
        assert_eq!(values(engine, &high, high_at), ["z1", "z2"], "{name}");
        for after in [0, 1, 8] {
            let error = engine.changes_since(&all, Revision(after), 0).unwrap_err();
            let kind = ErrorKind::TooOld { oldest: Revision(9) };
            assert_eq!(error.kind(), kind, "{name}: {error}");
            assert!(error.message().contains("merged"), "{name}: {error}");
        }
        assert_eq!(values(engine, &all, Revision(9)), ["z2", "a10"], "{name}");
    };
    check(engine, "as it is");
    engine.checkpoint().unwrap();
    check(engine, "after a checkpoint");
    check(&bench.after(&PowerCut::strict(), "after a cut"), "after a cut");
}

/// Four writers, each in a range of its own, and one reader of each range, while the shards are
/// split at and merged over the bounds of the ranges, checkpoints recycle and regions are merged.
#[test]
fn followers_miss_nothing_while_shards_split_and_merge() {
    const RANGES: u64 = 4;
    const WRITES: u64 = 6000;
    let seed = seed("followers_miss_nothing_while_shards_split_and_merge");
    let options = Options { wal_keep_bytes: 8 << 20, sharding: Sharding::Managed, ..small() };
    let bench = Bench::new(options);
    let engine = &bench.engine;
    engine.create_shard(ShardId(1), &KeyRange::all(), 1).unwrap();
    let bound = |number: u64| vec![b'0' + number as u8];
    let range = |number: u64| {
        let end = if number + 1 == RANGES { Vec::new() } else { bound(number + 1) };
        KeyRange::new(if number == 0 { Vec::new() } else { bound(number) }, end)
    };
    let stop = AtomicBool::new(false);
    let changes = AtomicU64::new(0);
    watchdog("followers_miss_nothing_while_shards_split_and_merge", 180, || {
        std::thread::scope(|scope| {
            let (stop, changes, bound) = (&stop, &changes, &bound);
            let mut followers = Vec::new();
            for number in 0..RANGES {
                scope.spawn(move || {
                    let _stop = StopOnDrop(stop);
                    for written in 1..=WRITES {
                        let key = [bound(number), written.to_le_bytes()[..1].to_vec()].concat();
                        let lsn = put(engine, &key, written.to_string().as_bytes());
                        if written % 4 == 0 || written == WRITES {
                            engine.wait_durable(lsn).unwrap();
                        }
                    }
                    // Whoever ends first must not stop the others' followers.
                    std::mem::forget(_stop);
                });
                let range = range(number);
                followers.push(scope.spawn(move || {
                    let _stop = StopOnDrop(stop);
                    let (mut after, mut seen, mut last) = (Revision(0), 0, Revision(0));
                    while seen < WRITES {
                        let found = engine.changes_since(&range, after, 2000).unwrap_or_else(|e| {
                            panic!("seed {seed}: {range:?} after {after}: {e:?}")
                        });
                        for change in &found.records {
                            seen += 1;
                            let expected = seen.to_string();
                            assert_eq!(value(change), expected.as_bytes(), "seed {seed} {range:?}");
                            assert!(change.revision > last, "seed {seed} {range:?}");
                            last = change.revision;
                        }
                        after = found.next;
                        if found.caught_up && seen < WRITES {
                            engine.wait_changes(&range, after, Duration::from_secs(20)).unwrap();
                        }
                    }
                    std::mem::forget(_stop);
                }));
            }
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                let mut next = 2;
                while !stop.load(Ordering::Relaxed) {
                    let shards = engine.shards();
                    let number = random.random_range(1..RANGES);
                    let at = shards.iter().position(|shard| shard.range.contains(&bound(number)));
                    let at = at.unwrap();
                    if shards[at].range.start != bound(number) {
                        split(engine, shards[at].id.0, &bound(number), next, next + 1);
                        next += 2;
                    } else if at > 0 && random.random_bool(0.7) {
                        merge(engine, shards[at - 1].id.0, shards[at].id.0, next);
                        next += 1;
                    }
                    changes.fetch_add(1, Ordering::Relaxed);
                    if random.random_bool(0.3) {
                        engine.checkpoint().unwrap();
                    }
                }
            });
            let ended: Vec<_> =
                followers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok), "seed {seed}");
        });
    });
    let changes = changes.into_inner();
    println!("{changes} splits and merges");
    assert!(changes > 10, "seed {seed}: {changes} splits and merges");
}
