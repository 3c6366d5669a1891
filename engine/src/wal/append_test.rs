//! Appending, waiting, poison, closing, reuse of segments.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::encode::{Body, Record};
use super::reference::no_values;
use super::testing::{append, open, options, os_disk, replay, write};
use super::{Replay, RequestId, inspect};
use crate::error::ErrorKind;
use crate::io::testing::{Fault, FaultDisk, Operation};
use crate::options::Options;
use crate::types::Lsn;

#[test]
fn what_is_written_comes_back_in_order_and_lsns_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let disk = os_disk(&dir);
    let mut expected = Vec::new();
    for round in 0..5_u8 {
        let (wal, found) = open(&disk);
        assert_eq!(found, expected);
        assert_eq!(wal.durable_lsn().0, expected.last().map_or(0, |(end, _)| *end));
        assert_eq!(wal.appended_lsn(), wal.durable_lsn());
        for i in 0..60 {
            let value = vec![round; i * 17];
            let end = write(&wal, &value).unwrap();
            assert!(end.0 > expected.last().map_or(0, |(end, _)| *end) && end.0.is_multiple_of(8));
            assert!(wal.durable_lsn() >= end);
            expected.push((end.0, value));
        }
        wal.close().unwrap();
    }
    assert_eq!(open(&disk).1, expected);
    let summary = inspect(&*disk).unwrap();
    assert_eq!(summary.iter().filter(|s| s.reopen).count(), 6);
    assert!(summary.len() > 6, "no segment was ever full");
}

#[test]
fn an_unused_log_stays_empty() {
    let dir = tempfile::tempdir().unwrap();
    let disk = os_disk(&dir);
    for _ in 0..3 {
        let (wal, found) = open(&disk);
        assert!(found.is_empty());
        assert_eq!((wal.durable_lsn(), wal.appended_lsn()), (Lsn(0), Lsn(0)));
        drop(wal.acquire(1000).unwrap());
        wal.wait(Lsn(0)).unwrap();
    }
    assert!(std::fs::read_dir(dir.path().join("wal")).unwrap().count() <= 4);
}

#[test]
fn records_larger_than_a_segment_get_a_file_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let disk = os_disk(&dir);
    let (wal, _) = open(&disk);
    let mut expected = Vec::new();
    for len in [10, 16 << 10, 100_000, 8 << 20, 12, 1 << 20] {
        let value = vec![len as u8; len];
        expected.push((write(&wal, &value).unwrap().0, value));
    }
    drop(wal);
    let (wal, found) = open(&disk);
    assert!(found == expected);
    drop(wal);
    assert!(open(&disk).1 == expected, "and again");
    assert_eq!(
        open(&disk).0.acquire(17 << 20).err().map(|e| e.kind()),
        Some(ErrorKind::InvalidArgument)
    );
}

#[test]
fn many_threads_more_than_the_ring_holds() {
    const THREADS: u64 = 8;
    const EACH: u64 = 150;
    let dir = tempfile::tempdir().unwrap();
    let disk = os_disk(&dir);
    let (wal, _) = open(&disk);
    let mut expected: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let wal = &wal;
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    for i in 0..EACH {
                        // 8 x 150 x up to 128 KiB: more than twice the ring.
                        let value =
                            vec![(thread * 31 + i) as u8; (i * 7919 % (128 << 10)) as usize];
                        mine.push((append(wal, &value).unwrap().0, value));
                    }
                    wal.wait(Lsn(mine.last().unwrap().0)).unwrap();
                    mine
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    expected.sort();
    let stats = wal.stats();
    assert_eq!(stats.records, THREADS * EACH);
    assert_eq!(stats.durable_lsn, stats.appended_lsn);
    assert_eq!(wal.bytes_since_checkpoint(), stats.bytes);
    drop(wal);
    assert!(open(&disk).1 == expected);
}

#[test]
fn callbacks_fire_once() {
    let dir = tempfile::tempdir().unwrap();
    let disk = os_disk(&dir);
    let (wal, _) = open(&disk);
    let fired = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = mpsc::channel();
    for i in 0..500 {
        let end = append(&wal, &[1; 50]).unwrap();
        let (fired, sender) = (Arc::clone(&fired), sender.clone());
        let callback = move |outcome: crate::Result<()>| {
            outcome.unwrap();
            fired.fetch_add(1, Ordering::Relaxed);
            assert!(i != 250, "a callback that panics");
            sender.send(end).unwrap();
        };
        wal.on_durable(end, Box::new(callback));
    }
    drop(sender);
    wal.wait(wal.appended_lsn()).unwrap();
    wal.close().unwrap();
    assert_eq!(receiver.iter().count(), 499);
    assert_eq!(fired.load(Ordering::Relaxed), 500);
    let late = Arc::clone(&fired);
    wal.on_durable(
        wal.durable_lsn(),
        Box::new(move |outcome| {
            outcome.unwrap();
            late.fetch_add(1, Ordering::Relaxed);
        }),
    );
    assert_eq!(fired.load(Ordering::Relaxed), 501);
    assert_eq!(wal.acquire(100).err().unwrap().kind(), ErrorKind::Unavailable);
}

/// Appends from several threads until `wal` refuses; nobody may hang.
fn append_until_refused(wal: &super::Wal) {
    let (done, finished) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let done = done.clone();
            scope.spawn(move || {
                let error = loop {
                    if let Err(error) = write(wal, &[5; 3000]) {
                        break error;
                    }
                };
                done.send(error).unwrap();
            });
        }
        for _ in 0..6 {
            let error = finished.recv_timeout(Duration::from_secs(60)).expect("somebody hangs");
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        }
    });
}

#[test]
fn a_failed_write_or_sync_fails_everybody_for_good() {
    for operation in [Operation::Write, Operation::Sync] {
        for at in [0, 3, 11] {
            let dir = tempfile::tempdir().unwrap();
            let faults = FaultDisk::new(os_disk(&dir));
            let disk: Arc<dyn crate::io::Disk> = faults.clone();
            let (wal, _) = open(&disk);
            faults.inject(Fault::new(&[operation], libc::EIO).at(at).short_writes());
            append_until_refused(&wal);
            let syncs = faults.count(Operation::Sync);
            let durable = wal.durable_lsn();
            assert!(wal.poisoned().is_some());
            assert!(durable < wal.appended_lsn());
            wal.wait(durable).unwrap();
            let (sender, receiver) = mpsc::channel();
            let callback = move |outcome| sender.send(outcome).unwrap();
            wal.on_durable(wal.appended_lsn(), Box::new(callback));
            let outcome = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ReadOnly);
            assert_eq!(wal.acquire(100).err().unwrap().kind(), ErrorKind::ReadOnly);
            assert_eq!(wal.close().unwrap_err().kind(), ErrorKind::ReadOnly);
            assert_eq!(faults.count(Operation::Sync), syncs, "a failed sync was retried");
            drop(wal);
            faults.heal();
            let (wal, found) = open(&disk);
            assert!(found.last().map_or(0, |(end, _)| *end) >= durable.0);
            write(&wal, b"goes on").unwrap();
        }
    }
}

#[test]
fn a_dropped_reservation_poisons() {
    let dir = tempfile::tempdir().unwrap();
    let disk = os_disk(&dir);
    let (wal, _) = open(&disk);
    let before = write(&wal, b"before").unwrap();
    let reservation = wal.reserve(wal.acquire(100).unwrap());
    let (start, end) = (reservation.start(), reservation.end());
    assert_eq!((start, end), (before, Lsn(before.0 + 104)));
    let behind = append(&wal, b"behind").unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wal.wait(behind));
        drop(reservation);
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::ReadOnly);
    });
    assert_eq!(wal.wait(end).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(wal.durable_lsn(), before);
    drop(wal);
    assert_eq!(open(&disk).1, [(before.0, b"before".to_vec())]);
}

#[test]
fn permits_shrink_and_return() {
    let dir = tempfile::tempdir().unwrap();
    let disk = os_disk(&dir);
    let (wal, _) = open(&disk);
    let filler = Record { body: Body::Filler, request: RequestId::default() };
    // More than the ring in sum: each must come back.
    for _ in 0..20 {
        let mut permit = wal.acquire(8 << 20).unwrap();
        permit.shrink(filler.encoded_len());
        assert_eq!(permit.len(), 56);
        let end = wal.reserve(permit).publish(&filler);
        drop(wal.acquire(16 << 20).unwrap());
        wal.wait(end).unwrap();
    }
    assert_eq!(wal.stats().records, 20);
}

#[test]
fn a_full_ring_makes_appenders_wait() {
    let dir = tempfile::tempdir().unwrap();
    let disk = os_disk(&dir);
    let (wal, _) = open(&disk);
    let (first, second) = (wal.acquire(16 << 20).unwrap(), wal.acquire(15 << 20).unwrap());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wal.acquire(2 << 20).map(drop));
        while wal.stats().stalls == 0 {
            std::thread::yield_now();
        }
        drop(first);
        waiter.join().unwrap().unwrap();
        let third = wal.acquire(16 << 20).unwrap();
        let waiter = scope.spawn(|| wal.acquire(2 << 20).map(drop));
        while wal.stats().stalls == 1 {
            std::thread::yield_now();
        }
        wal.poison("enough");
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::ReadOnly);
        drop((second, third));
    });
}

#[test]
fn retired_segments_are_reused_and_their_records_stay_gone() {
    let dir = tempfile::tempdir().unwrap();
    let disk = os_disk(&dir);
    let mut checkpoint = 0;
    let mut tail: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut most_files = 0;
    for round in 0..6_u8 {
        let replay = replay(&disk, checkpoint, checkpoint).unwrap();
        let found = super::testing::contents(&replay);
        assert!(found == tail, "round {round}");
        let wal = replay.start(&options(), no_values()).unwrap();
        for i in 0..120 {
            let value = vec![round; 900 + i];
            tail.push((write(&wal, &value).unwrap().0, value));
            if i % 31 == 30 {
                checkpoint = tail[tail.len() - 5].0;
                tail.retain(|(end, _)| *end > checkpoint);
                wal.retire(Lsn(checkpoint));
            }
        }
        let files = std::fs::read_dir(dir.path().join("wal")).unwrap().count();
        most_files = most_files.max(files);
        let stats = wal.stats();
        assert_eq!(files as u64, stats.segments + stats.kept_segments + stats.recycled_segments);
        assert_eq!(stats.checkpoint_lsn, Lsn(checkpoint));
    }
    assert!(most_files <= 12, "{most_files} files");
}

/// What of `[start, start + len)` is resident, in bytes.
#[cfg(target_os = "linux")]
fn resident(start: *const u8, len: usize) -> usize {
    let page = rustix::param::page_size();
    let skip = start.align_offset(page);
    let pages = (len - skip) / page;
    let mut found = vec![0u8; pages];
    // SAFETY: whole pages inside the ring's allocation; one byte of `found` for each.
    let result = unsafe {
        libc::mincore(start.add(skip).cast_mut().cast(), pages * page, found.as_mut_ptr())
    };
    assert_eq!(result, 0);
    found.iter().filter(|&page| page & 1 == 1).count() * page
}

#[cfg(target_os = "linux")]
#[test]
fn the_ring_gives_its_memory_back_and_goes_on() {
    // Segments larger than the ring, and segments that limit what is granted.
    for wal_segment_bytes in [4 << 20, 1 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let disk = os_disk(&dir);
        let options =
            Options { wal_segment_bytes, wal_ring_bytes: 2 << 20, ..Options::for_tests() };
        let replay = Replay::open(Arc::clone(&disk), &options, Lsn(0), Lsn(0)).unwrap();
        let wal = replay.start(&options, no_values()).unwrap();
        let (start, len) = wal.shared.ring.memory();
        let value = vec![7; 500 << 10];
        for round in 1..=2 {
            for _ in 0..5 {
                write(&wal, &value).unwrap();
            }
            assert!(resident(start, len) >= 3 << 19);
            // Not while somebody may write to it.
            let permit = wal.acquire(100).unwrap();
            assert!(!wal.give_back_ring());
            drop(permit);
            assert!(wal.give_back_ring(), "round {round}");
            assert_eq!(resident(start, len), 0);
        }
        wal.close().unwrap();
        let found = super::testing::replay(&disk, 0, 0).unwrap().records_seen();
        assert_eq!(found, 10);
    }
}
