//! The value log as a whole, on real files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::segment::path_of;
use super::{Access, Location, SegmentBase, ValueLog};
use crate::error::ErrorKind;
use crate::io::testing::SeededRandom;
use crate::io::{Disk, OsDisk};
use crate::options::{Options, ReadPolicy};

const SEGMENT: u64 = 16 << 20;

pub(super) fn open(disk: &Arc<dyn Disk>, bases: &[SegmentBase]) -> ValueLog {
    ValueLog::open(Arc::clone(disk), &Options::for_tests(), bases).unwrap()
}

pub(super) struct Bench {
    _dir: tempfile::TempDir,
    pub(super) disk: Arc<dyn Disk>,
}

impl Bench {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(dir.path()));
        Self { _dir: dir, disk }
    }

    pub(super) fn path(&self, segment: u32) -> std::path::PathBuf {
        self.disk.root().join(path_of(segment))
    }
}

pub(super) fn put(log: &ValueLog, key: &[u8], value: &[u8]) -> Location {
    let allocation = log.allocate(key.len(), value.len()).unwrap();
    log.write(allocation, key, value, 0)
}

pub(super) fn get(log: &ValueLog, location: Location, key: &[u8]) -> Vec<u8> {
    let guard = crossbeam_epoch::pin();
    let mut out = b"old content".to_vec();
    log.read(location, key, Access::Point, &mut out, &guard).unwrap();
    let mut scanned = Vec::new();
    log.read(location, key, Access::Scan, &mut scanned, &guard).unwrap();
    assert!(out == scanned);
    assert_eq!(log.read_full_verify(location, key, &guard).unwrap(), out.len());
    out
}

pub(super) fn make_base(log: &ValueLog, empty: &[u32]) -> Vec<SegmentBase> {
    let mark = log.begin_base(empty);
    log.publish_base(&mark);
    log.sync_base(&mark, &|| ()).unwrap();
    ValueLog::bases(&mark)
}

/// Fills the open segment and opens another.
pub(super) fn fill_segment(log: &ValueLog) -> Vec<Location> {
    let first = put(log, b"filler", &[1; 1 << 20]);
    let mut filled = vec![first];
    loop {
        let location = put(log, b"filler", &[1; 1 << 20]);
        if location.offset() / SEGMENT != first.offset() / SEGMENT {
            log.sub_live(location);
            return filled;
        }
        filled.push(location);
    }
}

#[test]
fn every_size_reads_back_from_tail_and_base_by_every_policy() {
    for read_policy in [ReadPolicy::Adaptive, ReadPolicy::Random, ReadPolicy::Sequential] {
        let bench = Bench::new();
        let options = Options { read_policy, ..Options::for_tests() };
        let log = ValueLog::open(Arc::clone(&bench.disk), &options, &[]).unwrap();
        let sizes = [0, 1, 8, 9, 100, 1024, 4000, 4096, 65_536, 1 << 20, 8 << 20];
        let stored: Vec<_> = sizes
            .iter()
            .map(|size| {
                let (key, value) = (format!("key{size}"), vec![*size as u8 ^ 0x5a; *size]);
                (put(&log, key.as_bytes(), &value), key, value)
            })
            .collect();
        for round in 0..3 {
            for (location, key, value) in &stored {
                assert!(get(&log, *location, key.as_bytes()) == *value);
                assert_eq!(log.is_tail(*location), round == 0);
            }
            make_base(&log, &[]);
        }
        let guard = crossbeam_epoch::pin();
        let mut out = Vec::new();
        let error = log.read(stored[3].0, b"key7", Access::Point, &mut out, &guard).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        for garbage in [0, 1, u64::MAX, 1 << 63, stored[0].0.0 | 0xfffff] {
            assert!(log.read(Location(garbage), b"k", Access::Point, &mut out, &guard).is_err());
            assert!(log.is_resident(Location(garbage)) || garbage == stored[0].0.0 | 0xfffff);
        }
    }
}

#[test]
fn base_and_tail_never_share_a_page() {
    let bench = Bench::new();
    let log = open(&bench.disk, &[]);
    let old = put(&log, b"a", b"1");
    let mark = log.begin_base(&[]);
    let bases = ValueLog::bases(&mark);
    assert_eq!(bases, [SegmentBase { segment: 0, base_bytes: 8192 }]);
    assert!(!log.is_tail(old));
    let new = put(&log, b"b", b"2");
    assert_eq!(new.offset(), 8192);
    assert!(log.is_tail(new));
    log.publish_base(&mark);
    log.sync_base(&mark, &|| ()).unwrap();
    log.overwrite(new, b"b", b"3", 7);
    assert_eq!(get(&log, new, b"b"), b"3");
    assert_eq!(log.tail_bytes_since_base(), new.allocated());
    assert_eq!(make_base(&log, &[])[0].base_bytes, 12288);
    assert_eq!(make_base(&log, &[])[0].base_bytes, 12288);
    assert_eq!(log.tail_bytes_since_base(), 0);
}

#[test]
fn what_lies_above_the_base_is_forgotten_whatever_it_is() {
    let bench = Bench::new();
    let (kept, bases);
    {
        let log = open(&bench.disk, &[]);
        kept = put(&log, b"kept", &[7; 5000]);
        bases = make_base(&log, &[]);
        put(&log, b"lost", b"tail");
        fill_segment(&log);
    }
    let mut random = SeededRandom(9);
    let mut file = std::fs::read(bench.path(0)).unwrap();
    for byte in &mut file[bases[0].base_bytes as usize..] {
        *byte = random.next() as u8;
    }
    std::fs::write(bench.path(0), file).unwrap();
    std::fs::write(bench.path(1), b"torn").unwrap();
    std::fs::write(bench.path(2), b"").unwrap();
    std::fs::write(bench.path(3), vec![0xff; SEGMENT as usize + 5]).unwrap();
    std::fs::write(bench.disk.root().join("t2/notes.txt"), b"not ours").unwrap();

    let log = open(&bench.disk, &bases);
    log.add_live(kept).unwrap();
    assert_eq!(get(&log, kept, b"kept"), [7; 5000]);
    let next = put(&log, b"next", b"in the garbage");
    assert_eq!(next.offset(), u64::from(bases[0].base_bytes));
    assert_eq!(get(&log, next, b"next"), b"in the garbage");
    for expected in 0..4 {
        let filled = fill_segment(&log);
        assert_eq!(filled[0].offset() / SEGMENT, expected);
        assert_eq!(get(&log, filled[0], b"filler"), [1; 1 << 20]);
    }
    for n in 1..4 {
        assert_eq!(std::fs::metadata(bench.path(n)).unwrap().len(), SEGMENT);
    }
    // All of it opens again.
    let bases = make_base(&log, &[]);
    drop(log);
    open(&bench.disk, &bases);
}

#[test]
fn a_named_segment_that_is_not_right_is_an_error_that_names_it() {
    let bench = Bench::new();
    let bases = {
        let log = open(&bench.disk, &[]);
        put(&log, b"k", b"v");
        make_base(&log, &[])
    };
    let good = std::fs::read(bench.path(0)).unwrap();
    let try_open = |bases: &[SegmentBase], options: &Options| {
        let error = ValueLog::open(Arc::clone(&bench.disk), options, bases).err().unwrap();
        assert!(error.message().contains(".t2"), "{error}");
        error.kind()
    };
    let options = Options::for_tests();
    std::fs::write(bench.path(0), &good[..100_000]).unwrap();
    assert_eq!(try_open(&bases, &options), ErrorKind::Corrupt);
    std::fs::write(bench.path(0), b"").unwrap();
    assert_eq!(try_open(&bases, &options), ErrorKind::Corrupt);
    std::fs::write(bench.path(0), vec![b'x'; SEGMENT as usize]).unwrap();
    assert_eq!(try_open(&bases, &options), ErrorKind::Foreign);
    std::fs::remove_file(bench.path(0)).unwrap();
    assert_eq!(try_open(&bases, &options), ErrorKind::Corrupt);
    std::fs::write(bench.path(0), &good).unwrap();
    let larger = Options { value_segment_bytes: 2 * SEGMENT, ..options.clone() };
    assert_eq!(try_open(&bases, &larger), ErrorKind::InvalidArgument);
    for base_bytes in [0, 100, SEGMENT as u32 + 4096] {
        let bases = [SegmentBase { segment: 0, base_bytes }];
        assert_eq!(try_open(&bases, &options), ErrorKind::Corrupt);
    }
    assert_eq!(try_open(&[bases[0], bases[0]], &options), ErrorKind::Corrupt);
    let far = [SegmentBase { segment: 1 << 20, base_bytes: 8192 }];
    assert_eq!(try_open(&far, &options), ErrorKind::InvalidArgument);
    open(&bench.disk, &bases);
}

#[test]
fn an_empty_segment_is_reused_when_no_reader_is_left() {
    let bench = Bench::new();
    let log = open(&bench.disk, &[]);
    let filled = fill_segment(&log);
    make_base(&log, &[]);
    assert_eq!(log.empty_segments(), [0; 0]);
    for location in &filled[1..] {
        log.sub_live(*location);
    }
    assert_eq!(log.empty_segments(), [0; 0]);
    let guard = crossbeam_epoch::pin();
    log.sub_live(filled[0]);
    let empty = log.empty_segments();
    assert_eq!(empty, [0]);
    let bases = make_base(&log, &empty);
    assert!(bases.iter().all(|base| base.segment != 0));
    log.free(&empty);
    log.free(&empty);
    assert_eq!(log.empty_segments(), [0; 0]);
    assert_eq!(log.stats().free_segments, 1);
    // The reader still reads what was there, however much is written.
    for _ in 0..3 {
        assert!(fill_segment(&log)[0].offset() / SEGMENT != 0);
        let mut out = Vec::new();
        log.read(filled[0], b"filler", Access::Point, &mut out, &guard).unwrap();
        assert_eq!(out, [1; 1 << 20]);
    }
    drop(guard);
    // Other tests of this process are pinned now and then.
    let reused = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        fill_segment(&log)[0].offset() / SEGMENT == 0
    });
    assert!(reused);
    let again = put(&log, b"again", b"x");
    assert_eq!(get(&log, again, b"again"), b"x");
    assert_eq!(log.stats().free_segments, 0);
}

#[test]
fn an_allocation_under_way_keeps_its_segment() {
    let bench = Bench::new();
    let log = open(&bench.disk, &[]);
    let under_way = log.allocate(1, 10).unwrap();
    let filled = fill_segment(&log);
    filled.iter().for_each(|location| log.sub_live(*location));
    assert_eq!(log.empty_segments(), [0; 0]);
    let location = log.write(under_way, b"k", b"0123456789", 0);
    assert_eq!(log.empty_segments(), [0; 0]);
    log.sub_live(location);
    drop(log.allocate(1, 1).unwrap());
    assert_eq!(log.empty_segments(), [0]);
}

#[test]
fn a_segment_seen_empty_takes_nothing_more() {
    let bench = Bench::new();
    let log = open(&bench.disk, &[]);
    let small = put(&log, b"small", b"x");
    // Does not fit what is left of segment 0, which keeps room.
    let large: Vec<_> = (0..2).map(|_| put(&log, b"large", &[0; 8 << 20])).collect();
    assert_eq!(large[1].offset() / SEGMENT, 1);
    log.sub_live(small);
    log.sub_live(large[0]);
    let empty = log.empty_segments();
    assert_eq!(empty, [0]);
    for _ in 0..40 {
        assert!(put(&log, b"k", &[0; 1 << 20]).offset() / SEGMENT != 0);
    }
    // The checkpoint failed: the next one gets it again.
    assert_eq!(log.empty_segments(), [0]);
}

#[test]
fn readers_see_whole_values_while_writers_overwrite_and_bases_are_made() {
    const KEYS: usize = 8;
    let bench = Bench::new();
    let log = open(&bench.disk, &[]);
    let stripe = parking_lot::Mutex::new(());
    let places: Vec<_> = (0..KEYS)
        .map(|key| std::sync::atomic::AtomicU64::new(put(&log, &[key as u8], &[0; 200]).0))
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (log, places, stop) = (&log, &places, &stop);
            scope.spawn(move || {
                let mut out = Vec::new();
                let mut random = SeededRandom(reader);
                while !stop.load(Ordering::Relaxed) {
                    let key = random.below(KEYS as u64) as usize;
                    let guard = crossbeam_epoch::pin();
                    let location = Location(places[key].load(Ordering::Acquire));
                    log.read(location, &[key as u8], Access::Point, &mut out, &guard).unwrap();
                    assert!(out.iter().all(|byte| *byte == out[0]), "torn");
                    assert!(out.len() == 200 - out[0] as usize % 100, "length of another version");
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..200 {
                let empty = log.empty_segments();
                let mark = log.begin_base(&empty);
                drop(stripe.lock());
                log.publish_base(&mark);
                log.sync_base(&mark, &|| ()).unwrap();
                log.free(&empty);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let mut random = SeededRandom(77);
        while !stop.load(Ordering::Relaxed) {
            let key = random.below(KEYS as u64) as usize;
            let byte = random.next() as u8;
            let value = vec![byte; 200 - byte as usize % 100];
            let _stripe = stripe.lock();
            let old = Location(places[key].load(Ordering::Relaxed));
            if log.is_tail(old) && ValueLog::fits(old, 1, value.len()) {
                log.overwrite(old, &[key as u8], &value, 0);
            } else {
                let new = put(&log, &[key as u8], &value);
                places[key].store(new.0, Ordering::Release);
                log.sub_live(old);
            }
        }
    });
    for (key, place) in places.iter().enumerate() {
        get(&log, Location(place.load(Ordering::Relaxed)), &[key as u8]);
    }
    let live: u64 = places.iter().map(|p| Location(p.load(Ordering::Relaxed)).allocated()).sum();
    assert_eq!(log.stats().live_bytes, live);
}
