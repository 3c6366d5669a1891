//! Writes that meet a freeze or a checkpoint: F2, F19, F26.

use std::sync::mpsc::channel;

use vmemkv_engine::io::testing::{Operation as Io, PowerCut};
use vmemkv_engine::{Engine, KeyRange, Operation};

use crate::support::{
    Bench, a_moment, contents, delete, difference, put, put_durable, small, watchdog,
};

/// One key of each kind: sorted or recent, inline or not.
fn prepare(engine: &Engine) {
    for place in ["sorted", "recent"] {
        for what in ["inline", "value", "deleted", "shrinks", "grows", "batched", "ranged"] {
            let value: &[u8] = if what == "inline" { b"1" } else { &[1; 64] };
            put_durable(engine, format!("{what}/{place}").as_bytes(), value);
        }
        if place == "sorted" {
            engine.reorganize(None).unwrap();
        }
    }
}

/// Changes each of them, in every way.
fn change(engine: &Engine, round: u8) {
    for place in ["sorted", "recent"] {
        let key = |what: &str| format!("{what}/{place}").into_bytes();
        put(engine, &key("inline"), &[round; 4]);
        put(engine, &key("value"), &[round; 64]);
        put(engine, &key("shrinks"), &[round; 30]);
        put(engine, &key("grows"), &[round; 900]);
        delete(engine, &key("deleted"));
        let batch = [
            Operation::Put { key: key("batched"), value: vec![round; 60] },
            Operation::Put { key: key("new"), value: vec![round; 60] },
        ];
        engine.write_batch(&batch).unwrap();
    }
    let lsn = engine.delete_range(&KeyRange::new("ranged", "rangee"), 10).unwrap().lsn;
    engine.wait_durable(lsn).unwrap();
}

/// F2 for writers: the shard is frozen and being merged; what they change now must be in the
/// merged region, or shadow it. Rule: while a shard is frozen nobody changes the payloads of its
/// frozen and sorted regions. The checkpoint is stopped at each of its steps.
#[test]
fn f02_writes_while_a_shard_is_frozen() {
    watchdog("F2", 120, || {
        let steps = [
            (Io::Sync, "t2/"),
            (Io::Create, "t1/"),
            (Io::Sync, "t1/"),
            (Io::SyncDir, "t1"),
            (Io::Rename, "MANIFEST"),
            (Io::SyncDir, ""),
        ];
        for (operation, path) in steps {
            let at = format!("at {operation:?} of {path:?}");
            let bench = Bench::new(small());
            let engine = &bench.engine;
            prepare(engine);
            let gate = bench.disk.close(operation, path);
            let expected = std::thread::scope(|scope| {
                let checkpoint = scope.spawn(|| engine.checkpoint());
                gate.reached();
                change(engine, 2);
                change(engine, 3);
                let during = contents(engine);
                // Not committed: the last checkpoint and the log must still be enough.
                bench.survives(&at);
                gate.open();
                checkpoint.join().unwrap().unwrap();
                during
            });
            let found = contents(engine);
            assert!(found == expected, "{at}: {}", difference(&found, &expected));
            bench.survives(&at);
            engine.checkpoint().unwrap();
            bench.survives(&format!("{at}, one later"));
            let after = bench.after(&PowerCut::random(1), &at);
            assert!(contents(&after) == expected, "{at}");
        }
    });
}

/// F19: a checkpoint takes over the frozen region of a running reorganize while the new active
/// region holds LSNs below its `checkpoint_lsn`. Rule: one structural operation per shard; wait,
/// then freeze anew.
#[test]
fn f19_a_checkpoint_waits_for_a_running_reorganize() {
    watchdog("F19", 60, || {
        let bench = Bench::new(small());
        let engine = &bench.engine;
        prepare(engine);
        let memory = engine.stats().index.memory_bytes;
        let gate = bench.disk.close(Io::Sync, "wal/");
        put(engine, b"before", &[1; 100]);
        gate.reached();
        std::thread::scope(|scope| {
            let reorganize = scope.spawn(|| engine.reorganize(None));
            // The freeze makes a second region: now the merge waits for the log.
            while engine.stats().index.memory_bytes < memory + 1000 {
                std::thread::yield_now();
            }
            put(engine, b"between", &[2; 100]);
            put(engine, b"value/sorted", &[9; 64]);
            delete(engine, b"value/recent");
            let (done, early) = channel();
            let checkpoint = scope.spawn(move || {
                let result = engine.checkpoint();
                done.send(()).unwrap();
                result
            });
            let early = a_moment(&early);
            assert!(early.is_none(), "the checkpoint did not wait");
            gate.open();
            reorganize.join().unwrap().unwrap();
            checkpoint.join().unwrap().unwrap();
        });
        assert_eq!(engine.get(b"between").unwrap(), Some(vec![2; 100]));
        bench.survives("F19");
    });
}

/// F26: whoever waits for space in the log, or for a merge, while holding a stripe stops the freeze
/// that would make the space. Rule: wait before locking. The log stands still until its ring is
/// full; a freeze must get through all the same.
#[test]
fn f26_a_full_log_does_not_stop_a_freeze() {
    watchdog("F26", 120, || {
        let bench = Bench::new(small());
        let engine = &bench.engine;
        put_durable(engine, b"k", &[1; 100]);
        let gate = bench.disk.close(Io::Write, "wal/");
        std::thread::scope(|scope| {
            // Five of 7 MiB do not fit a ring of 32 MiB.
            for i in 0..6 {
                scope.spawn(move || put(engine, format!("w{i}").as_bytes(), &vec![i; 7 << 20]));
            }
            while engine.stats().wal.stalls == 0 {
                std::thread::yield_now();
            }
            let memory = engine.stats().index.memory_bytes;
            let reorganize = scope.spawn(|| engine.reorganize(None));
            while engine.stats().index.memory_bytes < memory + 1000 {
                std::thread::yield_now();
            }
            // A write that changes nothing takes its stripe, and needs no log.
            assert_eq!(
                engine.try_get(b"k").unwrap(),
                vmemkv_engine::TryGet::Ready(Some(vec![1; 100]))
            );
            gate.open();
            reorganize.join().unwrap().unwrap();
        });
        let lsn = engine.stats().wal.appended_lsn;
        engine.wait_durable(lsn).unwrap();
        assert_eq!(contents(engine).len(), 7);
    });
}
