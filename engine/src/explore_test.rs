//! The whole engine under the explorer of thread schedules: writers, a reader, a scanner and the
//! jobs, on files in memory, with a kill at any moment.
//!
//! Under test: a read and a scan see what was acknowledged and nothing from nowhere; what was
//! acknowledged or shown is there when the files as they were at the kill are opened.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::{Condition, MergeShards, Operation, ScanOptions, SplitShard};
use crate::core::Core;
use crate::io::OsDisk;
use crate::options::Options;
use crate::recovery;
use crate::sync::explore::explore;
use crate::sync::primitives::thread;
use crate::types::ShardId;

const KEYS: usize = 4;

fn key(number: usize) -> Vec<u8> {
    format!("key/{number}").into_bytes()
}

/// Some inline, some in the value log, some that fit in the place of others.
fn value(count: u64) -> Vec<u8> {
    count.to_le_bytes().repeat([1, 5, 3][count as usize % 3])
}

fn count_of(value: &[u8]) -> u64 {
    let count = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert!(value == self::value(count), "torn: begins with {count}");
    count
}

/// What is known of a key. Not explored: the test's own look must be no step of a schedule.
#[derive(Default)]
struct Known {
    begun: AtomicU64,
    shown: AtomicU64,
}

/// An engine, and what is known of its keys.
struct World {
    core: Core,
    known: [Known; KEYS],
    /// What kills left, in the order of the kills. Not explored.
    killed: std::sync::Mutex<Vec<Killed>>,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Arc<Self> {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let core = open(&dir.path().join("data"));
        Arc::new(Self { core, known: Default::default(), killed: Default::default(), dir })
    }

    fn begin(&self, number: usize) -> u64 {
        self.known[number].begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn shown(&self, number: usize, count: u64) {
        self.known[number].shown.fetch_max(count, Ordering::SeqCst);
    }

    fn put(&self, number: usize) {
        let count = self.begin(number);
        let written = self.core.put(&key(number), &value(count), &Condition::None).unwrap();
        self.core.wal.wait(written.lsn).unwrap();
        self.shown(number, count);
    }

    fn batch(&self, numbers: [usize; 2]) {
        let counts = numbers.map(|number| self.begin(number));
        let put = |i: usize| Operation::Put { key: key(numbers[i]), value: value(counts[i]) };
        let lsn = self.core.write_batch(&[put(0), put(1)]).unwrap();
        self.core.wal.wait(lsn).unwrap();
        (0..2).for_each(|i| self.shown(numbers[i], counts[i]));
    }

    fn get(&self, number: usize) {
        let before = self.known[number].shown.load(Ordering::SeqCst);
        let found = self.core.get(&key(number)).unwrap();
        self.saw(number, before, found.as_deref());
    }

    fn scan(&self) {
        let before: Vec<u64> =
            self.known.iter().map(|known| known.shown.load(Ordering::SeqCst)).collect();
        let found = self.core.scan(&ScanOptions::default()).unwrap().entries;
        assert!(found.is_sorted_by(|a, b| a.0 < b.0), "order");
        for (number, before) in before.into_iter().enumerate() {
            let entry = found.iter().find(|entry| entry.0 == key(number));
            self.saw(number, before, entry.map(|entry| entry.1.as_slice()));
        }
    }

    fn saw(&self, number: usize, before: u64, value: Option<&[u8]>) {
        let count = value.map_or(0, count_of);
        let begun = self.known[number].begun.load(Ordering::SeqCst);
        assert!(count >= before, "key {number}: {count} after {before}");
        assert!(count <= begun, "key {number}: {count} from nowhere");
        self.shown(number, count);
    }

    /// The files as they are now, and what is known now: one step, nobody comes between.
    fn kill(&self) {
        let mut killed = self.killed.lock().unwrap();
        let image = self.dir.path().join(format!("image{}", killed.len()));
        copy(&self.dir.path().join("data"), &image);
        let load = |count: &AtomicU64| count.load(Ordering::SeqCst);
        let known = self.known.each_ref().map(|known| (load(&known.shown), load(&known.begun)));
        killed.push(Killed { image, known });
    }
}

/// What a kill left.
struct Killed {
    image: std::path::PathBuf,
    known: [(u64, u64); KEYS],
}

impl Killed {
    fn check(self) {
        let core = open(&self.image);
        for (number, (shown, begun)) in self.known.into_iter().enumerate() {
            let count = core.get(&key(number)).unwrap().as_deref().map_or(0, count_of);
            assert!(count >= shown, "key {number}: {count} after a kill, shown {shown}");
            assert!(count <= begun, "key {number}: {count} after a kill, begun {begun}");
        }
        drop(core);
        std::fs::remove_dir_all(&self.image).unwrap();
    }
}

fn open(dir: &Path) -> Core {
    let options = Options {
        value_segment_bytes: (8 << 20) + (16 << 10),
        wal_segment_bytes: 16 << 10,
        value_log_max_bytes: 64 << 20,
        ..Options::for_tests()
    };
    recovery::open(Arc::new(OsDisk::new(dir)), options).unwrap()
}

/// Copies a folder; zeros stay holes.
fn copy(from: &Path, to: &Path) {
    use std::os::unix::fs::FileExt as _;
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
            continue;
        }
        let content = std::fs::read(entry.path()).unwrap();
        let file = std::fs::File::create(target).unwrap();
        file.set_len(content.len() as u64).unwrap();
        for (number, piece) in content.chunks(4096).enumerate() {
            if piece.iter().any(|byte| *byte != 0) {
                file.write_all_at(piece, number as u64 * 4096).unwrap();
            }
        }
    }
}

type Job = fn(&World);

/// Runs `jobs` at once, each a thread, and checks what the kills among them left, and one at the
/// end.
fn run(name: &str, schedules: usize, prepare: Job, jobs: &'static [Job]) {
    explore(name, schedules, move || {
        let world = World::new();
        prepare(&world);
        let threads: Vec<_> = jobs
            .iter()
            .map(|job| {
                let world = Arc::clone(&world);
                thread::spawn(move || job(&world))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.scan();
        world.kill();
        let killed = std::mem::take(&mut *world.killed.lock().unwrap());
        killed.into_iter().for_each(Killed::check);
    });
}

fn two_old_keys(world: &World) {
    world.put(0);
    world.put(1);
    world.core.checkpoint().unwrap();
}

#[test]
fn explore_freezes_against_put_get_and_scan() {
    run(
        "engine",
        120,
        two_old_keys,
        &[
            |world| (0..2).for_each(|_| world.put(0)),
            |world| world.batch([1, 2]),
            |world| {
                world.get(0);
                world.get(2);
                world.scan();
            },
            |world| world.core.reorganize(None).unwrap(),
            |world| drop(world.core.checkpoint().unwrap()),
            World::kill,
        ],
    );
}

/// A write to a shard without changes, and a checkpoint: the shard is taken along, or its log is
/// kept. (The log before the change, or the dirty flag behind the log, loses the write.)
#[test]
fn explore_a_write_that_meets_a_checkpoint_of_a_clean_shard() {
    run(
        "clean shard",
        200,
        two_old_keys,
        &[
            |world| world.put(0),
            |world| world.put(3),
            |world| drop(world.core.checkpoint().unwrap()),
            World::kill,
        ],
    );
}

/// F13, F14: the last writes of a parent, and writers that have found it, over a split and the merge
/// of its children; the cut lies between the keys.
#[test]
fn explore_f13_f14_a_split_and_a_merge_against_writers() {
    run(
        "engine split",
        80,
        two_old_keys,
        &[
            |world| (0..2).for_each(|_| world.put(0)),
            |world| world.batch([1, 3]),
            |world| {
                world.scan();
                world.get(3);
            },
            |world| {
                let shard = world.core.shard_infos()[0].id;
                let [left, right, merged] = [101, 102, 103].map(ShardId);
                let split = SplitShard { operation: 1, shard, key: key(2), left, right, epoch: 50 };
                world.core.split_shard(&split).unwrap();
                let merge = MergeShards { operation: 2, left, right, merged, epoch: 60 };
                world.core.merge_shards(&merge).unwrap();
            },
            World::kill,
        ],
    );
}

/// A reader that shows what it found, and a kill right behind: F9, and the word that is loaded
/// before the value.
#[test]
fn explore_what_is_shown_survives_a_kill() {
    run(
        "shown",
        300,
        two_old_keys,
        &[
            |world| (0..3).for_each(|_| world.put(0)),
            |world| {
                for _ in 0..2 {
                    world.get(0);
                    world.kill();
                }
            },
        ],
    );
}
