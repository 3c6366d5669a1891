//! Power cuts and kills: at every step of a start, after lying syncs, and at random over lives of
//! several opens, checkpoints and recycled segments.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::reference::no_values;
use super::testing::{append, contents, value_of};
use super::{Body, Op, Record, Replay, RequestId, Section, Wal};
use crate::io::testing::{CrashDisk, Fault, FaultDisk, Operation, PowerCut, SeededRandom};
use crate::io::{Disk, File, read_file, replace_file};
use crate::options::Options;
use crate::types::{InstanceId, Lsn, Revision};

/// Everything small: segments of two or three records, a ring that wraps all the time.
fn options() -> Options {
    Options {
        wal_segment_bytes: 12 << 10,
        wal_ring_bytes: 16 << 10,
        checkpoint_wal_bytes: 48 << 10,
        ..Options::for_tests()
    }
}

fn open(disk: &Arc<dyn Disk>) -> (Wal, Vec<(u64, Vec<u8>)>) {
    let replay = Replay::open(Arc::clone(disk), &options(), Lsn(0), Lsn(0)).unwrap();
    let found = contents(&replay);
    (replay.start(&options(), no_values()).unwrap(), found)
}

/// A disk on which syncs of files that were there before lie: as after a failed sync, when the
/// pages look clean and are not on the disk. What is written is dirty again: a file that is
/// written to (a spare, a recycled one) syncs as ever.
struct LyingDisk(Arc<dyn Disk>);
struct LyingFile(Arc<dyn File>, AtomicBool);

impl Disk for LyingDisk {
    fn root(&self) -> &Path {
        self.0.root()
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.0.create(path)
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(LyingFile(self.0.open(path)?, AtomicBool::new(false))))
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.0.exists(path)
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.0.list(folder)
    }
    fn create_dir(&self, folder: &Path) -> io::Result<()> {
        self.0.create_dir(folder)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }
    fn sync_dir(&self, folder: &Path) -> io::Result<()> {
        self.0.sync_dir(folder)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }
}

impl File for LyingFile {
    fn path(&self) -> PathBuf {
        self.0.path()
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.1.store(true, Ordering::Relaxed);
        self.0.write_at(offset, bytes)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.0.allocate(len)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        if self.1.load(Ordering::Relaxed) { self.0.sync() } else { Ok(()) }
    }
    fn sync_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An acknowledged record is among those that a start writes again: it survives a power cut at
/// every step, and so does a second start.
#[test]
fn a_cut_at_any_step_of_a_start_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let disk = CrashDisk::new(dir.path().join("live")).unwrap();
    let (wal, _) = open(&(disk.clone() as Arc<dyn Disk>));
    for i in 0..9_u8 {
        wal.wait(append(&wal, &vec![i; 1500]).unwrap()).unwrap();
    }
    drop(wal);
    let expected = open(&(disk.clone() as Arc<dyn Disk>)).1;
    assert_eq!(expected.len(), 9);
    let mut images = 0;
    for keep_unstarted in [false, true] {
        let start_dir = dir.path().join(format!("start{keep_unstarted}"));
        disk.materialise(None, &start_dir, &PowerCut::strict()).unwrap();
        if keep_unstarted {
            // Something to recycle, full of old records.
            std::fs::copy(start_dir.join("wal/0.wal"), start_dir.join("wal/77.wal")).unwrap();
        }
        let disk = CrashDisk::new(&start_dir).unwrap();
        let (wal, found) = open(&(disk.clone() as Arc<dyn Disk>));
        assert_eq!(found, expected);
        for point in 0..=disk.crash_points() {
            for seed in 0..12 {
                images += 1;
                let image = dir.path().join(format!("image{images}"));
                disk.materialise(Some(point), &image, &PowerCut::random(seed)).unwrap();
                let image = CrashDisk::new(image).unwrap() as Arc<dyn Disk>;
                assert_eq!(open(&image).1, expected, "point {point}, seed {seed}");
                assert_eq!(open(&image).1, expected, "point {point}, seed {seed}, again");
            }
        }
        drop(wal);
    }
}

/// F12: the sync of a flush fails, the process dies, the next one finds the pages and serves them,
/// although no sync of that file will ever bring them to the disk.
#[test]
fn f12_what_was_served_after_a_failed_sync_survives_a_power_cut() {
    for flushes in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let crash = CrashDisk::new(dir.path().join("live")).unwrap();
        let faults = FaultDisk::new(crash.clone());
        let (wal, _) = open(&(faults.clone() as Arc<dyn Disk>));
        for _ in 0..flushes {
            wal.wait(append(&wal, &[1; 3000]).unwrap()).unwrap();
        }
        faults.inject(Fault::new(&[Operation::Sync], libc::EIO));
        wal.wait(append(&wal, &[2; 700]).unwrap()).unwrap_err();
        // Twice: the second process finds the first one's work, and syncs lie to both.
        let mut killed = crash.kill(&dir.path().join("killed")).unwrap();
        drop(wal);
        let mut served = Vec::new();
        for again in 0..3 {
            let lying: Arc<dyn Disk> = Arc::new(LyingDisk(killed.clone()));
            let (wal, found) = open(&lying);
            assert!(again == 0 || found == served);
            served = found;
            let image = dir.path().join(format!("image{again}"));
            killed.materialise(None, &image, &PowerCut::strict()).unwrap();
            let image = CrashDisk::new(image).unwrap() as Arc<dyn Disk>;
            assert_eq!(open(&image).1, served, "{flushes} flushes, {again}");
            killed = killed.kill(&dir.path().join(format!("killed{again}"))).unwrap();
            drop(wal);
        }
        assert!(served.len() >= flushes);
    }
}

/// The log's life as the oracle knows it.
struct Model {
    seed: u64,
    random: SeededRandom,
    dir: tempfile::TempDir,
    disk: Arc<CrashDisk>,
    images: u64,
    /// Every record that may be found: its end and value.
    written: Vec<(u64, Vec<u8>)>,
    /// Acknowledged ends, and the crash point from which on each must survive.
    acked: Vec<(u64, usize)>,
    next_value: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = CrashDisk::new(dir.path().join("live")).unwrap();
        Self {
            seed,
            random: SeededRandom(seed),
            dir,
            disk,
            images: 0,
            written: Vec::new(),
            acked: Vec::new(),
            next_value: 0,
        }
    }

    fn manifest(&self) -> (u64, u64) {
        let content = read_file(&*self.disk, Path::new("MANIFEST")).unwrap();
        let content = content.unwrap_or_else(|| b"0 0".to_vec());
        let text = String::from_utf8(content).unwrap();
        let (checkpoint, freeze) = text.split_once(' ').unwrap();
        (checkpoint.parse().unwrap(), freeze.parse().unwrap())
    }

    /// Opens the log and compares it with what must and may be there.
    fn recover(&mut self) -> Wal {
        let seed = self.seed;
        let (checkpoint, freeze) = self.manifest();
        // As found: the manifest first.
        if self.disk.exists(Path::new("MANIFEST")).unwrap() {
            self.disk.open(Path::new("MANIFEST")).unwrap().sync().unwrap();
            self.disk.sync_dir(Path::new("")).unwrap();
        }
        let disk = self.disk.clone() as Arc<dyn Disk>;
        let replay = Replay::open(disk, &options(), Lsn(checkpoint), Lsn(freeze));
        let replay = replay.unwrap_or_else(|error| panic!("seed {seed}: refused: {error}"));
        let mut found = Vec::new();
        replay
            .for_each(&mut |record, end| {
                found.push((end.0, value_of(&record)));
                Ok(())
            })
            .unwrap();
        let cut = replay.cut().0;
        self.written.retain(|(end, _)| *end > checkpoint);
        assert!(self.written.starts_with(&found), "seed {seed}: found what was never there");
        let acked = self.acked.iter().map(|(end, _)| *end).max().unwrap_or(0);
        assert!(acked <= cut, "seed {seed}: acknowledged {acked}, the log ends at {cut}");
        self.written.truncate(found.len());
        let wal = replay.start(&options(), no_values()).unwrap();
        // What was served must not vanish later.
        self.acked = vec![(cut, self.disk.crash_points())];
        wal
    }

    fn value(&mut self) -> Vec<u8> {
        self.next_value += 1;
        let mut value = self.next_value.to_le_bytes().to_vec();
        value.resize(8 + self.random.below(self.random.0 % 3000 + 1) as usize, 0x5a);
        value
    }

    /// One to four records, as one flush unless they span segments or the flusher was faster.
    fn append(&mut self, wal: &Wal) {
        let value = self.value();
        let ops = [Op::put(b"key", &value)];
        let (instance, first_revision) = (InstanceId(1), Revision(1));
        let sections = [Section { instance, first_revision, ops: &ops }];
        let record = Record { body: Body::Write(&sections), request: RequestId::default() };
        let reservation = wal.reserve(wal.acquire(record.encoded_len()).unwrap());
        self.written.push((reservation.end().0, value.clone()));
        let mut last = reservation.end();
        for _ in 0..self.random.below(4) {
            let value = self.value();
            last = append(wal, &value).unwrap();
            self.written.push((last.0, value));
        }
        reservation.publish(&record);
        if self.random.below(5) > 0 {
            wal.wait(last).unwrap();
            self.acked.push((last.0, self.disk.crash_points()));
        }
    }

    fn checkpoint(&mut self, wal: &Wal) {
        let durable = self.acked.iter().map(|(end, _)| *end).max().unwrap_or(0);
        let (old, _) = self.manifest();
        let ends: Vec<u64> =
            self.written.iter().map(|(e, _)| *e).filter(|e| (old..=durable).contains(e)).collect();
        if ends.is_empty() {
            return;
        }
        let mut pick = || ends[self.random.below(ends.len() as u64) as usize];
        let (a, b) = (pick(), pick());
        let (checkpoint, freeze) = (a.min(b), a.max(b));
        let manifest = format!("{checkpoint} {freeze}");
        replace_file(&*self.disk, Path::new("MANIFEST"), manifest.as_bytes()).unwrap();
        wal.retire(Lsn(checkpoint));
    }

    /// Kills the process, or cuts the power at a moment of this life.
    fn crash(&mut self, wal: &Wal, life_began: usize) {
        self.images += 1;
        let image = self.dir.path().join(format!("image{}", self.images));
        if self.random.below(10) < 3 {
            // The copy of a kill is not taken at one moment.
            wal.wait(wal.appended_lsn()).unwrap();
            self.disk = self.disk.kill(&image).unwrap();
        } else {
            let now = self.disk.crash_points();
            let point = life_began + self.random.below((now - life_began + 1) as u64) as usize;
            let cut = PowerCut::random(self.random.next());
            self.disk.materialise(Some(point), &image, &cut).unwrap();
            self.disk = CrashDisk::new(image).unwrap();
            self.acked.retain(|(_, from)| *from <= point);
            self.acked.iter_mut().for_each(|(_, from)| *from = 0);
        }
    }

    fn run(mut self) {
        for _ in 0..5 {
            let life_began = self.disk.crash_points();
            let wal = self.recover();
            for _ in 0..self.random.below(25) {
                self.append(&wal);
                if self.random.below(4) == 0 {
                    self.checkpoint(&wal);
                }
            }
            self.crash(&wal, life_began);
            drop(wal);
        }
        self.recover();
    }
}

#[test]
fn random_lives_lose_nothing_and_invent_nothing() {
    for seed in 0..100 {
        Model::new(seed).run();
    }
}
