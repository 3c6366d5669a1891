//! Writers, readers, scans, reorganize, checkpoint, defragment, splits and merges of shards at once,
//! with power cuts in the middle.
//!
//! Under test: a read never shows what a crash could take back, a value is never torn, a key never
//! goes back, and what was acknowledged or read is there after the cut. Each key counts: odd
//! numbers are puts of that number, even numbers are deletes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/scribble.rs"]
mod scribble;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use vmemkv_engine::io::testing::{CrashDisk, PowerCut};
use vmemkv_engine::{
    Condition, Continue, DefragmentOptions, Engine, MergeShards, Operation, Options, ScanOptions,
    ShardId, SplitShard,
};

const WRITERS: usize = 3;
const KEYS: usize = 120;

/// What is known of one key.
#[derive(Default)]
struct Known {
    /// The last number that a writer began to write.
    begun: AtomicU64,
    /// The last number that was acknowledged, or shown to a reader.
    shown: AtomicU64,
}

fn key(number: usize) -> Vec<u8> {
    format!("tenant/{number:05}").into_bytes()
}

/// A value that says its number all over, of a size that depends on the number.
fn value(count: u64) -> Vec<u8> {
    let words = [1, 1, 3, 20, 130, 700][(count / 2 % 6) as usize];
    count.to_le_bytes().repeat(words)
}

fn count_of(value: &[u8], context: &str) -> u64 {
    let count = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert!(value == self::value(count), "{context}: torn value, begins with {count}");
    count
}

/// Checks what a reader saw of a key against what was known before it began.
fn saw(known: &Known, before: u64, value: Option<&[u8]>, context: &str) {
    match value {
        Some(value) => {
            let count = count_of(value, context);
            assert!(count >= before, "{context}: {count} after {before}");
            assert!(count <= known.begun.load(Ordering::SeqCst), "{context}: {count} from nowhere");
            known.shown.fetch_max(count, Ordering::SeqCst);
        }
        None => {
            // Missing: some delete at or after `before` must have begun.
            let begun = known.begun.load(Ordering::SeqCst);
            let deleted = before.is_multiple_of(2) || begun > before;
            assert!(deleted, "{context}: missing although {before} was shown");
        }
    }
}

struct Round<'a> {
    engine: &'a Engine,
    known: &'a [Known],
    stop: &'a AtomicBool,
    context: &'a str,
}

impl Round<'_> {
    fn write(&self, writer: usize, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        while !self.stop.load(Ordering::Relaxed) {
            let own = |number: usize| number / WRITERS * WRITERS + writer;
            let mut numbers = vec![own(random.random_range(0..KEYS))];
            if random.random_bool(0.2) {
                numbers.extend((0..3).map(|_| own(random.random_range(0..KEYS))));
                numbers.sort_unstable();
                numbers.dedup();
            }
            let counts: Vec<u64> = numbers
                .iter()
                .map(|number| self.known[*number].begun.fetch_add(1, Ordering::SeqCst) + 1)
                .collect();
            let operations: Vec<Operation> = numbers
                .iter()
                .zip(&counts)
                .map(|(number, count)| match count % 2 {
                    0 => Operation::Delete { key: key(*number) },
                    _ => Operation::Put { key: key(*number), value: value(*count) },
                })
                .collect();
            let lsn = match &operations[..] {
                [Operation::Put { key, value }] => {
                    self.engine.put(key, value, &Condition::None).unwrap().lsn
                }
                [Operation::Delete { key }] => {
                    self.engine.delete(key, &Condition::None).unwrap().lsn
                }
                _ => self.engine.write_batch(&operations).unwrap(),
            };
            if random.random_bool(0.8) {
                self.engine.wait_durable(lsn).unwrap();
                for (number, count) in numbers.iter().zip(&counts) {
                    self.known[*number].shown.fetch_max(*count, Ordering::SeqCst);
                }
            }
        }
    }

    fn read(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        while !self.stop.load(Ordering::Relaxed) {
            let number = random.random_range(0..KEYS);
            if random.random_bool(0.9) {
                let before = self.known[number].shown.load(Ordering::SeqCst);
                let value = self.engine.get(&key(number)).unwrap();
                saw(&self.known[number], before, value.as_deref(), self.context);
            } else {
                self.scan(random.random_bool(0.5));
            }
        }
    }

    /// Splits and merges; nobody else changes shards.
    fn change_shards(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        while !self.stop.load(Ordering::Relaxed) {
            let shards = self.engine.shards();
            let chosen = random.random_range(0..shards.len());
            let id = shards.iter().map(|shard| shard.id.0).max().unwrap() + 1;
            let epoch = shards.iter().map(|shard| shard.epoch).max().unwrap() + 1;
            if shards.len() > 6 || random.random_bool(0.4) {
                let [left, right, ..] = &shards[chosen..] else { continue };
                let (left, right, merged) = (left.id, right.id, ShardId(id));
                let merge = MergeShards { operation: 0, left, right, merged, epoch };
                self.engine.merge_shards(&merge).unwrap();
            } else {
                let key = key(random.random_range(0..KEYS));
                if key <= shards[chosen].range.start || !shards[chosen].range.contains(&key) {
                    continue;
                }
                let (shard, left, right) = (shards[chosen].id, ShardId(id), ShardId(id + 1));
                let split = SplitShard { operation: 0, shard, key, left, right, epoch };
                self.engine.split_shard(&split).unwrap();
            }
            // Some of what is new meets a checkpoint before its own merge.
            std::thread::sleep(Duration::from_micros(random.random_range(0..2000)));
        }
    }

    /// One chunk over everything: each key once, and none missed.
    fn scan(&self, reverse: bool) {
        let before: Vec<u64> =
            self.known.iter().map(|known| known.shown.load(Ordering::SeqCst)).collect();
        let options = ScanOptions { reverse, max_bytes: 1 << 30, ..ScanOptions::default() };
        let chunk = self.engine.scan(&options).unwrap();
        assert!(chunk.done);
        let mut found = chunk.entries;
        if reverse {
            found.reverse();
        }
        assert!(found.is_sorted_by(|a, b| a.0 < b.0), "{}: order", self.context);
        for (number, known) in self.known.iter().enumerate() {
            let at = found.binary_search_by(|entry| entry.0.cmp(&key(number))).ok();
            let value = at.map(|at| found[at].1.as_slice());
            saw(known, before[number], value, self.context);
        }
    }
}

fn run(seed: u64, options: &Options, rounds: usize) {
    let folder = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    let mut disk = CrashDisk::new(folder.path().join("0")).unwrap();
    let known: Vec<Known> = (0..KEYS).map(|_| Known::default()).collect();
    let (moved, ordered) = (&AtomicU64::new(0), &AtomicU64::new(0));
    for round in 0..rounds {
        let context = format!("seed {seed} round {round}");
        let engine = Engine::open_on(disk.clone(), options.clone()).unwrap();
        // What the cut left: at least what was shown, at most what was begun.
        for (number, known) in known.iter().enumerate() {
            let shown = known.shown.load(Ordering::SeqCst);
            let begun = known.begun.load(Ordering::SeqCst);
            let found = engine.get(&key(number)).unwrap();
            let count = match &found {
                Some(value) => count_of(value, &context),
                None if shown.is_multiple_of(2) => shown,
                None => shown + 1,
            };
            assert!(
                count >= shown && count <= begun,
                "{context}: key {number}: {count} after the cut, shown {shown}, begun {begun}"
            );
            known.begun.store(count, Ordering::SeqCst);
            known.shown.store(count, Ordering::SeqCst);
        }
        assert_eq!(engine.verify(&|| false).unwrap().problems, Vec::<String>::new(), "{context}");
        let stop = AtomicBool::new(false);
        let work = Round { engine: &engine, known: &known, stop: &stop, context: &context };
        let next = folder.path().join((round + 1).to_string());
        let mut shown_at_cut = Vec::new();
        let mut cut_disk = None;
        std::thread::scope(|scope| {
            let work = &work;
            for writer in 0..WRITERS {
                let seed = random.random();
                scope.spawn(move || work.write(writer, seed));
            }
            for _ in 0..2 {
                let seed = random.random();
                scope.spawn(move || work.read(seed));
            }
            let pause = random.random_range(0..3);
            scope.spawn(move || {
                while !work.stop.load(Ordering::Relaxed) {
                    work.engine.checkpoint().unwrap();
                    std::thread::sleep(Duration::from_millis(pause));
                }
            });
            scope.spawn(move || {
                while !work.stop.load(Ordering::Relaxed) {
                    work.engine.reorganize(None).unwrap();
                }
            });
            let seed = random.random();
            scope.spawn(move || work.change_shards(seed));
            scope.spawn(move || {
                let options = DefragmentOptions { min_dead_ratio: 0.001, max_bytes: 0 };
                while !work.stop.load(Ordering::Relaxed) {
                    // Fills up the open segment, so that it can be emptied.
                    let filler = vec![0xff; 6 << 20];
                    work.engine.put(b"zz/filler", &filler, &Condition::None).unwrap();
                    work.engine.delete(b"zz/filler", &Condition::None).unwrap();
                    let all = DefragmentOptions::default();
                    let report = work.engine.put_in_order(&all, &|_| Continue::Yes).unwrap();
                    assert_eq!(report.problems, Vec::<String>::new(), "{}", work.context);
                    ordered.fetch_add(report.records_moved, Ordering::Relaxed);
                    let report = work.engine.defragment(&options, &|_| Continue::Yes).unwrap();
                    assert_eq!(report.problems, Vec::<String>::new(), "{}", work.context);
                    moved.fetch_add(report.records_moved, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            std::thread::sleep(Duration::from_millis(random.random_range(5..150)));
            shown_at_cut = known.iter().map(|known| known.shown.load(Ordering::SeqCst)).collect();
            let cut = PowerCut::random(random.random());
            cut_disk = Some(scribble::cut_to(&disk, None, &next, &cut));
            stop.store(true, Ordering::Relaxed);
        });
        // What was shown after the cut does not count.
        for (known, shown) in known.iter().zip(&shown_at_cut) {
            known.shown.store(*shown, Ordering::SeqCst);
        }
        drop(engine);
        let old = std::mem::replace(&mut disk, cut_disk.unwrap());
        let _ = std::fs::remove_dir_all(vmemkv_engine::io::Disk::root(&*old));
        let _: Arc<CrashDisk> = old;
    }
    let moved = moved.load(Ordering::Relaxed);
    let ordered = ordered.load(Ordering::Relaxed);
    println!("defragment moved {moved} records, {ordered} were put in order");
    // Whether records were far enough from their order is up to the moment: sync_sweep makes sure of some.
    assert!(moved > 0, "there was something to do");
}

/// Value segments as small as may be, so that defragment has some to empty.
fn small() -> Options {
    Options { value_segment_bytes: (8 << 20) + (16 << 10), ..Options::for_tests() }
}

fn seed() -> u64 {
    let given = std::env::var("VMEMKV_CRASH_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64 & 0xffff_ffff)
    });
    println!("VMEMKV_CRASH_SEED={seed}");
    seed
}

#[test]
fn nothing_shown_is_lost_with_default_options() {
    run(seed(), &Options { write_once_bytes: usize::MAX, ..small() }, 40);
}

#[test]
fn nothing_shown_is_lost_without_inline_values_and_written_once() {
    let options = Options { write_once_bytes: 100, inline: false, bloom: false, ..small() };
    run(seed(), &options, 40);
}
