//! Waiting for changes: nobody is forgotten, nobody wakes for others' changes.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use vmemkv_engine::io::testing::Operation as DiskOperation;
use vmemkv_engine::{ErrorKind, KeyRange, Options, Revision, Sharding};

use crate::support::{Bench, a_moment, put, put_durable, small, watchdog};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

fn two_shards() -> (Bench, KeyRange, KeyRange) {
    let sharding = Sharding::Alone { boundaries: vec![b"m".to_vec()] };
    let bench = Bench::new(Options { sharding, ..small() });
    (bench, KeyRange::new(Vec::new(), *b"m"), KeyRange::new(*b"m", Vec::new()))
}

#[test]
fn a_wait_ends_with_the_first_durable_change_of_its_shard() {
    let (bench, low, high) = two_shards();
    let engine = &bench.engine;
    watchdog("a_wait_ends", 60, || {
        assert!(!engine.wait_changes(&low, Revision(0), SHORT).unwrap());
        put_durable(engine, b"z", b"other");
        assert!(!engine.wait_changes(&low, Revision(0), SHORT).unwrap());
        assert!(engine.wait_changes(&high, Revision(0), LONG).unwrap());
        std::thread::scope(|scope| {
            let waiting =
                scope.spawn(|| engine.wait_changes(&low, Revision(0), Duration::MAX).unwrap());
            std::thread::sleep(SHORT);
            put_durable(engine, b"a", b"1");
            assert!(waiting.join().unwrap());
        });
        assert_eq!(engine.changes_since(&low, Revision(0), 0).unwrap().records.len(), 1);
        assert!(!engine.wait_changes(&low, Revision(1), SHORT).unwrap());
    });
}

#[test]
fn what_is_not_durable_wakes_nobody() {
    let (bench, low, _) = two_shards();
    let gate = bench.disk.close(DiskOperation::Sync, "wal/");
    let (sender, receiver) = channel();
    let wait = || {
        let sender = sender.clone();
        let report = move |outcome| sender.send(outcome).unwrap();
        bench.engine.on_changes(&low, Revision(0), Box::new(report)).unwrap()
    };
    let before = wait();
    put(&bench.engine, b"a", b"1");
    gate.reached();
    let after = wait();
    assert!(a_moment(&receiver).is_none());
    gate.open();
    for _ in 0..2 {
        receiver.recv_timeout(LONG).unwrap().unwrap();
    }
    drop((before, after));
}

#[test]
fn a_dropped_wait_is_not_called_and_many_are_refused() {
    let (bench, low, _) = two_shards();
    let engine = &bench.engine;
    let (sender, receiver) = channel();
    let wait = |sender: std::sync::mpsc::Sender<()>| {
        let report = move |outcome: vmemkv_engine::Result<()>| {
            outcome.unwrap();
            let _ = sender.send(());
        };
        engine.on_changes(&low, Revision(0), Box::new(report))
    };
    let mut waits: Vec<_> = std::iter::from_fn(|| wait(sender.clone()).ok()).take(5000).collect();
    assert!(waits.len() >= 1000 && waits.len() < 5000, "{}", waits.len());
    let Err(error) = wait(sender.clone()) else { panic!("no limit") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    waits.truncate(3);
    put_durable(engine, b"a", b"1");
    for _ in 0..3 {
        receiver.recv_timeout(LONG).unwrap();
    }
    assert!(a_moment(&receiver).is_none());
    waits.push(wait(sender).unwrap());
    receiver.recv_timeout(LONG).unwrap();
}

#[test]
fn closing_ends_every_wait() {
    let (bench, low, _) = two_shards();
    let Bench { engine, dir, .. } = bench;
    let (sender, receiver) = channel();
    let report = move |outcome: vmemkv_engine::Result<()>| sender.send(outcome).unwrap();
    let wait = engine.on_changes(&low, Revision(0), Box::new(report)).unwrap();
    let started = Instant::now();
    drop(engine);
    // The engine's end, or the drop of the callback: either ends the wait.
    match receiver.recv_timeout(LONG) {
        Ok(outcome) => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable),
        Err(error) => assert_eq!(error, std::sync::mpsc::RecvTimeoutError::Disconnected),
    }
    assert!(started.elapsed() < LONG / 2);
    drop((wait, dir));
}

/// A restart gives the same answers about what was there before.
#[test]
fn a_position_from_before_a_restart_waits_for_what_is_new() {
    let (bench, low, _) = two_shards();
    put_durable(&bench.engine, b"a", b"1");
    let copy = bench.crash.kill(&bench.fresh()).unwrap();
    let engine = vmemkv_engine::Engine::open_on(copy, bench.options.clone()).unwrap();
    assert!(engine.wait_changes(&low, Revision(0), LONG).unwrap());
    assert!(!engine.wait_changes(&low, Revision(1), SHORT).unwrap());
    put_durable(&engine, b"b", b"2");
    assert!(engine.wait_changes(&low, Revision(1), LONG).unwrap());
}
