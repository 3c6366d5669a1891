//! What authors of a like engine had to learn, as far as no other test shows it. The numbers are
//! those of their list; `docs/durability.md` names the test of each.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vmemkv_engine::{Condition, Engine, KeyRange, Options, ScanOptions};

fn open(data: &Path, options: &Options) -> Engine {
    Engine::open(data, options.clone()).unwrap()
}

fn put(engine: &Engine, key: &[u8], value: &[u8]) {
    engine.put(key, value, &Condition::None).unwrap();
}

fn settle(engine: &Engine) {
    engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
}

fn count(engine: &Engine) -> u64 {
    engine.checksum(&KeyRange::all(), &|| false).unwrap().count
}

/// Inline values take nothing from the value log.
#[test]
fn lesson_15_inline_writes_do_not_grow_the_value_log() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("data"), &Options::for_tests());
    put(&engine, b"k", &[1; 9]);
    let before = engine.stats().value_log;
    assert!(before.live_bytes > 0);
    for len in 0..=8 {
        for number in 0..100u8 {
            put(&engine, &[b'i', number], &vec![0xff; len]);
        }
    }
    assert_eq!(engine.stats().value_log, before);
    // Off to an inline value: the record is dead.
    put(&engine, b"k", b"12345678");
    assert_eq!(engine.stats().value_log.live_bytes, 0);
}

/// Each checkpoint makes more durable, and what it froze stays readable; also with nothing to do.
#[test]
fn lesson_29_30_74_repeated_checkpoints_extend_what_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let engine = open(&data, &Options::for_tests());
    let mut last = engine.checkpoint().unwrap();
    assert_eq!(count(&engine), 0);
    let mut base_bytes = 0;
    for round in 0..10u8 {
        put(&engine, &[round], &[round; 5000]);
        let report = engine.checkpoint().unwrap();
        assert!(report.id > last.id && report.lsn > last.lsn);
        let now = engine.stats().value_log.base_bytes;
        assert!(now > base_bytes);
        (last, base_bytes) = (report, now);
        for earlier in 0..=round {
            assert_eq!(engine.get(&[earlier]).unwrap().unwrap(), [earlier; 5000]);
        }
    }
    drop(engine);
    assert_eq!(count(&open(&data, &Options::for_tests())), 10);
}

/// Reorganize does one cycle and ends, whatever writers do (a loop until empty never returned).
#[test]
fn lesson_r14_48_jobs_end_and_writers_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("data"), &Options::for_tests());
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u8)
            .map(|thread| {
                let (engine, stop) = (&engine, &stop);
                scope.spawn(move || {
                    let mut written = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        let key = [&[thread][..], &(written % 5000).to_le_bytes()].concat();
                        put(engine, &key, &[thread; 30]);
                        written += 1;
                    }
                    written
                })
            })
            .collect();
        for _ in 0..20 {
            engine.reorganize(None).unwrap();
            engine.checkpoint().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            assert!(writer.join().unwrap() > 20, "a writer stood still");
        }
    });
    assert!(started.elapsed() < Duration::from_secs(120));
}

/// A value read or scanned during updates is one version, with no checkpoint to help.
#[test]
fn lesson_42_43_values_are_never_torn() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("data"), &Options::for_tests());
    for key in 0..4u8 {
        put(&engine, &[key], &[0; 2000]);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut fill = 0u8;
            while !stop.load(Ordering::Relaxed) {
                fill = fill.wrapping_add(1);
                for key in 0..4u8 {
                    // In place, shorter and longer.
                    put(&engine, &[key], &vec![fill; 1000 + usize::from(fill) * 3]);
                }
            }
        });
        for _ in 0..300 {
            for (_, value) in engine.scan(&ScanOptions::default()).unwrap().entries {
                assert!(value.iter().all(|byte| *byte == value[0]));
            }
            let value = engine.get(&[1]).unwrap().unwrap();
            assert!(value.iter().all(|byte| *byte == value[0]));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// insert, delete, insert, update: only the last state comes back; and nothing comes of nothing.
#[test]
fn lesson_62_to_70_a_restart_brings_the_last_state() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    drop(open(&data, &Options::for_tests()));
    let engine = open(&data, &Options::for_tests());
    assert_eq!(count(&engine), 0);
    for number in 0..1000u32 {
        let key = number.to_le_bytes();
        put(&engine, &key, b"first");
        assert!(engine.delete(&key, &Condition::IfPresent).unwrap().applied);
        if number % 10 != 0 {
            assert!(!engine.put(&key, b"second", &Condition::None).unwrap().existed);
            put(&engine, &key, b"a third one, not inline");
        }
    }
    settle(&engine);
    drop(engine);
    let engine = open(&data, &Options::for_tests());
    assert_eq!(count(&engine), 900);
    assert_eq!(engine.get(&0u32.to_le_bytes()).unwrap(), None);
    engine.reorganize(None).unwrap();
    assert_eq!(count(&engine), 900);
}

/// Replay of more keys than an append region holds merges by itself: there are no jobs yet.
#[test]
fn lesson_71_recovery_with_a_small_append_region() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let options = Options { wal_segment_bytes: 1 << 20, ..Options::for_tests() };
    let wide = Options { append_capacity: 1 << 16, ..options.clone() };
    let engine = open(&data, &wide);
    let keys = 3 * options.append_capacity as u32;
    for number in 0..keys {
        put(&engine, &number.to_le_bytes(), b"v");
    }
    settle(&engine);
    drop(engine);
    assert_eq!(count(&open(&data, &options)), u64::from(keys));
}

/// The log's length asks for a checkpoint, and so do values whose bytes are mostly in T2.
#[test]
fn lesson_77_checkpoints_come_by_themselves_with_small_and_large_values() {
    for value_bytes in [8, 100, 64 << 10] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { background: true, ..Options::for_tests() };
        let engine = open(&dir.path().join("data"), &options);
        let started = Instant::now();
        let mut number = 0u32;
        while engine.stats().counters.checkpoints < 2 {
            assert!(started.elapsed() < Duration::from_secs(60), "{value_bytes}: no checkpoint");
            put(&engine, &(number % 100).to_le_bytes(), &vec![7; value_bytes]);
            number += 1;
        }
        settle(&engine);
        assert_eq!(count(&engine), u64::from(number.min(100)));
    }
}
