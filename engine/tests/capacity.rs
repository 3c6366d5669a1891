//! A disk of a given size, filled to the brim: puts are refused, everything else goes on, and
//! space comes back without a manual step. F28, and space under endless overwrites.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{Model, contents, delete, difference, fast_dir, verify, watchdog};
use vmemkv_engine::io::testing::{CrashDisk, PowerCut};
use vmemkv_engine::{Condition, Engine, ErrorKind, KeyRange, Options, State};

const CAPACITY: u64 = 160 << 20;

fn options(background: bool) -> Options {
    Options {
        capacity_bytes: Some(CAPACITY),
        value_segment_bytes: (8 << 20) + (64 << 10),
        wal_segment_bytes: 512 << 10,
        checkpoint_wal_bytes: 4 << 20,
        background,
        ..Options::for_tests()
    }
}

fn key(number: usize) -> Vec<u8> {
    format!("k{number:05}").into_bytes()
}

/// Bytes of the directory's files.
fn used(dir: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        bytes += match entry.metadata() {
            Ok(meta) if meta.is_dir() => used(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        };
    }
    bytes
}

/// Puts new keys until one is refused; how many there are then.
fn fill(engine: &Engine, from: usize) -> usize {
    let (mut number, mut refused) = (from, 0);
    // The jobs may free a little now and then: full is what stays so.
    while refused < 50 {
        match engine.put(&key(number), &vec![number as u8; 20_000], &Condition::None) {
            Ok(written) => {
                engine.wait_durable(written.lsn).unwrap();
                (number, refused) = (number + 1, 0);
                assert!(number < 100_000, "never full");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
                refused += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    number
}

/// Reads, deletes, batches of deletes, checkpoints and restarts work; puts are refused and the
/// state says so.
fn works_when_full(engine: &Engine, count: usize) {
    assert_eq!(engine.stats().state, State::DiskFull);
    assert_eq!(engine.get(&key(count - 1)).unwrap(), Some(vec![(count - 1) as u8; 20_000]));
    assert!(engine.stats().counters.refused_disk > 0);
    engine.checkpoint().unwrap();
}

fn same(engine: &Engine, expected: &Model, at: &str) {
    let found = contents(engine);
    assert!(found == *expected, "{at}: {}", difference(&found, expected));
    verify(engine, at);
}

/// F28: the disk is full, and defragment returns space only after a checkpoint. Rule: the hard
/// reserve holds copies, index files and log until then. Each round is killed or cut at each
/// stage.
#[test]
fn f28_a_full_disk_is_refused_reclaimed_and_resumed() {
    for background in [true, false] {
        watchdog("full disk", 300, || full_disk(background));
    }
}

fn full_disk(background: bool) {
    let dir = fast_dir();
    let mut disk = CrashDisk::new(dir.path().join("0")).unwrap();
    let mut engine = Engine::open_on(disk.clone(), options(background)).unwrap();
    let mut number = 0;
    // What a kill (or a power cut) leaves, opened again on a disk of the same size.
    let mut reopen = |engine: Engine, disk: &mut Arc<CrashDisk>, cut: bool| {
        let old = Arc::clone(disk);
        number += 1;
        let next = dir.path().join(number.to_string());
        *disk = if cut {
            support::cut_to(disk, None, &next, &PowerCut::strict())
        } else {
            support::killed_to(disk, &next, number)
        };
        drop(engine);
        std::fs::remove_dir_all(vmemkv_engine::io::Disk::root(&*old)).unwrap();
        Engine::open_on(disk.clone(), options(background)).unwrap()
    };
    let root = |disk: &Arc<CrashDisk>| vmemkv_engine::io::Disk::root(&**disk).to_path_buf();
    let mut count = fill(&engine, 0);
    assert!(count * 20_000 > 60 << 20, "most of the disk is for values: {count}");
    for round in 0..2 {
        let at = |stage: &str| format!("background {background} round {round} {stage}");
        works_when_full(&engine, count);
        assert!(used(&root(&disk)) <= CAPACITY, "{}", used(&root(&disk)));
        let mut expected = contents(&engine);
        engine = reopen(engine, &mut disk, round == 1);
        same(&engine, &expected, &at("full, reopened"));
        // Every other key: no segment dies by itself.
        for number in (0..count).filter(|number| number % 2 == round) {
            let lsn = delete(&engine, &key(number));
            expected.remove(&key(number));
            engine.wait_durable(lsn).unwrap();
        }
        same(&engine, &expected, &at("half deleted"));
        engine = reopen(engine, &mut disk, round == 0);
        same(&engine, &expected, &at("half deleted, reopened"));
        if !background {
            engine.checkpoint().unwrap();
            let all = vmemkv_engine::DefragmentOptions::default();
            engine.defragment(&all, &|_| vmemkv_engine::Continue::Yes).unwrap();
            engine = reopen(engine, &mut disk, round == 1);
            same(&engine, &expected, &at("defragmented, reopened"));
            // Without background jobs each call stops where space must be given back.
            let emptied = || {
                let report = engine.defragment(&all, &|_| vmemkv_engine::Continue::Yes).unwrap();
                engine.checkpoint().unwrap();
                report.segments
            };
            while emptied() > 0 {}
        }
        let began = Instant::now();
        while engine.put(b"resumed", &vec![1; 20_000], &Condition::None).is_err() {
            std::thread::sleep(Duration::from_millis(10));
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "{}: {:?}",
                at("resumes"),
                engine.stats()
            );
        }
        assert_eq!(engine.stats().state, State::Healthy, "{}", at("resumed"));
        let last = engine.delete(b"resumed", &Condition::None).unwrap().lsn;
        engine.wait_durable(last).unwrap();
        engine = reopen(engine, &mut disk, round == 0);
        same(&engine, &expected, &at("resumed, reopened"));
        let more = fill(&engine, count);
        assert!((more - count) * 20_000 > 20 << 20, "{}: {count} {more}", at("filled again"));
        count = more;
    }
    // A range delete works on a full disk, too.
    let gone = engine.delete_range(&KeyRange::all(), usize::MAX).unwrap();
    assert!(gone.done && gone.deleted > 1000);
}

/// Endless overwrites of a corpus that leaves little room: no put is refused for long, the
/// directory stays within its size, and counts are right in the end.
#[test]
fn overwrites_without_end_stay_within_the_capacity() {
    watchdog("overwrites", 300, || {
        let dir = fast_dir();
        let options = options(true);
        let engine = Engine::open(dir.path().join("data"), options).unwrap();
        const KEYS: usize = 4000; // 80 MB of 160 MiB
        let mut random = 12345_u64;
        let mut next = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize
        };
        for number in 0..KEYS {
            let lsn = support::put(&engine, &key(number), &vec![0; 20_000]);
            if number % 16 == 0 {
                engine.wait_durable(lsn).unwrap();
            }
        }
        let mut longest = Duration::ZERO;
        for turn in 0..6 * KEYS {
            let began = Instant::now();
            loop {
                let value = vec![turn as u8; 20_000];
                match engine.put(&key(next() % KEYS), &value, &Condition::None) {
                    Ok(written) if turn % 16 == 0 => {
                        break engine.wait_durable(written.lsn).unwrap();
                    }
                    Ok(_) => break,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}"),
                }
            }
            longest = longest.max(began.elapsed());
            if turn % 1000 == 0 {
                let bytes = used(&dir.path().join("data"));
                assert!(bytes <= CAPACITY, "{bytes}");
            }
        }
        let stats = engine.stats();
        println!("longest put {longest:?}; {:?}", stats.counters);
        assert!(stats.counters.defragment_segments > 10, "{:?}", stats.counters);
        let live = stats.value_log.live_bytes as f64;
        assert!(used(&dir.path().join("data")) as f64 <= live * 2.1);
        verify(&engine, "at the end");
    });
}

/// With disk to spare, files stay in proportion to what is live.
#[test]
fn space_is_reclaimed_without_need() {
    watchdog("space", 300, || {
        let dir = fast_dir();
        let options = Options { capacity_bytes: None, ..options(true) };
        let engine = Engine::open(dir.path().join("data"), options).unwrap();
        const KEYS: usize = 5000; // 100 MB
        for turn in 0..6 * KEYS {
            let number = (turn * 7919) % KEYS;
            let lsn = support::put(&engine, &key(number), &vec![turn as u8; 20_000]);
            if turn % 16 == 0 {
                engine.wait_durable(lsn).unwrap();
            }
        }
        let began = Instant::now();
        let live = engine.stats().value_log.live_bytes as f64;
        let ratio = || used(&dir.path().join("data")) as f64 / live;
        let at_once = ratio();
        while ratio() > 1.6 {
            std::thread::sleep(Duration::from_millis(50));
            let waited = began.elapsed();
            assert!(waited < Duration::from_secs(30), "{} {:?}", ratio(), engine.stats());
        }
        println!("space amplification {at_once:.2}, then {:.2}", ratio());
        verify(&engine, "at the end");
    });
}
