//! Callbacks and the end of the engine: who closes last, and callbacks that panic.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vmemkv_engine::io::testing::Operation as DiskOperation;
use vmemkv_engine::{Engine, ErrorKind, KeyRange, Options, Result, Revision, Sharding};

use crate::support::{Bench, a_moment, put, put_durable, small, watchdog};

const LONG: Duration = Duration::from_secs(60);

fn all() -> KeyRange {
    KeyRange::new(Vec::new(), Vec::new())
}

fn bench() -> Bench {
    Bench::new(Options { sharding: Sharding::Alone { boundaries: Vec::new() }, ..small() })
}

/// A callback that says when it runs, and then waits to be let go.
fn gate() -> (impl FnOnce(Result<()>) + Send, Receiver<()>, Sender<()>) {
    let (inside, reached) = channel();
    let (go, let_go) = channel();
    let callback = move |_| {
        inside.send(()).unwrap();
        let_go.recv().unwrap();
    };
    (callback, reached, go)
}

#[test]
fn an_engine_dropped_during_a_callback_leaves_its_directory_free() {
    watchdog("around a callback", 60, || {
        let bench = bench();
        let (callback, reached, go) = gate();
        let wait = bench.engine.on_changes(&all(), Revision(0), Box::new(callback)).unwrap();
        put(&bench.engine, b"a", b"1");
        reached.recv_timeout(LONG).unwrap();
        let Bench { engine, disk, options, dir, .. } = bench;
        let reopening = std::thread::spawn(move || {
            drop(engine);
            Engine::open_on(disk, options)
        });
        std::thread::sleep(Duration::from_millis(100));
        go.send(()).unwrap();
        let engine = reopening.join().unwrap().unwrap();
        assert_eq!(engine.get(b"a").unwrap(), Some(b"1".to_vec()));
        drop((wait, engine, dir));
    });
}

#[test]
fn an_engine_dropped_in_a_callback_is_closed_after_it() {
    watchdog("in a callback", 60, || {
        for close in [false, true] {
            let bench = bench();
            let Bench { engine, disk, options, dir, .. } = bench;
            let engine = Arc::new(Mutex::new(Some(engine)));
            let (dropped, is_dropped) = channel();
            let (go, let_go) = channel();
            let last = Arc::clone(&engine);
            let callback = move |outcome: Result<()>| {
                outcome.unwrap();
                let engine = last.lock().unwrap().take().unwrap();
                // In the log, and perhaps not durable before the flusher goes on.
                put(&engine, b"late", b"2");
                let closed = if close {
                    engine.close()
                } else {
                    drop(engine);
                    Ok(())
                };
                dropped.send(closed).unwrap();
                let_go.recv().unwrap();
            };
            let wait = {
                let engine = engine.lock().unwrap();
                let engine = engine.as_ref().unwrap();
                let wait = engine.on_changes(&all(), Revision(0), Box::new(callback)).unwrap();
                put(engine, b"a", b"1");
                wait
            };
            let closed = is_dropped.recv_timeout(LONG).unwrap();
            assert_eq!(closed.map_err(|error| error.kind()).is_err(), close);
            // The flusher still has to write, behind the callback: nobody else may yet.
            let gate = disk.close(DiskOperation::Sync, "wal/");
            go.send(()).unwrap();
            gate.reached();
            let early = Engine::open_on(disk.clone(), options.clone()).map(drop).unwrap_err();
            assert_eq!(early.kind(), ErrorKind::InUse);
            gate.open();
            let began = Instant::now();
            let engine = loop {
                match Engine::open_on(disk.clone(), options.clone()) {
                    Err(error) if error.kind() == ErrorKind::InUse => {}
                    opened => break opened.unwrap(),
                }
                assert!(began.elapsed() < LONG / 2, "the directory stays locked");
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(engine.get(b"a").unwrap(), Some(b"1".to_vec()));
            assert_eq!(engine.get(b"late").unwrap(), Some(b"2".to_vec()));
            drop((wait, engine, dir));
        }
    });
}

#[test]
fn a_callback_that_panics_harms_no_other() {
    watchdog("panics", 60, || {
        let bench = bench();
        let engine = &bench.engine;
        let (sender, receiver) = channel();
        let wait = |after: u64, panics: bool| {
            let sender = sender.clone();
            let callback = move |outcome: Result<()>| {
                outcome.unwrap();
                sender.send(after).unwrap();
                assert!(!panics, "on purpose");
            };
            engine.on_changes(&all(), Revision(after), Box::new(callback)).unwrap()
        };
        let waits = [wait(0, true), wait(0, false), wait(1, false), wait(2, true)];
        put_durable(engine, b"a", b"1");
        for _ in 0..2 {
            assert_eq!(receiver.recv_timeout(LONG), Ok(0));
        }
        assert!(a_moment(&receiver).is_none());
        put_durable(engine, b"b", b"2");
        assert_eq!(receiver.recv_timeout(LONG), Ok(1));
        // One that is called at once harms neither its caller nor who waits.
        let at_once = wait(0, true);
        assert_eq!(receiver.recv_timeout(LONG), Ok(0));
        put_durable(engine, b"c", b"3");
        assert_eq!(receiver.recv_timeout(LONG), Ok(2));
        drop((waits, at_once));
    });
}
