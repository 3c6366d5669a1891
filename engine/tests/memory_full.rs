//! The memory budget: inserts are refused, nothing else, and it heals by itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::{Duration, Instant};

use vmemkv_engine::{Condition, Engine, ErrorKind, Operation, Options, ScanOptions, State};

const BUDGET: u64 = 1 << 20;

fn key(number: u32) -> Vec<u8> {
    format!("tenant/table/{number:08}").into_bytes()
}

fn open(dir: &Path, options: Options) -> Engine {
    Engine::open(dir.join("data"), options).unwrap()
}

fn options() -> Options {
    Options { memory_budget_bytes: Some(BUDGET), ..Options::for_tests() }
}

/// Inserts until memory is full; how many keys are there.
fn fill(engine: &Engine) -> u32 {
    for number in 0..1_000_000 {
        match engine.put(&key(number), b"value of more than eight", &Condition::None) {
            Ok(written) => assert!(written.applied && !written.existed),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::MemoryFull, "{error}");
                assert!(error.message().contains("memory_budget_bytes = 1048576"), "{error}");
                return number;
            }
        }
    }
    panic!("the budget was never met");
}

fn assert_full_but_usable(engine: &Engine, keys: u32) {
    let stats = engine.stats();
    assert_eq!(stats.state, State::MemoryFull);
    assert_eq!(stats.index.budget_bytes, BUDGET);
    assert!(stats.index.memory_bytes >= BUDGET / 2, "{:?}", stats.index);
    // Reads.
    assert!(engine.get(&key(0)).unwrap().is_some());
    assert_eq!(engine.get(&key(keys)).unwrap(), None);
    let keys_only = ScanOptions { keys_only: true, limit: 10, ..ScanOptions::default() };
    assert_eq!(engine.scan(&keys_only).unwrap().entries.len(), 10);
    // Updates, also of another size, and deletes; in a batch too.
    engine.put(&key(1), &[7; 5000], &Condition::None).unwrap();
    engine.put(&key(2), b"", &Condition::IfPresent).unwrap();
    let put = |number| Operation::Put { key: key(number), value: b"batch".to_vec() };
    engine.write_batch(&[put(3), put(4), Operation::Delete { key: key(5) }]).unwrap();
    assert!(engine.delete(&key(6), &Condition::None).unwrap().existed);
    // Inserts, of a deleted key too, alone and in a batch, of which nothing is left.
    for number in [keys, 6] {
        let refused = engine.put(&key(number), b"v", &Condition::None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::MemoryFull);
        assert_eq!(engine.get(&key(number)).unwrap(), None);
    }
    let refused = engine.write_batch(&[put(7), put(keys)]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::MemoryFull);
    assert_ne!(engine.get(&key(7)).unwrap().unwrap(), b"batch");
    assert_eq!(engine.stats().counters.memory_refusals, stats.counters.memory_refusals + 3);
    for number in [5, 6] {
        // What the checks above deleted is deleted.
        assert_eq!(engine.get(&key(number)).unwrap(), None);
    }
}

#[test]
fn inserts_are_refused_until_a_reorganize_has_freed_some() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), options());
    let mut keys = fill(&engine);
    assert!(keys > 1000, "{keys}");
    // A merge alone frees some: an append region takes more for an entry.
    engine.reorganize(None).unwrap();
    assert_eq!(engine.stats().state, State::Healthy);
    loop {
        let more = fill_from(&engine, keys);
        let little = more < keys + 100;
        keys = more;
        if little {
            break;
        }
        engine.reorganize(None).unwrap();
    }
    assert_full_but_usable(&engine, keys);
    for number in 0..keys / 2 {
        engine.delete(&key(number), &Condition::None).unwrap();
    }
    engine.reorganize(None).unwrap();
    assert_eq!(engine.stats().state, State::Healthy);
    assert!(fill_from(&engine, keys) > keys + 100);
}

fn fill_from(engine: &Engine, from: u32) -> u32 {
    let mut number = from;
    while engine.put(&key(number), b"value of more than eight", &Condition::None).is_ok() {
        number += 1;
    }
    number
}

#[test]
fn with_background_jobs_it_heals_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Options { background: true, ..options() });
    let mut keys = 0;
    // The jobs merge whenever that frees some, so it takes a while until it stays full. A merge
    // under way counts as memory, and on a busy machine it may outlast the refusals.
    let mut refused = 0;
    let before = loop {
        let more = fill_from(&engine, keys);
        refused = if more == keys { refused + 1 } else { 0 };
        keys = more;
        let stats = engine.stats();
        if refused >= 20 && stats.state == State::MemoryFull {
            break stats;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    for number in 0..keys / 2 {
        engine.delete(&key(number), &Condition::None).unwrap();
    }
    let started = Instant::now();
    while engine.put(b"new", b"v", &Condition::None).is_err() {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(engine.stats().counters.reorganizes > before.counters.reorganizes);
}

#[test]
fn recovery_refuses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let count = 3000;
    for checkpoint in [false, true] {
        let engine = open(dir.path(), Options::for_tests());
        for number in 0..count {
            engine.put(&key(number), &[3; 100], &Condition::None).unwrap();
        }
        engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
        if checkpoint {
            engine.checkpoint().unwrap();
        }
        drop(engine);
        let small = Options { memory_budget_bytes: Some(1), ..Options::for_tests() };
        let engine = open(dir.path(), small);
        assert_eq!(engine.stats().state, State::MemoryFull);
        for number in 0..count {
            assert_eq!(engine.get(&key(number)).unwrap().unwrap(), [3; 100], "{number}");
        }
        engine.put(&key(0), &[3; 100], &Condition::None).unwrap();
        let refused = engine.put(&key(count), b"v", &Condition::None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::MemoryFull);
        engine.checkpoint().unwrap();
    }
}

#[test]
fn a_budget_of_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let none = Options { memory_budget_bytes: Some(0), ..Options::for_tests() };
    let Err(error) = Engine::open(dir.path().join("data"), none) else { panic!("opened") };
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("memory_budget_bytes"), "{error}");
}
