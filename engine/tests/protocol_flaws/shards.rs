//! Shards that come into being: F15, F16, F17, as far as they go without splits.

use std::sync::mpsc::channel;

use vmemkv_engine::io::testing::{Operation as Io, PowerCut};
use vmemkv_engine::{KeyRange, Options, ShardId, Sharding};

use crate::support::{Bench, a_moment, contents, put_durable, small, watchdog};

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
