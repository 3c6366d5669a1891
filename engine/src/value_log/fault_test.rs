//! The value log on disks that fail, crash, or have lost bits.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::value_log_test::{Bench, fill_segment, get, make_base, open, put};
use super::{Access, ValueLog};
use crate::error::ErrorKind;
use crate::io::testing::{CrashDisk, Fault, FaultDisk, Operation, PowerCut, SeededRandom};
use crate::io::{Disk, OsDisk};
use crate::options::Options;

#[test]
fn a_full_disk_is_an_error_and_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let faults = FaultDisk::new(Arc::new(OsDisk::new(dir.path())));
    let disk: Arc<dyn Disk> = faults.clone();
    let log = open(&disk, &[]);
    for n in 0..3 {
        faults.inject(Fault::new(Operation::SPACE, libc::ENOSPC).at(n));
        let error = log.allocate(1, 1).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::DiskFull);
        assert_eq!(disk.list(Path::new("t2")).unwrap(), [""; 0]);
        faults.heal();
    }
    let first = fill_segment(&log);
    let before = log.stats();
    faults.inject(Fault::new(Operation::SPACE, libc::ENOSPC).forever());
    loop {
        match log.allocate(6, 8 << 20) {
            Ok(allocation) => log.sub_live(log.write(allocation, b"filler", &[0; 8 << 20], 0)),
            Err(error) => break assert_eq!(error.kind(), ErrorKind::DiskFull),
        }
    }
    // What is smaller still fits; what is there is read, and reclaimed.
    let small = put(&log, b"small", b"x");
    assert_eq!(get(&log, small, b"small"), b"x");
    assert_eq!(get(&log, first[0], b"filler"), [1; 1 << 20]);
    assert_eq!(log.stats().segments, before.segments);
    first.iter().for_each(|location| log.sub_live(*location));
    let empty = log.empty_segments();
    make_base(&log, &empty);
    log.free(&empty);
    let reused = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        log.allocate(1, 8 << 20).is_ok()
    });
    assert!(reused, "a freed segment needs no new space");
    faults.heal();
}

#[test]
fn a_failed_sync_is_for_good_and_begins_where_the_last_one_ended() {
    let dir = tempfile::tempdir().unwrap();
    let faults = FaultDisk::new(Arc::new(OsDisk::new(dir.path())));
    let disk: Arc<dyn Disk> = faults.clone();
    let log = open(&disk, &[]);
    put(&log, b"a", b"1");
    make_base(&log, &[]);
    put(&log, b"b", b"2");
    let mark = log.begin_base(&[]);
    log.publish_base(&mark);
    faults.inject(Fault::new(&[Operation::Sync], libc::EIO));
    assert_eq!(log.sync_base(&mark, &|| ()).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(log.segment(0).unwrap().synced.load(Ordering::Relaxed), 8192);
    assert_eq!(log.sync_base(&mark, &|| ()).unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn a_base_survives_every_power_cut_also_after_a_mark_that_was_not_synced() {
    let dir = tempfile::tempdir().unwrap();
    let crash = CrashDisk::new(dir.path().join("live")).unwrap();
    let disk: Arc<dyn Disk> = crash.clone();
    let log = open(&disk, &[]);
    let mut stored = Vec::new();
    let mut add = |log: &ValueLog, random: &mut SeededRandom| {
        let value = vec![random.next() as u8; random.below(3000) as usize];
        stored.push((put(log, b"key", &value), value));
        stored.len()
    };
    let mut random = SeededRandom(4);
    let mut marks = Vec::new();
    for round in 0..6 {
        let mut count = 0;
        for _ in 0..20 {
            count = add(&log, &mut random);
        }
        let mark = log.begin_base(&[]);
        log.publish_base(&mark);
        if round % 2 == 1 {
            log.sync_base(&mark, &|| ()).unwrap();
            marks.push((crash.crash_points(), ValueLog::bases(&mark), count));
        }
    }
    for point in 0..=crash.crash_points() {
        let done = marks.iter().rev().find(|(synced, ..)| *synced <= point);
        let Some((_, bases, count)) = done else { continue };
        for seed in 0..6 {
            let target = dir.path().join(format!("cut{point}-{seed}"));
            crash.materialise(Some(point), &target, &PowerCut::random(seed)).unwrap();
            let image: Arc<dyn Disk> = Arc::new(OsDisk::new(&target));
            let log = open(&image, bases);
            for (location, value) in &stored[..*count] {
                log.add_live(*location).unwrap();
                assert!(get(&log, *location, b"key") == *value, "{point} {seed}");
            }
            drop(log);
            std::fs::remove_dir_all(target).unwrap();
        }
    }
}

#[test]
fn damage_in_a_cold_record_is_an_error_that_names_the_place() {
    let bench = Bench::new();
    let log = open(&bench.disk, &[]);
    let location = put(&log, b"key", &[3; 2000]);
    let bases = make_base(&log, &[]);
    drop(log);
    let mut file = std::fs::read(bench.path(0)).unwrap();
    file[location.offset() as usize + 1000] ^= 1;
    std::fs::write(bench.path(0), file).unwrap();
    let log = open(&bench.disk, &bases);
    let guard = crossbeam_epoch::pin();
    let error = log.read_full_verify(location, b"key", &guard).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("0.t2 at offset 4096"), "{error}");
}

#[test]
fn a_cold_record_is_read_from_the_disk_and_verified() {
    let bench = Bench::new();
    let (mut stored, bases);
    {
        let log = open(&bench.disk, &[]);
        stored = Vec::new();
        for size in [10, 5000, 100_000] {
            stored.push((put(&log, b"key", &vec![4; size]), size));
        }
        bases = make_base(&log, &[]);
    }
    let evict = || {
        let file = std::fs::File::open(bench.path(0)).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    evict();
    let log = open(&bench.disk, &bases);
    let guard = crossbeam_epoch::pin();
    if log.is_resident(stored[2].0) {
        println!("this file system does not evict: the test shows nothing");
        return;
    }
    let mut out = Vec::new();
    for (location, size) in &stored {
        evict();
        log.read(*location, b"key", Access::Point, &mut out, &guard).unwrap();
        assert_eq!(out, vec![4; *size]);
        assert!(log.is_resident(*location));
    }
    drop(log);
    let mut file = std::fs::read(bench.path(0)).unwrap();
    file[stored[2].0.offset() as usize + 50_000] ^= 1;
    std::fs::write(bench.path(0), file).unwrap();
    evict();
    let log = open(&bench.disk, &bases);
    let error = log.read(stored[2].0, b"key", Access::Point, &mut out, &guard).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("checksum"), "{error}");
}

#[test]
fn any_operation_may_fail_and_another_open_finds_all() {
    let dir = tempfile::tempdir().unwrap();
    let faults = FaultDisk::new(Arc::new(OsDisk::new(dir.path())));
    let disk: Arc<dyn Disk> = faults.clone();
    let options = Options::for_tests();
    let log = open(&disk, &[]);
    let mut stored = vec![put(&log, b"key", &[0; 100])];
    let mut bases = make_base(&log, &[]);
    drop(log);
    for n in 0..40 {
        let errno = if n % 2 == 0 { libc::EIO } else { libc::ENOSPC };
        faults.inject(Fault::new(Operation::ALL, errno).at(n / 2).short_writes());
        if let Ok(log) = ValueLog::open(Arc::clone(&disk), &options, &bases)
            && let Ok(allocation) = log.allocate(3, 100)
        {
            let new = log.write(allocation, b"key", &[stored.len() as u8; 100], 0);
            let mark = log.begin_base(&[]);
            log.publish_base(&mark);
            if log.sync_base(&mark, &|| ()).is_ok() {
                bases = ValueLog::bases(&mark);
                stored.push(new);
            }
        }
        faults.heal();
        let log = open(&disk, &bases);
        for (i, location) in stored.iter().enumerate() {
            assert_eq!(get(&log, *location, b"key"), [i as u8; 100]);
        }
    }
    assert!(faults.failed() > 10 && stored.len() > 10);
}
