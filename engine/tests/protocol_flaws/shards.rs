//! Shards that come into being, new, by split or by merge: F15, F16, F17.

use std::sync::mpsc::channel;

use vmemkv_engine::io::testing::{Operation as Io, PowerCut};
use vmemkv_engine::{Engine, KeyRange, MergeShards, Options, ShardId, Sharding, SplitShard};

use crate::support::{Bench, a_moment, contents, put, put_durable, small, watchdog};

fn managed() -> Options {
    Options { sharding: Sharding::Managed, ..small() }
}

/// F15: a write names a shard that the recovery does not know. Rule: replay routes by key. Here
/// the shards come from the log, in the order of their records, with writes between.
#[test]
fn f15_writes_to_new_shards_are_routed_by_key() {
    watchdog("F15", 60, || {
        let bench = Bench::new(managed());
        let engine = &bench.engine;
        for (id, (start, end)) in [("a", "f"), ("p", ""), ("f", "k")].into_iter().enumerate() {
            engine.create_shard(ShardId(id as u64 + 10), &KeyRange::new(start, end), 7).unwrap();
            put_durable(engine, start.as_bytes(), &[1; 100]);
            bench.survives("F15");
            if id == 1 {
                engine.checkpoint().unwrap();
            }
        }
        let after = bench.after(&PowerCut::strict(), "F15");
        assert_eq!(after.shards(), engine.shards());
        // Instance numbers go on, too.
        after.create_shard(ShardId(99), &KeyRange::new("k", "p"), 7).unwrap();
        let mut instances: Vec<_> = after.shards().iter().map(|shard| shard.instance).collect();
        instances.sort_unstable();
        instances.dedup();
        assert_eq!(instances.len(), 4);
    });
}

/// F16 for a new shard: its record is in the log, `checkpoint_lsn` behind it, its place in the
/// table not yet taken: the checkpoint's shard list lacks it, the log before is dropped. Rule: no
/// checkpoint between a shard's record and its place in the table.
#[test]
fn f16_a_checkpoint_while_a_shard_is_made() {
    watchdog("F16", 60, || {
        let bench = Bench::new(managed());
        let engine = &bench.engine;
        let gate = bench.disk.close(Io::Sync, "wal/");
        std::thread::scope(|scope| {
            let create = scope.spawn(|| {
                engine.create_shard(ShardId(1), &KeyRange::all(), 1).unwrap();
                engine.durable_lsn()
            });
            gate.reached();
            let (done, early) = channel();
            let checkpoint = scope.spawn(move || {
                let result = engine.checkpoint();
                done.send(()).unwrap();
                result
            });
            a_moment(&early);
            gate.open();
            assert!(create.join().unwrap().0 > 0, "the shard was there before its record");
            checkpoint.join().unwrap().unwrap();
        });
        put_durable(engine, b"k", b"v");
        let after = bench.after(&PowerCut::strict(), "F16");
        assert_eq!(after.shards().len(), 1);
        assert_eq!(contents(&after).len(), 1);
    });
}

/// F17: a new shard without writes counts as unchanged and gets no file; its record leaves the
/// log. Rule: a new shard is dirty until it has a file.
#[test]
fn f17_a_new_shard_survives_checkpoints_without_a_write() {
    watchdog("F17", 60, || {
        let bench = Bench::new(managed());
        let engine = &bench.engine;
        engine.create_shard(ShardId(3), &KeyRange::new("a", "m"), 5).unwrap();
        for round in 0..3 {
            engine.checkpoint().unwrap();
            let after = bench.after(&PowerCut::strict(), "F17");
            assert_eq!(after.shards(), engine.shards(), "round {round}");
        }
        put_durable(engine, b"b", &[1; 50]);
        engine.checkpoint().unwrap();
        bench.survives("F17");
        let shards = bench.after(&PowerCut::strict(), "F17").shards();
        assert_eq!((shards[0].epoch, shards[0].revision.0), (5, 1));
    });
}

fn split(operation: u64, shard: u64, key: &str, to: u64, epoch: u64) -> SplitShard {
    let (left, right) = (ShardId(to), ShardId(to + 1));
    SplitShard { operation, shard: ShardId(shard), key: key.into(), left, right, epoch }
}

fn ids(engine: &Engine) -> Vec<u64> {
    engine.shards().iter().map(|shard| shard.id.0).collect()
}

/// F16: a split is logged, a checkpoint's position lies behind its record, and its shard list has
/// the parent: the split is lost with the log before. Rule: publish, then log, and both under the
/// lock under which a checkpoint takes position and list. Here checkpoint and split meet at every
/// place where either waits for the disk, in both orders.
#[test]
fn f16_a_split_and_a_merge_meet_a_checkpoint() {
    let gates =
        [(Io::Sync, "wal/"), (Io::Create, "t1/"), (Io::Sync, "t1/"), (Io::Rename, "MANIFEST")];
    watchdog("F16 split", 120, || {
        for (operation, place) in gates {
            for merge in [false, true] {
                let at = format!("F16 {operation:?} {place} merge {merge}");
                let bench = Bench::new(small());
                let engine = &bench.engine;
                put_durable(engine, b"a", &[1; 100]);
                put_durable(engine, b"z", &[1; 100]);
                if merge {
                    engine.split_shard(&split(1, 1, "m", 10, 2)).unwrap();
                }
                let gate = bench.disk.close(operation, place);
                let expected = std::thread::scope(|scope| {
                    let checkpoint = scope.spawn(|| {
                        // Something to sync, also where the gate is the log's.
                        put(engine, b"b", &[2; 100]);
                        engine.checkpoint()
                    });
                    gate.reached();
                    let change = scope.spawn(|| {
                        if merge {
                            let (left, right, merged) = (ShardId(10), ShardId(11), ShardId(12));
                            let (operation, epoch) = (2, 3);
                            let merge = MergeShards { operation, left, right, merged, epoch };
                            engine.merge_shards(&merge)
                        } else {
                            engine.split_shard(&split(1, 1, "m", 10, 2))
                        }
                    });
                    let (done, early) = channel::<()>();
                    a_moment(&early);
                    drop(done);
                    gate.open();
                    change.join().unwrap().unwrap();
                    // Durable, whether the checkpoint has ended or not.
                    let expected = if merge { vec![12] } else { vec![10, 11] };
                    assert_eq!(ids(&bench.after(&PowerCut::strict(), &at)), expected, "{at}");
                    checkpoint.join().unwrap().unwrap();
                    expected
                });
                let after = bench.after(&PowerCut::strict(), &at);
                assert_eq!(ids(&after), expected, "{at}: after both");
                assert_eq!(ids(engine), expected, "{at}");
                bench.survives(&at);
                engine.checkpoint().unwrap();
                assert_eq!(ids(&bench.after(&PowerCut::strict(), &at)), expected, "{at}: twice");
                bench.survives(&at);
            }
        }
    });
}

/// A split waits for no checkpoint that is not at its shard: one that is at another shard, and
/// would be for long.
#[test]
fn a_split_does_not_wait_for_the_checkpoint_of_another_shard() {
    watchdog("split beside a checkpoint", 60, || {
        let bench = Bench::new(small());
        let engine = &bench.engine;
        put_durable(engine, b"a", &[1; 100]);
        put_durable(engine, b"z", &[1; 100]);
        engine.split_shard(&split(1, 1, "m", 10, 2)).unwrap();
        engine.checkpoint().unwrap();
        put_durable(engine, b"a", &[2; 100]);
        // The left shard is dirty, the right one is not.
        let gate = bench.disk.close(Io::Sync, "t1/");
        std::thread::scope(|scope| {
            let checkpoint = scope.spawn(|| engine.checkpoint());
            gate.reached();
            engine.split_shard(&split(2, 11, "t", 12, 3)).unwrap();
            assert_eq!(ids(engine), [10, 12, 13]);
            assert!(!checkpoint.is_finished());
            gate.open();
            checkpoint.join().unwrap().unwrap();
        });
        assert_eq!(ids(&bench.after(&PowerCut::strict(), "beside")), [10, 12, 13]);
        bench.survives("beside");
    });
}

/// F17 for children and merged shards: nothing is written to them.
#[test]
fn f17_new_shards_of_a_split_or_merge_survive_checkpoints_without_a_write() {
    watchdog("F17 split", 60, || {
        for settled in [false, true] {
            let bench = Bench::new(small());
            let engine = &bench.engine;
            put_durable(engine, b"a", &[1; 100]);
            put_durable(engine, b"z", &[1; 100]);
            engine.checkpoint().unwrap();
            let check = || {
                if settled {
                    engine.reorganize(None).unwrap();
                }
                for round in 0..3 {
                    engine.checkpoint().unwrap();
                    let after = bench.after(&PowerCut::strict(), "F17");
                    assert_eq!(ids(&after), ids(engine), "round {round}");
                    bench.survives("F17");
                }
            };
            engine.split_shard(&split(1, 1, "m", 10, 2)).unwrap();
            check();
            let (left, right, merged) = (ShardId(10), ShardId(11), ShardId(12));
            engine
                .merge_shards(&MergeShards { operation: 2, left, right, merged, epoch: 3 })
                .unwrap();
            check();
        }
    });
}
