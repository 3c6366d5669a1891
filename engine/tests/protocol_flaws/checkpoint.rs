//! Writes that meet a freeze or a checkpoint: F2, F19, F26.

use std::sync::mpsc::channel;

use vmemkv_engine::io::testing::{Keep, Operation as Io, PowerCut};
use vmemkv_engine::{Engine, KeyRange, Operation, Options};

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
    // Enough to roll the log, so that what was given up too early is written over.
    for i in 0..20u8 {
        put(engine, &[b'f', i], &[round; 1500]);
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
            // The log waits for the sync of what it refers to.
            let write_once_bytes = if path == "t2/" { usize::MAX } else { 600 };
            let bench = Bench::new(Options { write_once_bytes, ..small() });
            let engine = &bench.engine;
            prepare(engine);
            let gate = bench.disk.close(operation, path);
            let expected = std::thread::scope(|scope| {
                let checkpoint = scope.spawn(|| engine.checkpoint());
                gate.reached();
                change(engine, 2);
                bench.survives(&at);
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

/// F5 for writers: C1 to C7; then somebody empties a segment; C8 frees it, and it is used again;
/// crash: the new index file points there, and the writes that emptied it are not durable. Rule:
/// free only what was empty at C1 of a committed checkpoint.
#[test]
fn f05_a_segment_that_is_emptied_during_a_checkpoint() {
    watchdog("F5", 60, || {
        let bench = Bench::new(small());
        let engine = &bench.engine;
        let large = |byte: u8| vec![byte; (1 << 20) - 200];
        for i in 0..8u8 {
            put_durable(engine, &[b'k', i], &large(i));
        }
        // Another segment is open now.
        put_durable(engine, b"other", &large(9));
        let expected = contents(engine);
        let commit = bench.disk.close(Io::Rename, "MANIFEST");
        std::thread::scope(|scope| {
            let checkpoint = scope.spawn(|| engine.checkpoint());
            commit.reached();
            let log = bench.disk.close(Io::Write, "wal/");
            for i in 0..8u8 {
                put(engine, &[b'k', i], b"x");
            }
            commit.open();
            checkpoint.join().unwrap().unwrap();
            assert_eq!(engine.stats().counters.value_segments_freed, 0);
            // Takes the segment if it can be had, again and again: freed ones come when the pins
            // of old readers are gone, which many new ones bring about.
            for i in 0..7u8 {
                put(engine, &[b'n', i], &vec![100 + i; 4 << 20]);
                (0..300).for_each(|_| drop(engine.get(b"other").unwrap()));
            }
            for seed in 0..3 {
                let cut = PowerCut { seed, keep: Keep::Everything, unit: 4096 };
                let after = bench.after(&cut, "F5");
                assert!(contents(&after) == expected, "an index file points to garbage");
            }
            log.open();
        });
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

/// F18 for a reorganize: what it merges is in no file, so the shard stays dirty although its new
/// active region is untouched. Rule: a publish takes the mark along.
#[test]
fn f18_a_reorganized_shard_is_still_dirty() {
    watchdog("F18 reorganize", 60, || {
        let bench = Bench::new(small());
        let engine = &bench.engine;
        prepare(engine);
        engine.checkpoint().unwrap();
        for round in 0..3u8 {
            put_durable(engine, &[b'r', round], &[round; 100]);
            put_durable(engine, b"value/sorted", &[round; 50]);
            engine.reorganize(None).unwrap();
            engine.checkpoint().unwrap();
            bench.survives(&format!("round {round}"));
        }
    });
}

/// F26: whoever waits for space in the log, or for a merge, while holding a stripe stops the freeze
/// that would make the space. Rule: wait before locking. The log stands still until its ring is
/// full; a freeze must get through all the same.
#[test]
fn f26_a_full_log_does_not_stop_a_freeze() {
    watchdog("F26", 120, || {
        let bench = Bench::new(Options { write_once_bytes: usize::MAX, ..small() });
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
