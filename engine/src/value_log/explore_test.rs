//! The value log under the explorer of thread schedules: a record that changes while it is read is
//! one version, and a segment is not used again while a reader may hold a place in it.

use std::sync::Arc;

use super::{Access, Location, ValueLog, record, seqlock};
use crate::io::{Disk, OsDisk};
use crate::options::Options;
use crate::sync::explore::explore;
use crate::sync::primitives::atomic::{AtomicU64, Ordering};
use crate::sync::primitives::thread;

const KEY: &[u8] = b"key";

/// A value that says its number all over; lengths differ.
fn value(n: u8) -> Vec<u8> {
    vec![n; [12, 20, 5][n as usize % 3]]
}

#[test]
fn explore_a_record_is_one_version() {
    explore("sequence lock", 2000, || {
        let len = record::allocated_len(KEY.len(), 24) as usize;
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..len / 8).map(|_| 0.into()).collect());
        seqlock::store_bytes(&words, record::HEADER, KEY);
        seqlock::overwrite(&words, KEY, &value(0), 0);
        let writer = Arc::clone(&words);
        let mut threads = vec![thread::spawn(move || {
            for n in 1..4 {
                seqlock::overwrite(&writer, KEY, &value(n), u64::from(n));
            }
        })];
        for _ in 0..2 {
            let reader = Arc::clone(&words);
            threads.push(thread::spawn(move || {
                let mut last = 0;
                for _ in 0..3 {
                    let mut out = Vec::new();
                    let expiry = seqlock::read(&reader, KEY, &mut out).unwrap();
                    assert!(out == value(expiry as u8), "torn: {expiry} {out:?}");
                    assert!(expiry >= last, "{expiry} after {last}");
                    last = expiry;
                }
                let mut whole = Vec::new();
                seqlock::snapshot(&reader, &mut whole);
                record::Record::decode(&whole).unwrap().verify().unwrap();
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

const SEGMENT: u64 = 16 << 10;

/// A writer moves a key from segment to segment; a checkpoint frees what is empty; readers look the
/// place up and read it.
#[test]
fn explore_a_segment_is_not_reused_under_a_reader() {
    explore("segment release", 600, || {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(dir.path()));
        let options = Options {
            value_segment_bytes: SEGMENT,
            value_log_max_bytes: 64 * SEGMENT,
            ..Options::for_tests()
        };
        let log = Arc::new(ValueLog::open(disk, &options, &[]).unwrap());
        let put = |log: &ValueLog, key: &[u8], len: usize| {
            let allocation = log.allocate(key.len(), len).unwrap();
            log.write(allocation, key, &vec![key[0]; len], 0)
        };
        // Fills more than half of a segment: the next one opens another.
        let large = SEGMENT as usize - 6000;
        let index = Arc::new(AtomicU64::new(put(&log, KEY, large).0));
        let mut threads = Vec::new();
        for _ in 0..2 {
            let (log, index) = (Arc::clone(&log), Arc::clone(&index));
            threads.push(thread::spawn(move || {
                for _ in 0..3 {
                    let guard = crossbeam_epoch::pin();
                    let location = Location(index.load(Ordering::Acquire));
                    let mut out = Vec::new();
                    log.read(location, KEY, Access::Point, &mut out, &guard).unwrap();
                    assert!(out == vec![KEY[0]; large], "another's bytes");
                }
            }));
        }
        let writer = thread::spawn(move || {
            for round in 0..3 {
                // The key moves; what it leaves is empty.
                let old = index.swap(put(&log, KEY, large).0, Ordering::AcqRel);
                log.sub_live(Location(old));
                // A checkpoint.
                let empty = log.empty_segments();
                let mark = log.begin_base(&empty);
                log.publish_base(&mark);
                log.sync_base(&mark, &|| ()).unwrap();
                log.free(&empty);
                // Others take what is free.
                for _ in 0..2 {
                    crossbeam_epoch::pin().flush();
                    let other = put(&log, &[b'0' + round], large);
                    log.sub_live(other);
                }
            }
        });
        threads.push(writer);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
