//! The rest of the public face: scans and range deletes over many chunks, checksums, statistics,
//! tickets, closing, full append regions; large values and awkward keys in [`keys`].

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod keys;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::channel;

use support::{Model, contents, delete, fast_dir, put, put_durable, small, verify, watchdog};
use vmemkv_engine::io::testing::CrashDisk;
use vmemkv_engine::{
    Condition, Engine, ErrorKind, KeyRange, Lsn, Operation, Options, ScanOptions, Sharding,
};

fn open(options: Options) -> (tempfile::TempDir, Arc<CrashDisk>, Engine) {
    let dir = fast_dir();
    let disk = CrashDisk::new(dir.path()).unwrap();
    let engine = Engine::open_on(disk.clone(), options).unwrap();
    (dir, disk, engine)
}

/// Several shards, sorted and recent keys, tombstones in both; what is left.
fn filled(engine: &Engine, count: u32) -> Model {
    let mut model = Model::new();
    for part in 0..2 {
        for i in (part..count).step_by(2) {
            let key = format!("k{i:06}").into_bytes();
            let value = vec![i as u8; (i % 40) as usize];
            put(engine, &key, &value);
            model.insert(key, value);
        }
        for i in (part..count).step_by(3) {
            let key = format!("k{i:06}").into_bytes();
            delete(engine, &key);
            model.remove(&key);
        }
        if part == 0 {
            engine.reorganize(None).unwrap();
        }
    }
    model
}

fn shards() -> Options {
    let boundaries = vec![b"k001000".to_vec(), b"k001000\0".to_vec(), b"k0015".to_vec()];
    Options { sharding: Sharding::Alone { boundaries }, ..small() }
}

#[test]
fn scans_over_many_chunks_in_both_directions() {
    let (_dir, _disk, engine) = open(shards());
    let model = filled(&engine, 3000);
    for reverse in [false, true] {
        for (max_bytes, limit) in [(1, 0), (100, 0), (5000, 0), (0, 7), (0, 0)] {
            let mut options = ScanOptions { reverse, max_bytes, limit, ..Default::default() };
            let mut found = Vec::new();
            let mut chunks = 0;
            loop {
                let chunk = engine.scan(&options).unwrap();
                chunks += 1;
                assert!(limit == 0 || chunk.entries.len() <= limit);
                assert!(max_bytes != 1 || chunk.entries.len() <= 1);
                found.extend(chunk.entries);
                // With a limit, `done` says that the limit is reached.
                let at_end = if reverse {
                    options.range.end = chunk.covered_to.clone();
                    chunk.covered_to.is_empty()
                } else {
                    options.range.start = chunk.covered_to.clone();
                    chunk.covered_to.is_empty()
                };
                if at_end {
                    assert!(chunk.done);
                    break;
                }
            }
            if reverse {
                found.reverse();
            }
            let at = format!("reverse {reverse} max_bytes {max_bytes} limit {limit}");
            assert!(found.iter().map(|(k, v)| (k, v)).eq(&model), "{at}");
            assert!(chunks > 1 || (max_bytes == 0 && limit == 0), "{at}");
        }
    }
}

#[test]
fn range_deletes_over_chunk_borders() {
    let (_dir, disk, engine) = open(shards());
    let mut model = filled(&engine, 3000);
    for (start, end, max_keys) in [
        ("k000100", "k000110", 1),
        ("k000200", "k000800", 100),
        ("k000900", "k001600", 1000),
        ("k002000", "k002001", 1000),
        ("k0025", "", 129),
    ] {
        let mut range = KeyRange::new(start, end);
        let expected: Vec<_> = model.keys().filter(|key| range.contains(key)).cloned().collect();
        let mut deleted = 0;
        loop {
            let answer = engine.delete_range(&range, max_keys).unwrap();
            assert!(answer.deleted as usize <= max_keys);
            assert!(answer.done || answer.covered_to > range.start, "it gets on");
            deleted += answer.deleted;
            range.start = answer.covered_to;
            if answer.done {
                assert_eq!(range.start, range.end);
                engine.wait_durable(answer.lsn).unwrap();
                break;
            }
        }
        assert_eq!(deleted as usize, expected.len(), "{start}..{end}");
        expected.iter().for_each(|key| drop(model.remove(key)));
        assert!(contents(&engine) == model, "{start}..{end}");
    }
    drop(engine);
    let engine = Engine::open_on(disk, shards()).unwrap();
    assert!(contents(&engine) == model);
    let revisions: u64 = engine.shards().iter().map(|shard| shard.revision.0).sum();
    assert!(revisions > 3000, "{revisions}");
}

/// `xxh3_64(u32le key length ++ key ++ value)`, computed in one piece.
#[test]
fn a_checksum_is_what_it_says() {
    let (_dir, _disk, engine) = open(shards());
    let model = filled(&engine, 2000);
    let range = KeyRange::new("k0003", "k0018");
    let (mut sum, mut count, mut bytes) = (0, 0, 0);
    for (key, value) in model.iter().filter(|(key, _)| range.contains(key)) {
        let mut all = u32::try_from(key.len()).unwrap().to_le_bytes().to_vec();
        all.extend_from_slice(key);
        all.extend_from_slice(value);
        sum ^= xxhash_rust::xxh3::xxh3_64(&all);
        count += 1;
        bytes += (key.len() + value.len()) as u64;
    }
    let found = engine.checksum(&range, &|| false).unwrap();
    assert_eq!((found.checksum, found.count, found.bytes), (sum, count, bytes));
    engine.reorganize(None).unwrap();
    engine.checkpoint().unwrap();
    assert_eq!(engine.checksum(&range, &|| false).unwrap(), found);
    let cancelled = engine.checksum(&range, &|| true).unwrap_err();
    assert_eq!(cancelled.kind(), ErrorKind::Unavailable);
}

#[test]
fn statistics_move() {
    let (_dir, _disk, engine) = open(small());
    put_durable(&engine, b"k", &[1; 100]);
    put_durable(&engine, b"k", &[2; 100]);
    delete(&engine, b"missing");
    put(&engine, b"gone", b"1");
    delete(&engine, b"gone");
    engine.put(b"k", b"x", &Condition::IfAbsent).unwrap();
    engine.get(b"k").unwrap();
    engine.get(b"missing").unwrap();
    contents(&engine);
    engine.reorganize(None).unwrap();
    engine.checkpoint().unwrap();
    let stats = engine.stats();
    let counters = stats.counters;
    assert_eq!((counters.puts, counters.deletes, counters.updates_in_place), (3, 1, 1));
    assert_eq!((counters.gets_hit, counters.gets_miss, counters.conditions_failed), (1, 1, 1));
    assert_eq!((counters.scan_chunks, counters.scan_entries), (1, 1));
    assert_eq!(
        (counters.reorganizes, counters.checkpoints, counters.checkpoints_failed),
        (1, 1, 0)
    );
    assert!(counters.checkpoint_index_bytes > 0);
    assert_eq!((stats.index.sorted_entries, stats.index.append_entries), (1, 0));
    assert!(stats.value_log.live_bytes > 100 && stats.value_log.base_bytes > 0);
    assert_eq!(stats.wal.records, 4);
    assert!(stats.wal.fsyncs > 0 && stats.wal.bytes > 0);
    assert_eq!(stats.wal.durable_lsn, stats.wal.checkpoint_lsn);
}

#[test]
fn of_many_inserts_if_absent_one_wins() {
    watchdog("insert if absent", 60, || {
        let (_dir, disk, engine) = open(small());
        for round in 0..60u8 {
            let key = [b'k', round % 20];
            if round >= 20 {
                delete(&engine, &key);
            }
            let start = std::sync::Barrier::new(6);
            let winners: Vec<u8> = std::thread::scope(|scope| {
                let insert = |id: u8| {
                    let (start, engine) = (&start, &engine);
                    move || {
                        start.wait();
                        let value = vec![id; 1 + usize::from(round)];
                        let written = engine.put(&key, &value, &Condition::IfAbsent).unwrap();
                        engine.wait_durable(written.lsn).unwrap();
                        written.applied.then_some(id)
                    }
                };
                let threads: Vec<_> = (0..6).map(|id| scope.spawn(insert(id))).collect();
                if round % 5 == 0 {
                    engine.reorganize(None).unwrap();
                }
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            let [winner] = winners[..] else { panic!("{} winners", winners.len()) };
            assert_eq!(engine.get(&key).unwrap().unwrap()[0], winner);
        }
        let expected = contents(&engine);
        drop(engine);
        assert!(contents(&Engine::open_on(disk, small()).unwrap()) == expected);
    });
}

#[test]
fn many_threads_wait_and_each_callback_comes_once() {
    watchdog("tickets", 60, || {
        let (_dir, _disk, engine) = open(small());
        let (sender, answers) = channel();
        std::thread::scope(|scope| {
            for thread in 0..6u8 {
                let (engine, sender) = (&engine, sender.clone());
                scope.spawn(move || {
                    for i in 0..100u8 {
                        let lsn = put(engine, &[thread, i], &[i; 50]);
                        let sender = sender.clone();
                        let id = (thread, i);
                        engine.on_durable(lsn, Box::new(move |r| sender.send((id, r)).unwrap()));
                        if i % 7 == 0 {
                            engine.wait_durable(lsn).unwrap();
                            assert!(engine.durable_lsn() >= lsn);
                        }
                    }
                });
            }
        });
        drop(sender);
        let called: Vec<_> =
            answers.into_iter().map(|(id, result)| (id, result.unwrap())).collect();
        assert_eq!(called.len(), 600);
        assert_eq!(called.iter().collect::<BTreeSet<_>>().len(), 600);
        assert_eq!(
            engine.wait_durable(Lsn(u64::MAX)).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    });
}

#[test]
fn closing_checkpoints_and_dropping_does_not() {
    let (_dir, disk, engine) = open(small());
    put(&engine, b"a", &[1; 100]);
    drop(engine);
    let engine = Engine::open_on(disk.clone(), small()).unwrap();
    assert_eq!(engine.get(b"a").unwrap(), Some(vec![1; 100]));
    assert_eq!(engine.stats().wal.checkpoint_lsn, Lsn(0));
    put(&engine, b"b", &[2; 100]);
    engine.close().unwrap();
    let engine = Engine::open_on(disk, small()).unwrap();
    let wal = engine.stats().wal;
    assert!(wal.checkpoint_lsn > Lsn(0) && wal.checkpoint_lsn == wal.appended_lsn, "{wal:?}");
    assert_eq!(contents(&engine).len(), 2);
    assert_eq!(engine.identity().boot, 3);
}

/// More keys than the append region takes, from many threads, while a checkpoint runs: writers
/// wait for room, and nobody waits for ever.
#[test]
fn a_small_append_region_with_many_writers() {
    watchdog("make room", 120, || {
        for background in [false, true] {
            let (_dir, disk, engine) = open(Options { background, ..small() });
            std::thread::scope(|scope| {
                for thread in 0..4u32 {
                    let engine = &engine;
                    scope.spawn(move || {
                        for i in 0..60u32 {
                            let key = |n: u32| format!("{:05}/{thread}", (i * 150 + n) * 7 % 9001);
                            let one = |n| Operation::Put { key: key(n).into(), value: vec![1; 9] };
                            let batch: Vec<_> = (0..150).map(one).collect();
                            if background {
                                engine.write_batch(&batch).unwrap();
                            } else if thread % 2 == 0 {
                                for n in 0..150 {
                                    put(engine, key(n).as_bytes(), &[1; 9]);
                                }
                            } else {
                                batch.iter().for_each(|one| {
                                    engine.write_batch(std::slice::from_ref(one)).unwrap();
                                });
                            }
                        }
                    });
                }
                for _ in 0..3 {
                    engine.checkpoint().unwrap();
                }
            });
            let stats = engine.stats();
            assert!(background || stats.counters.stalls_append > 0, "{stats:?}");
            let found = contents(&engine);
            assert_eq!(found.len(), 4 * 9000);
            verify(&engine, "make room");
            drop(engine);
            assert!(contents(&Engine::open_on(disk, small()).unwrap()) == found);
        }
    });
}
