//! A disk without room for the log: refused before anything is granted, and gone with the cause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Wal;
use super::testing::{append, contents, open, os_disk, replay, write};
use crate::error::ErrorKind;
use crate::io::Disk;
use crate::io::testing::{CrashDisk, Fault, FaultDisk, Operation, PowerCut};

/// What fails on a full disk; a write into allocated blocks does not.
const SPACE: &[Operation] = &[Operation::Create, Operation::Allocate, Operation::SetLen];

fn full() -> Fault {
    Fault::new(SPACE, libc::ENOSPC).in_path("wal/").forever()
}

/// Writes until refused for the disk; the number of records that were acknowledged.
fn fill(wal: &Wal, len: usize) -> u64 {
    for count in 0..1000 {
        if let Err(error) = write(wal, &vec![7; len]) {
            assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
            assert!(error.message().contains("wal"), "{error}");
            return count;
        }
    }
    panic!("never full");
}

/// Writes as soon as the retry pause is over.
fn write_again(wal: &Wal, value: &[u8]) {
    for _ in 0..1000 {
        match write(wal, value) {
            Ok(_) => return,
            Err(error) => assert_ne!(error.kind(), ErrorKind::ReadOnly, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("does not resume");
}

#[test]
fn a_full_disk_refuses_permits_and_nothing_else() {
    for len in [10, 1000, 3000, 12_000, 50_000] {
        let dir = tempfile::tempdir().unwrap();
        let faults = FaultDisk::new(os_disk(&dir));
        let disk: Arc<dyn Disk> = faults.clone();
        let (wal, _) = open(&disk);
        write(&wal, b"before").unwrap();
        faults.inject(full());
        let count = fill(&wal, len);
        assert!(len > 12_000 || count > 0, "the current segment and the spare have room");
        assert_eq!((wal.poisoned(), wal.appended_lsn()), (None, wal.durable_lsn()));
        let creates = faults.count(Operation::Create);
        for _ in 0..1000 {
            assert!(write(&wal, &vec![7; 50_000]).is_err());
        }
        assert!(faults.count(Operation::Create) < creates + 50, "an attempt for each call");
        // Starts again and again, with a spare and without.
        drop(wal);
        for again in 0..4 {
            let (wal, found) = open(&disk);
            assert_eq!(found.len() as u64, count + 1, "{again}");
            assert_eq!(wal.durable_lsn().0, found.last().unwrap().0);
        }
        let (wal, found) = open(&disk);
        fill(&wal, 100);
        assert_eq!(wal.poisoned(), None);
        faults.heal();
        write_again(&wal, b"after");
        let more = fill_some(&wal);
        drop(wal);
        let (_, after) = open(&disk);
        assert!(after.len() > found.len() + more && after.starts_with(&found));
    }
}

fn fill_some(wal: &Wal) -> usize {
    for i in 0..40 {
        write_again(wal, &vec![i; 1500]);
    }
    40
}

/// Segments that a checkpoint gives up are room too.
#[test]
fn retired_segments_make_room_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let faults = FaultDisk::new(os_disk(&dir));
    let disk: Arc<dyn Disk> = faults.clone();
    let (wal, _) = open(&disk);
    fill_some(&wal);
    faults.inject(full());
    for _ in 0..5 {
        assert!(fill(&wal, 1500) > 0);
        wal.retire(wal.durable_lsn());
    }
    assert_eq!(wal.poisoned(), None);
}

/// An error that is not about space is said as it is, and passes as well.
#[test]
fn other_errors_in_making_a_spare_pass() {
    for operation in [Operation::Create, Operation::Allocate, Operation::Rename, Operation::Open] {
        let dir = tempfile::tempdir().unwrap();
        let faults = FaultDisk::new(os_disk(&dir));
        let disk: Arc<dyn Disk> = faults.clone();
        let (wal, _) = open(&disk);
        if matches!(operation, Operation::Rename | Operation::Open) {
            fill_some(&wal);
            wal.retire(wal.durable_lsn());
        }
        faults.inject(Fault::new(&[operation], libc::EIO).in_path("wal/").forever());
        let error = (0..1000).find_map(|_| write(&wal, &[7; 1500]).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(wal.poisoned(), None);
        faults.heal();
        write_again(&wal, b"after");
        fill_some(&wal);
    }
    let dir = tempfile::tempdir().unwrap();
    let faults = FaultDisk::new(os_disk(&dir));
    let disk: Arc<dyn Disk> = faults.clone();
    let (wal, _) = open(&disk);
    faults.inject(Fault::new(&[Operation::SyncDir], libc::ENOSPC).in_path("wal").forever());
    let error = (0..1000).find_map(|_| write(&wal, &[7; 1500]).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "a failed sync is final: {error}");
}

/// Many writers while the disk fills up and heals: nobody hangs, nothing acknowledged is lost.
#[test]
fn many_writers_on_a_disk_that_fills_up_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let faults = FaultDisk::new(os_disk(&dir));
    let disk: Arc<dyn Disk> = faults.clone();
    let (wal, _) = open(&disk);
    let (done, written, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let until = |counter: &AtomicU64, more: u64| {
        let from = counter.load(Ordering::Relaxed);
        for _ in 0..6000 {
            if counter.load(Ordering::Relaxed) >= from + more {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("somebody hangs");
        std::process::abort();
    };
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let (wal, done, written, refused) = (&wal, &done, &written, &refused);
            scope.spawn(move || {
                let mut i = thread;
                while !done.load(Ordering::Relaxed) {
                    i += 1;
                    // Some without waiting, so that much is granted and unwritten.
                    match append(wal, &vec![thread as u8; i * 7919 % 9000]) {
                        Ok(lsn) if i.is_multiple_of(3) => wal.wait(lsn).unwrap(),
                        Ok(_) => {}
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
                            refused.fetch_add(1, Ordering::Relaxed);
                            std::thread::sleep(Duration::from_millis(1));
                            continue;
                        }
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..12 {
            until(&written, 100);
            faults.inject(full());
            until(&refused, 100);
            wal.retire(wal.durable_lsn());
            faults.heal();
        }
        until(&written, 100);
        done.store(true, Ordering::Relaxed);
    });
    wal.wait(wal.appended_lsn()).unwrap();
    let checkpoint = wal.stats().checkpoint_lsn.0;
    let end = wal.durable_lsn();
    assert_eq!((wal.poisoned(), wal.appended_lsn()), (None, end));
    drop(wal);
    let replay = replay(&disk, checkpoint, checkpoint).unwrap();
    assert_eq!((replay.cut(), contents(&replay).len() as u64), (end, replay.records_seen()));
}

/// Power cuts at every step of starts on a full disk, with and without a spare, and of the first
/// writes after it: what was acknowledged is there.
#[test]
fn cuts_of_starts_on_a_full_disk_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let crash = CrashDisk::new(dir.path().join("live")).unwrap();
    let faults = FaultDisk::new(crash.clone());
    let disk: Arc<dyn Disk> = faults.clone();
    let (wal, _) = open(&disk);
    write(&wal, b"before").unwrap();
    faults.inject(full());
    fill(&wal, 5000);
    drop(wal);
    let expected = open(&disk).1;
    let begin = crash.crash_points();
    for _ in 0..3 {
        assert!(open(&disk).1 == expected);
    }
    let (wal, _) = open(&disk);
    faults.heal();
    write_again(&wal, b"after");
    for point in begin..=crash.crash_points() {
        for seed in 0..6 {
            let image = dir.path().join(format!("image{point}.{seed}"));
            crash.materialise(Some(point), &image, &PowerCut::random(seed)).unwrap();
            let faults = FaultDisk::new(CrashDisk::new(image).unwrap());
            let image: Arc<dyn Disk> = faults.clone();
            faults.inject(full());
            let found = replay(&image, 0, 0).unwrap();
            let (cut, found) = (found.cut(), contents(&found));
            assert!(found.starts_with(&expected), "point {point}, seed {seed}, {cut:?}");
            assert!(open(&image).1 == found, "point {point}, seed {seed}, on a full disk");
            faults.heal();
            let (wal, again) = open(&image);
            assert!(again == found, "point {point}, seed {seed}, again");
            write(&wal, b"goes on").unwrap();
        }
    }
}
