//! What a damaged, torn or foreign log does at the next open.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::inspect::SegmentSummary;
use super::reference::no_values;
use super::segment::{HEADER_BLOCK_BYTES, SegmentHeader};
use super::testing::{append, contents, open, options, os_disk, replay, write};
use super::{Body, Op, Record, RequestId, Section, Wal, inspect};
use crate::error::ErrorKind;
use crate::io::Disk;
use crate::types::{InstanceId, Lsn, Revision};

struct Bench {
    dir: tempfile::TempDir,
    disk: Arc<dyn Disk>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = os_disk(&dir);
        Self { dir, disk }
    }

    /// A log of `n` records of their own flush each, closed. Ends and values.
    fn with_records(n: u8) -> (Self, Vec<(u64, Vec<u8>)>) {
        let bench = Self::new();
        let (wal, _) = open(&bench.disk);
        let records = (0..n)
            .map(|i| {
                let value = vec![i; 400 + usize::from(i)];
                (write(&wal, &value).unwrap().0, value)
            })
            .collect();
        (bench, records)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("wal").join(name)
    }

    /// The segment (made by the newest open) that holds `lsn`, and the offset there.
    fn place_of(&self, lsn: u64) -> (PathBuf, u64) {
        let segments = inspect(&*self.disk).unwrap();
        let holds = |s: &&SegmentSummary| s.start.0 <= lsn && lsn < s.end.0;
        let segment = segments.iter().rev().find(holds).unwrap();
        (self.path(&segment.file), HEADER_BLOCK_BYTES + lsn - segment.start.0)
    }

    fn overwrite(&self, lsn: u64, bytes: &[u8]) {
        let (path, offset) = self.place_of(lsn);
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(self.dir.path().join("wal")).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }

    fn refused(&self, checkpoint: u64, freeze: u64) -> crate::Error {
        let before = self.snapshot();
        let error = replay(&self.disk, checkpoint, freeze).map(drop).unwrap_err();
        assert!(self.snapshot() == before, "a refused log was changed");
        error
    }
}

/// Two records that the flusher takes in one flush; their ends.
fn write_in_one_flush(wal: &Wal, first: &[u8], second: &[u8]) -> (Lsn, Lsn) {
    let ops = [Op::put(b"key", first)];
    let sections = [Section { instance: InstanceId(1), first_revision: Revision(1), ops: &ops }];
    let record = Record { body: Body::Write(&sections), request: RequestId::default() };
    let reservation = wal.reserve(wal.acquire(record.encoded_len()).unwrap());
    let behind = append(wal, second).unwrap();
    let end = reservation.publish(&record);
    wal.wait(behind).unwrap();
    (end, behind)
}

#[test]
fn torn_tails_are_cut_and_the_log_goes_on() {
    type Tear = fn(&Bench, u64, u64);
    let tears: [Tear; 6] = [
        |bench, start, _| {
            let (path, offset) = bench.place_of(start);
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(offset + 20).unwrap();
        },
        |bench, _, end| {
            let (path, offset) = bench.place_of(end - 8);
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(offset).unwrap();
        },
        |bench, start, end| bench.overwrite(start, &vec![0; (end - start) as usize]),
        |bench, start, _| bench.overwrite(start, &[0xff; 8]),
        |bench, start, _| bench.overwrite(start + 17, &[0x01]),
        |bench, start, _| bench.overwrite(start + 200, &[0x55]),
    ];
    for tear in tears {
        let (bench, mut records) = Bench::with_records(10);
        let (end, _) = records.pop().unwrap();
        tear(&bench, records.last().unwrap().0, end);
        let (wal, found) = open(&bench.disk);
        assert_eq!(found, records);
        let value = b"after the tear".to_vec();
        records.push((write(&wal, &value).unwrap().0, value));
        drop(wal);
        for _ in 0..2 {
            assert_eq!(open(&bench.disk).1, records);
        }
    }
}

#[test]
fn damage_with_later_evidence_is_refused_by_file_and_offset() {
    for at in [0, 20, 50] {
        let (bench, records) = Bench::with_records(60);
        let start = if at == 0 { 0 } else { records[at - 1].0 };
        let (path, offset) = bench.place_of(start);
        bench.overwrite(start + 150, &[0x77]);
        let error = bench.refused(0, 0);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let place = format!("{} at offset {offset}", path.display());
        assert!(error.message().starts_with(&place), "{error} is not about {place}");
    }
}

/// Evidence in another segment: the last record of a full one, or a whole segment, is gone.
#[test]
fn damage_at_the_end_of_a_full_segment_is_refused() {
    let (bench, _) = Bench::with_records(100);
    let segments = inspect(&*bench.disk).unwrap();
    assert!(segments.len() > 3);
    bench.overwrite(segments[1].end.0 - 40, &[0x77]);
    assert_eq!(bench.refused(0, 0).kind(), ErrorKind::Corrupt);

    let (bench, _) = Bench::with_records(100);
    fs::remove_file(bench.path(&segments[1].file)).unwrap();
    assert_eq!(bench.refused(0, 0).kind(), ErrorKind::Corrupt);
}

#[test]
fn a_log_that_ends_before_freeze_lsn_is_refused() {
    let (bench, records) = Bench::with_records(5);
    let (checkpoint, end) = (records[1].0, records[4].0);
    assert_eq!(replay(&bench.disk, checkpoint, end).unwrap().proven(), Lsn(end));
    assert_eq!(bench.refused(checkpoint, end + 8).kind(), ErrorKind::Corrupt);
    bench.overwrite(records[3].0 + 100, &[0x77]);
    assert_eq!(bench.refused(checkpoint, end).kind(), ErrorKind::Corrupt);
    replay(&bench.disk, checkpoint, records[3].0).unwrap();
}

#[test]
fn a_missing_beginning_is_refused() {
    let bench = Bench::new();
    assert_eq!(replay(&bench.disk, 8, 8).map(drop).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!bench.dir.path().join("wal").exists());
    let (bench, records) = Bench::with_records(100);
    let segments = inspect(&*bench.disk).unwrap();
    fs::remove_file(bench.path(&segments[0].file)).unwrap();
    assert_eq!(bench.refused(0, 0).kind(), ErrorKind::Corrupt);
    let checkpoint = segments[1].start.0;
    let found = contents(&replay(&bench.disk, checkpoint, checkpoint).unwrap());
    assert!(found == records[records.len() - found.len()..] && found.len() > 50);
}

/// F10, F11: of one flush only the second record survives; then its place is written again.
#[test]
fn f10_f11_a_hole_in_one_flush_is_a_torn_tail_and_what_is_behind_never_returns() {
    let bench = Bench::new();
    let (wal, _) = open(&bench.disk);
    let before = write(&wal, b"before").unwrap();
    let (end, behind) = write_in_one_flush(&wal, b"first", b"second");
    drop(wal);
    bench.overwrite(before.0, &vec![0; (end.0 - before.0) as usize]);
    let (wal, found) = open(&bench.disk);
    assert_eq!(found, [(before.0, b"before".to_vec())]);
    assert_eq!(wal.durable_lsn(), before);
    assert_eq!(write(&wal, b"FIRST").unwrap(), end);
    drop(wal);
    let expected = [(before.0, b"before".to_vec()), (end.0, b"FIRST".to_vec())];
    let (wal, found) = open(&bench.disk);
    assert_eq!(found, expected);
    assert_eq!(write(&wal, b"SECOND").unwrap(), behind);
    drop(wal);
    assert_eq!(open(&bench.disk).1[2], (behind.0, b"SECOND".to_vec()));
}

#[test]
fn what_no_base_proves_is_written_again() {
    let (bench, records) = Bench::with_records(9);
    let found = replay(&bench.disk, 0, 0).unwrap();
    assert_eq!((found.proven().0, found.cut().0), (records[7].0, records[8].0));
    drop(found.start(&options(), no_values()).unwrap());
    let newest = inspect(&*bench.disk).unwrap().pop().unwrap();
    assert!(newest.reopen);
    assert_eq!(
        (newest.start.0, newest.end.0, newest.valid_records),
        (records[7].0, records[8].0, 1)
    );
    // The old copy is void, whatever it holds.
    let old = inspect(&*bench.disk).unwrap()[0].clone();
    assert!(old.end.0 == records[8].0 && !old.file.is_empty());
    let file = fs::OpenOptions::new().write(true).open(bench.path(&old.file)).unwrap();
    file.write_all_at(&[0x77; 50], HEADER_BLOCK_BYTES + records[7].0).unwrap();
    assert_eq!(open(&bench.disk).1, records);
}

#[test]
fn newer_versions_are_refused_and_nothing_is_changed() {
    let (bench, records) = Bench::with_records(3);
    let (path, _) = bench.place_of(0);
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.write_all_at(&[2], 8).unwrap();
    assert_eq!(bench.refused(0, 0).kind(), ErrorKind::Foreign);
    file.write_all_at(&[1], 8).unwrap();
    // A kind of record that this version does not know, with the right checksum.
    let mut header = vec![0; 4096];
    file.read_exact_at(&mut header, 0).unwrap();
    let super::segment::HeaderState::Valid(header) = SegmentHeader::decode(&header) else {
        panic!("no header")
    };
    let (_, offset) = bench.place_of(records[1].0);
    let mut bytes = vec![0; 32];
    file.read_exact_at(&mut bytes, offset).unwrap();
    let record = super::record::Header::decode(&bytes).unwrap();
    let unknown = super::record::Header { kind: 255, ..record };
    file.write_all_at(&unknown.encode(header.salt), offset).unwrap();
    let error = bench.refused(0, 0);
    assert_eq!(error.kind(), ErrorKind::Foreign);
    assert!(error.message().contains("newer version"), "{error}");
}

#[test]
fn files_that_were_never_started_are_recycled_and_foreign_ones_left_alone() {
    let (bench, records) = Bench::with_records(3);
    let first = fs::read(bench.path("0.wal")).unwrap();
    fs::write(bench.path("7.wal"), &first).unwrap(); // the header says 0
    fs::write(bench.path("8.wal"), b"torn").unwrap();
    fs::write(bench.path("09.wal"), b"not ours").unwrap();
    fs::write(bench.path("notes.txt"), b"not ours").unwrap();
    let (wal, found) = open(&bench.disk);
    assert_eq!(found, records);
    write(&wal, b"more").unwrap();
    drop(wal);
    assert!(!bench.path("8.wal").exists(), "too short to be reused");
    assert!(!bench.path("7.wal").exists() && bench.path("9.wal").exists());
    for name in ["09.wal", "notes.txt"] {
        assert_eq!(fs::read(bench.path(name)).unwrap(), b"not ours");
    }
    assert_eq!(open(&bench.disk).1[3].1, b"more");
}

#[test]
fn an_error_of_the_callback_ends_the_replay() {
    let (bench, _) = Bench::with_records(3);
    let mut seen = 0;
    let found = replay(&bench.disk, 0, 0).unwrap();
    let outcome = found.for_each(&mut |_, _| {
        seen += 1;
        if seen == 2 { Err(crate::Error::invalid("stop")) } else { Ok(()) }
    });
    assert_eq!((outcome.unwrap_err().message(), seen), ("stop", 2));
    assert_eq!(bench.disk.root().join(Path::new("wal")), bench.path("").as_path());
}
