//! Values that are written once: the log refers to them, and a crash takes back both or neither.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use support::{
    Bench, Model, contents, cut_to, difference, fast_dir, put, put_durable, small, verify, watchdog,
};
use vmemkv_engine::io::Disk;
use vmemkv_engine::io::testing::{CrashDisk, Fault, FaultDisk, Operation as Io, PowerCut};
use vmemkv_engine::{Engine, ErrorKind, KeyRange, Operation, Options, offline};

fn options() -> Options {
    Options { write_once_bytes: 300, ..small() }
}

fn value(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at * 7) as u8).collect()
}

/// Every length of interest: below the limit, at it, over pages, large.
const LENGTHS: [usize; 9] = [20, 299, 300, 1000, 4000, 5000, 20_000, 70_000, 300];

/// What was acknowledged at some sync survives a power cut at any later one, and what was not is
/// there as a whole or not at all.
#[test]
fn what_was_acknowledged_survives_a_cut_at_every_sync() {
    watchdog("sweep", 300, || {
        let bench = Bench::new(options());
        let engine = &bench.engine;
        // What each key was, and from which sync on it must be there.
        let mut history: Vec<(usize, Vec<u8>, Vec<u8>)> = Vec::new();
        for number in 0..60 {
            let key = format!("k{:02}", number * 7 % 23).into_bytes();
            let value = value(number, LENGTHS[number % LENGTHS.len()]);
            if number % 10 == 9 {
                let batch = [
                    Operation::Put { key: key.clone(), value: value.clone() },
                    Operation::Put { key: b"also".to_vec(), value: value.clone() },
                ];
                let lsn = engine.write_batch(&batch).unwrap();
                engine.wait_durable(lsn).unwrap();
                history.push((bench.crash.crash_points(), b"also".to_vec(), value.clone()));
            } else {
                put_durable(engine, &key, &value);
            }
            history.push((bench.crash.crash_points(), key, value));
            if number == 30 {
                engine.checkpoint().unwrap();
            }
        }
        let counters = engine.stats().counters;
        assert!(counters.puts_once > 40, "{counters:?}");
        for point in 0..=bench.crash.crash_points() {
            for seed in 0..3 {
                let at = format!("cut {seed} at sync {point}");
                let cut = if seed == 0 { PowerCut::strict() } else { PowerCut::random(seed) };
                let image = cut_to(&bench.crash, Some(point), &bench.fresh(), &cut);
                let opened = Engine::open_on(image, options());
                let opened = opened.unwrap_or_else(|error| panic!("{at}: {error:?}"));
                verify(&opened, &at);
                check(&contents(&opened), &history, point, &at);
            }
        }
    });
}

/// Each key is what it was last acknowledged to be by `point`, or something that came after.
fn check(found: &Model, history: &[(usize, Vec<u8>, Vec<u8>)], point: usize, at: &str) {
    let keys: std::collections::BTreeSet<&Vec<u8>> =
        history.iter().map(|(_, key, _)| key).collect();
    for key in keys {
        let of_key: Vec<_> = history.iter().filter(|(_, other, _)| other == key).collect();
        let acknowledged = of_key.iter().rposition(|(sync, _, _)| *sync <= point);
        let possible = &of_key[acknowledged.unwrap_or(0)..];
        match found.get(key) {
            None => assert!(acknowledged.is_none(), "{at}: {key:?} is lost"),
            Some(value) => assert!(
                possible.iter().any(|(_, _, possible)| possible == value),
                "{at}: {key:?} has {} bytes",
                value.len()
            ),
        }
    }
}

/// F24: what the next life allocates is not where the log of the last one refers to, though no
/// checkpoint knows of it; over several lives, with a power cut each.
#[test]
fn the_next_lives_write_elsewhere() {
    watchdog("lives", 120, || {
        let dir = fast_dir();
        let mut disk = CrashDisk::new(dir.path().join("0")).unwrap();
        let mut expected = Model::new();
        for life in 1..8_usize {
            let engine = Engine::open_on(disk.clone(), options()).unwrap();
            verify(&engine, "life");
            let found = contents(&engine);
            assert!(found == expected, "life {life}: {}", difference(&found, &expected));
            for number in 0..20 {
                // Of both kinds, some of them over older ones.
                let key = format!("k{}", (life * 5 + number) % 30).into_bytes();
                let value = value(life + number, LENGTHS[(life + number) % LENGTHS.len()]);
                put_durable(&engine, &key, &value);
                expected.insert(key, value);
            }
            if life == 4 {
                engine.checkpoint().unwrap();
            }
            let next = dir.path().join(life.to_string());
            let cut = PowerCut::random(life as u64);
            disk = match life % 3 {
                0 => support::killed_to(&disk, &next, life as u64),
                _ => cut_to(&disk, None, &next, &cut),
            };
        }
    });
}

/// A power cut between the write of a value and its sync keeps any part of it, and the whole of the
/// record that refers to it: the log is cut there.
#[test]
fn a_torn_value_takes_its_record_with_it() {
    watchdog("torn", 120, || {
        let bench = Bench::new(options());
        put_durable(&bench.engine, b"before", &value(1, 5000));
        let gate = bench.disk.close(Io::Sync, "t2/");
        put(&bench.engine, b"torn", &value(2, 20_000));
        gate.reached();
        let (mut there, mut gone) = (0, 0);
        for seed in 0..60 {
            let engine = bench.after(&PowerCut::random(seed), &format!("cut {seed}"));
            let found = contents(&engine);
            assert_eq!(found[&b"before"[..]], value(1, 5000), "cut {seed}");
            match found.get(&b"torn"[..]) {
                Some(whole) => assert_eq!(*whole, value(2, 20_000), "cut {seed}"),
                None => gone += 1,
            }
            there += found.len() - 1;
            // Whatever it was, writes go on.
            put_durable(&engine, b"behind", &value(3, 700));
        }
        assert!(gone > 0, "{there} there, {gone} gone");
        gate.open();
    });
}

/// After a sync that failed, pages look clean and are not on the disk: nothing is acknowledged any
/// more, and the next life writes them again.
#[test]
fn a_failed_sync_of_a_value_is_for_good() {
    watchdog("failed sync", 60, || {
        let dir = fast_dir();
        let crash = CrashDisk::new(dir.path().join("data")).unwrap();
        let disk = FaultDisk::new(crash.clone());
        let engine = Engine::open_on(disk.clone(), options()).unwrap();
        put_durable(&engine, b"before", &value(1, 1000));
        disk.inject(Fault::new(&[Io::Sync], libc::EIO).in_path("t2/"));
        let lsn = put(&engine, b"unsynced", &value(2, 1000));
        assert_eq!(engine.wait_durable(lsn).unwrap_err().kind(), ErrorKind::ReadOnly);
        disk.heal();
        assert_eq!(
            engine.put(b"k", b"v", &Default::default()).unwrap_err().kind(),
            ErrorKind::ReadOnly
        );
        drop(engine);
        // The next life cannot do without writing it again.
        let left = dir.path().join("left");
        let next = FaultDisk::new(crash.kill(&left).unwrap());
        next.inject(Fault::new(&[Io::Write], libc::EIO).in_path("t2/").forever());
        let refused = Engine::open_on(next.clone(), options()).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
        next.heal();
        let engine = Engine::open_on(next, options()).unwrap();
        assert_eq!(engine.get(b"before").unwrap(), Some(value(1, 1000)));
        assert_eq!(engine.get(b"unsynced").unwrap(), Some(value(2, 1000)));
    });
}

/// Drops a file from the page cache.
fn forget(file: &std::fs::File) {
    file.sync_all().unwrap();
    // SAFETY: a system call on an open descriptor; it touches no memory of ours.
    let done = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(done, 0);
}

/// Damage to a value that was durable fails its reads, is found by every check, and nothing else.
#[test]
fn a_damaged_value_fails_alone() {
    // On a disk: reads of what is in memory anyway check nothing.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let engine = Engine::open(dir.path(), options()).unwrap();
    for number in 0..5 {
        put_durable(&engine, format!("k{number}").as_bytes(), &value(number, 3000));
    }
    drop(engine);
    let found = offline::inspect(dir.path()).unwrap();
    let (segment, range) = found.references[2].clone();
    let path = dir.path().join(format!("t2/{segment}.t2"));
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[0xee; 8], range.start + 100).unwrap();
    forget(&file);
    let report = offline::verify(dir.path()).unwrap();
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert!(report.problems[0].contains(&format!("{segment}.t2")), "{:?}", report.problems);
    let engine = Engine::open(dir.path(), options()).unwrap();
    forget(&file);
    assert_eq!(engine.get(b"k2").unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(engine.stats().counters.corrupt_reads, 1);
    for number in [0, 1, 3, 4] {
        let found = engine.get(format!("k{number}").as_bytes()).unwrap();
        assert_eq!(found, Some(value(number, 3000)), "{number}");
    }
    assert_eq!(engine.verify(&|| false).unwrap().problems.len(), 1);
}

/// A segment that is missing, though the log refers to it, is named; nothing is served.
#[test]
fn a_missing_segment_is_named() {
    let dir = fast_dir();
    let engine = Engine::open(dir.path(), options()).unwrap();
    put_durable(&engine, b"a", &value(1, 3000));
    put_durable(&engine, b"b", &value(2, 3000));
    drop(engine);
    let (segment, _) = offline::inspect(dir.path()).unwrap().references[0].clone();
    let path = dir.path().join(format!("t2/{segment}.t2"));
    std::fs::remove_file(&path).unwrap();
    let error = Engine::open(dir.path(), options()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains(&format!("{segment}.t2")), "{error}");
}

/// Values that were written once are defragmented, deleted and freed as any others.
#[test]
fn their_space_comes_back() {
    watchdog("space", 120, || {
        let bench = Bench::new(options());
        let engine = &bench.engine;
        for round in 0..12 {
            for number in 0..60 {
                put_durable(
                    engine,
                    format!("k{number:02}").as_bytes(),
                    &value(round + number, 60_000),
                );
            }
            engine.checkpoint().unwrap();
            engine.defragment(&Default::default(), &|_| vmemkv_engine::Continue::Yes).unwrap();
            engine.checkpoint().unwrap();
            if round % 4 == 3 {
                bench.survives(&format!("round {round}"));
            }
        }
        let stats = engine.stats();
        assert!(stats.counters.value_segments_freed > 3, "{stats:?}");
        assert!(stats.value_log.segments + stats.value_log.free_segments < 8, "{stats:?}");
        engine.delete_range(&KeyRange::all(), usize::MAX).unwrap();
        assert_eq!(engine.recount_live(), Vec::<String>::new());
    });
}

/// None at all, if the options say so; and such a directory is opened by an engine that would.
#[test]
fn never_if_the_options_say_so() {
    let dir = fast_dir();
    let never = Options { write_once_bytes: usize::MAX, ..small() };
    let engine = Engine::open(dir.path(), never.clone()).unwrap();
    put_durable(&engine, b"large", &value(1, 1 << 20));
    assert_eq!(engine.stats().counters.puts_once, 0);
    drop(engine);
    let engine = Engine::open(dir.path(), options()).unwrap();
    assert_eq!(engine.get(b"large").unwrap(), Some(value(1, 1 << 20)));
    put_durable(&engine, b"again", &value(2, 1 << 20));
    assert_eq!(engine.stats().counters.puts_once, 1);
    drop(engine);
    let engine = Engine::open(dir.path(), never).unwrap();
    assert_eq!(engine.get(b"again").unwrap(), Some(value(2, 1 << 20)));
    drop(engine);
    let small = Options { write_once_bytes: 10, ..small() };
    assert!(small.validate().unwrap_err().message().contains("write_once_bytes"));
    let disk: Arc<dyn Disk> = CrashDisk::new(dir.path().join("other")).unwrap();
    assert!(Engine::open_on(disk, small).is_err());
}

/// The log refers to a record as it was written: an update goes elsewhere, also a smaller one.
#[test]
fn nothing_is_changed_in_place() {
    let bench = Bench::new(options());
    for len in [1000, 200, 900, 100] {
        put_durable(&bench.engine, b"key", &value(len, len));
        bench.survives(&format!("{len} bytes"));
    }
    let counters = bench.engine.stats().counters;
    assert_eq!((counters.puts_once, counters.updates_in_place), (2, 0));
    // What the log repeats is changed where it is.
    put_durable(&bench.engine, b"key", &value(1, 90));
    assert_eq!(bench.engine.stats().counters.updates_in_place, 1);
    bench.survives("in place");
}

/// Each life goes on where the last one ended: restarts take no disk.
#[test]
fn lives_share_segments() {
    let dir = fast_dir();
    for life in 0..10 {
        let engine = Engine::open(dir.path(), options()).unwrap();
        for number in 0..4 {
            put_durable(&engine, format!("{life}/{number}").as_bytes(), &value(number, 50_000));
            put_durable(&engine, format!("{life}/{number}s").as_bytes(), &value(number, 50));
        }
        if life % 3 == 0 {
            engine.checkpoint().unwrap();
        }
        let stats = engine.stats().value_log;
        assert!(stats.segments + stats.free_segments <= 3, "life {life}: {stats:?}");
        assert_eq!(contents(&engine).len(), 8 * (life + 1));
    }
}

/// A value log that is opened too small says so; what was acknowledged stays in the log.
#[test]
fn a_limit_that_is_too_small_is_refused() {
    let dir = fast_dir();
    let engine = Engine::open(dir.path(), options()).unwrap();
    for number in 0..6 {
        put_durable(&engine, &[number], &value(number.into(), 8 << 20));
    }
    let expected = contents(&engine);
    drop(engine);
    let small = Options { value_log_max_bytes: 34 << 20, ..options() };
    let error = Engine::open(dir.path(), small).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.message().contains("value_log_max_bytes"), "{error}");
    let engine = Engine::open(dir.path(), options()).unwrap();
    assert_eq!(contents(&engine), expected);
}

/// Neither a check nor an open that is refused removes what the log names.
#[test]
fn a_segment_that_is_cut_short_is_kept_and_named() {
    let dir = fast_dir();
    let engine = Engine::open(dir.path(), options()).unwrap();
    put_durable(&engine, b"a", &value(1, 3000));
    put_durable(&engine, b"b", &value(2, 3000));
    drop(engine);
    let (segment, _) = offline::inspect(dir.path()).unwrap().references[0].clone();
    let path = dir.path().join(format!("t2/{segment}.t2"));
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    offline::verify(dir.path()).unwrap();
    let error = Engine::open(dir.path(), options()).map(drop).unwrap_err();
    assert!(error.message().contains(&format!("{segment}.t2")), "{error}");
    assert!(path.exists());
    file.set_len(options().value_segment_bytes).unwrap();
    let engine = Engine::open(dir.path(), options()).unwrap();
    assert_eq!(engine.get(b"b").unwrap(), Some(value(2, 3000)));
}
