//! A full disk under the log: writes are refused before anything has changed; reads, starts and,
//! with space, writes go on. Unlike in `Io::SPACE`, a write into allocated blocks does not fail.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use super::support::{contents, put_durable, small, verify, watchdog};
use super::{Bench, bench};
use vmemkv_engine::io::testing::{CrashDisk, Fault, FaultDisk, Operation as Io, PowerCut};
use vmemkv_engine::{Condition, Engine, ErrorKind, Options, State};

/// Writes into allocated blocks need no space: all else in `wal/` fails.
fn full_log() -> Fault {
    let space: Vec<Io> = Io::SPACE.iter().copied().filter(|op| *op != Io::Write).collect();
    Fault::new(&space, libc::ENOSPC).in_path("wal/").forever()
}

/// Puts until the full disk refuses one; checks that it left no trace.
fn fill_log(engine: &Engine, value: &[u8]) {
    for i in 0..10_000 {
        let before = contents(engine);
        let key = format!("fill{}", i % 7);
        match engine.put(key.as_bytes(), value, &Condition::None) {
            Ok(written) => engine.wait_durable(written.lsn).unwrap(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
                assert!(error.message().contains("wal"), "{error}");
                assert!(contents(engine) == before);
                assert_eq!(engine.get(b"old").unwrap(), Some(vec![1; 100]));
                assert_eq!(engine.stats().state, State::Healthy);
                return;
            }
        }
    }
    panic!("never full");
}

/// Puts until one is taken: no reopen, only time.
fn put_again(engine: &Engine, key: &[u8], value: &[u8]) {
    loop {
        match engine.put(key, value, &Condition::None) {
            Ok(written) => return engine.wait_durable(written.lsn).unwrap(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}"),
        }
        sleep(Duration::from_millis(5));
    }
}

/// A full disk refuses what the log has no room for; reads, starts and, with space, writes go on.
#[test]
fn a_full_log_leaves_no_trace_and_writes_resume() {
    for len in [10, 900, 30_000] {
        watchdog("full log", 60, || {
            let Bench { mut engine, gates, disk, crash, dir } = bench();
            put_durable(&engine, b"old", &[1; 100]);
            disk.inject(full_log());
            for round in 0..4 {
                fill_log(&engine, &vec![round; len]);
                let expected = contents(&engine);
                // A kill, as found after a power cut, on a disk that is still full.
                let image = dir.path().join(round.to_string());
                crash.materialise(None, &image, &PowerCut::strict()).unwrap();
                let cut = FaultDisk::new(CrashDisk::new(&image).unwrap());
                cut.inject(full_log());
                for _ in 0..3 {
                    let found = Engine::open_on(cut.clone(), small()).unwrap();
                    assert!(contents(&found) == expected);
                }
                drop(engine);
                engine = Engine::open_on(gates.clone(), small()).unwrap();
                assert!(contents(&engine) == expected);
            }
            fill_log(&engine, &vec![9; len]);
            disk.heal();
            put_again(&engine, b"resumed", &[2; 5000]);
            verify(&engine, "healed");
        });
    }
}

/// What has just failed is not tried again at once; a delete waits for that, and is not refused.
#[test]
fn a_delete_waits_for_the_log_to_try_again() {
    watchdog("delete on a full log", 60, || {
        let Bench { engine, disk, dir: _dir, .. } = bench();
        put_durable(&engine, b"old", &[1; 100]);
        for round in 0..3 {
            disk.inject(full_log());
            fill_log(&engine, &[round; 900]);
            // The log is full: this one, too, would need a segment.
            while engine.put(b"x", b"y", &Condition::None).is_ok() {}
            disk.heal();
            let deleted = engine.delete(format!("fill{round}").as_bytes(), &Condition::None);
            engine.wait_durable(deleted.unwrap().lsn).unwrap();
        }
        verify(&engine, "healed");
    });
}

/// Many writers and the background jobs, on a log disk that fills up and heals.
#[test]
fn many_writers_on_a_full_log() {
    watchdog("writers on a full log", 120, || {
        let Bench { engine, gates, disk, dir, .. } = bench();
        drop(engine);
        let options = Options { background: true, ..small() };
        let engine = Engine::open_on(gates.clone(), options.clone()).unwrap();
        disk.inject(full_log());
        let refused = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8_u8 {
                let (engine, refused) = (&engine, &refused);
                scope.spawn(move || {
                    for i in 0..400_u32 {
                        let value = vec![thread; (i * 37 % 3000) as usize];
                        let key = [thread, (i % 5) as u8];
                        if engine.put(&key, &value, &Condition::None).is_err() {
                            refused.fetch_add(1, Ordering::Relaxed);
                            put_again(engine, &key, &value);
                        }
                    }
                });
            }
            // Full from the beginning, and too little is logged for a checkpoint to make room.
            while refused.load(Ordering::Relaxed) == 0 {
                sleep(Duration::from_millis(1));
            }
            disk.heal();
            for _ in 0..10 {
                disk.inject(full_log());
                sleep(Duration::from_millis(30));
                disk.heal();
            }
        });
        assert_eq!(engine.stats().state, State::Healthy);
        let expected = contents(&engine);
        assert_eq!(expected.len(), 40);
        drop(engine);
        assert!(contents(&Engine::open_on(gates, options).unwrap()) == expected);
        drop(dir);
    });
}
