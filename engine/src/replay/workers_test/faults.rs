//! Damaged logs, torn tails and drives that cannot be read, under several workers: the outcome is that
//! of one worker, an error says where, nothing hangs, and the directory opens once the fault has gone.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Shown, options, seed, shown, write_log};
use crate::error::{Error, ErrorKind};
use crate::io::Disk;
use crate::io::testing::{CrashDisk, Fault, FaultDisk, Operation, SeededRandom};
use crate::recovery::{self, open_with};

const EIO: i32 = 5;
/// Before the records of a log segment.
const HEADER_BYTES: u64 = 4096;

/// A directory with a log, and what an open of it shows.
struct Logged {
    disk: Arc<CrashDisk>,
    expected: Shown,
    images: u64,
    random: SeededRandom,
    dir: tempfile::TempDir,
}

impl Logged {
    fn new(test: &str, changes: bool) -> Self {
        let mut random = SeededRandom(seed(test));
        let dir = tempfile::tempdir().unwrap();
        let disk = CrashDisk::new(dir.path().join("data")).unwrap();
        let core = recovery::open(disk.clone(), options()).unwrap();
        write_log(&core, &mut random, changes);
        let expected = shown(&core);
        drop(core);
        Self { disk, expected, images: 0, random, dir }
    }

    /// A copy that nobody has opened.
    fn copy(&mut self) -> Arc<CrashDisk> {
        self.images += 1;
        self.disk.kill(&self.dir.path().join(self.images.to_string())).unwrap()
    }
}

/// Opens on a thread of its own: an open that hangs, or panics, is a failure.
fn open(disk: Arc<dyn Disk>, workers: usize) -> Result<Shown, Error> {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let opened = open_with(disk, options(), workers);
        let _ = done.send(opened.map(|core| shown(&core)));
    });
    ended.recv_timeout(Duration::from_secs(60)).expect("the open hangs or has panicked")
}

/// Log segments in order, with the bytes of each that hold records.
fn segments(root: &Path) -> Vec<(PathBuf, u64)> {
    let files = fs::read_dir(root.join("wal")).unwrap().map(|entry| entry.unwrap().path());
    let by_start: BTreeMap<u64, (PathBuf, u64)> = files
        .filter_map(|path| {
            let bytes = fs::read(&path).unwrap();
            let start = u64::from_le_bytes(bytes.get(24..32)?.try_into().unwrap());
            let used = bytes.iter().rposition(|byte| *byte != 0)? as u64 + 1;
            (bytes.starts_with(b"VMKVWAL") && used > HEADER_BYTES).then_some((start, (path, used)))
        })
        .collect();
    by_start.into_values().collect()
}

fn scribble(disk: &CrashDisk, segment: &Path, at: u64, bytes: &[u8]) {
    let path = disk.root().join("wal").join(segment.file_name().unwrap());
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Whether both are the same; the error, if it is one.
fn same(one: Result<Shown, Error>, many: Result<Shown, Error>, at: &str) -> Option<Error> {
    match (one, many) {
        (Ok(one), Ok(many)) => {
            assert!(one == many, "{at}: one worker shows something else");
            None
        }
        (Err(one), Err(many)) => {
            assert_eq!(many.kind(), one.kind(), "{at}: {many}");
            // The copies lie in different folders.
            let tail = |error: &Error| {
                let text = error.message().to_owned();
                text.rsplit_once(".wal").map_or(text.clone(), |(_, tail)| tail.to_owned())
            };
            assert_eq!(tail(&many), tail(&one), "{at}");
            Some(many)
        }
        (one, many) => panic!("{at}: one worker {:?}, many {:?}", one.err(), many.err()),
    }
}

#[test]
fn a_damaged_record_is_named_whoever_replays() {
    let mut logged = Logged::new("a damaged record", true);
    let all = segments(logged.disk.root());
    assert!(all.len() > 2, "{all:?}");
    let mut named = 0;
    for round in 0..12 {
        // The last one has a tail that may be cut.
        let (segment, used) = all[logged.random.below(all.len() as u64 - 1) as usize].clone();
        let at = HEADER_BYTES + logged.random.below(used - HEADER_BYTES);
        let was = fs::read(&segment).unwrap()[at as usize];
        let name = segment.file_name().unwrap().to_str().unwrap().to_owned();
        let say = format!("round {round}, {name} at {at}");
        let outcomes = [1, 4].map(|workers| {
            let copy = logged.copy();
            scribble(&copy, &segment, at, &[was ^ 0x24]);
            let outcome = open(copy.clone(), workers);
            if outcome.is_err() {
                // Nothing was taken, nothing was cut.
                scribble(&copy, &segment, at, &[was]);
                let healed = open(copy, workers).unwrap();
                assert!(healed == logged.expected, "{say}, workers {workers}: after the damage");
            }
            outcome
        });
        let [one, many] = outcomes;
        if let Ok(found) = &many {
            assert!(*found == logged.expected, "{say}: not damaged, and something is missing");
        }
        if let Some(error) = same(one, many, &say) {
            named += 1;
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let place = error.message().split_once(&format!("{name} at offset "));
            let place = place.unwrap_or_else(|| panic!("{say}: no file and offset in {error}")).1;
            let digits: String = place.chars().take_while(char::is_ascii_digit).collect();
            // Where the record begins; the longest has some 80 KB.
            let offset: u64 = digits.parse().unwrap();
            assert!(offset <= at && at < offset + (128 << 10), "{say}: {error}");
        }
    }
    assert!(named >= 9, "{named} of 12");
}

#[test]
fn a_torn_tail_is_cut_at_the_same_record_whoever_replays() {
    let mut logged = Logged::new("a torn tail", true);
    let all = segments(logged.disk.root());
    let (last, used) = all.last().unwrap().clone();
    let (mut cut, mut refused) = (0, 0);
    for round in 0..16 {
        // Near the end, and anywhere.
        let room = used - HEADER_BYTES;
        let back = logged.random.below(if round % 2 == 0 { room.min(3000) } else { room });
        let at = used - 1 - back;
        // A tail that was never written, or one byte of it.
        let bytes = if round % 4 < 2 { vec![0; back as usize + 1] } else { vec![0xa5] };
        let say = format!("round {round}, {} bytes at {at} of {used}", bytes.len());
        let [one, many] = [1, 4].map(|workers| {
            let copy = logged.copy();
            scribble(&copy, &last, at, &bytes);
            open(copy, workers)
        });
        if let Ok(found) = &many {
            cut += u32::from(*found != logged.expected);
        }
        if let Some(error) = same(one, many, &say) {
            refused += 1;
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{say}: {error}");
            assert!(error.message().contains(".wal at offset "), "{say}: {error}");
        }
    }
    assert!(cut > 3, "{cut} cut, {refused} refused");
}

#[test]
fn a_read_that_fails_ends_the_open_and_the_next_one_has_everything() {
    let mut logged = Logged::new("a read that fails", true);
    let reads = {
        let disk = FaultDisk::new(logged.copy());
        let before = disk.count(Operation::Read);
        assert!(open(disk.clone(), 4).unwrap() == logged.expected);
        disk.count(Operation::Read) - before
    };
    assert!(reads > 5, "{reads}");
    let mut failed = 0;
    let step = (reads / 25).max(1);
    for k in (0..reads).step_by(step as usize) {
        for (forever, workers) in [(false, 4), (true, 3)] {
            let copy = logged.copy();
            let disk = FaultDisk::new(copy.clone());
            let fault = Fault::new(&[Operation::Read], EIO).at(k);
            disk.inject(if forever { fault.forever() } else { fault });
            let say = format!("read {k} of {reads}, workers {workers}");
            match open(disk.clone(), workers) {
                // What is read to be checked only, or once more.
                Ok(found) => assert!(found == logged.expected, "{say}"),
                Err(error) => {
                    failed += 1;
                    assert_eq!(error.kind(), ErrorKind::Io, "{say}: {error}");
                    let root = copy.root().to_str().unwrap();
                    assert!(error.message().contains(root), "{say}: no file in {error}");
                }
            }
            assert!(disk.failed() > 0, "{say}");
            let healed = open(copy, workers).unwrap();
            assert!(healed == logged.expected, "{say}: after the fault");
        }
    }
    assert!(failed > 10, "{failed} of {reads}");
}
