//! A power cut at every sync of a small workload, and at every sync of the recoveries from it.
//!
//! Under test: what was acknowledged is there; what is there is a prefix of what was written;
//! `verify` is clean; the engine takes new writes and those survive a second cut. The workload has
//! puts, updates in place, deletes, splits and merges of shards, batches, range deletes, reorganizes,
//! checkpoints, segment rolls of the log, defragments, rewrites in key order, and a reopen in the middle. `VMEMKV_SEED`
//! runs one again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use support::{
    Change, History, Model, contents, cut_to, killed_to, put_durable, seed, small, verify, watchdog,
};
use vmemkv_engine::io::testing::{CrashDisk, Keep, Operation as Io, PowerCut};
use vmemkv_engine::{
    Condition, Continue, DefragmentOptions, Engine, KeyRange, Lsn, MergeShards, Operation, Options,
    ShardId, SplitShard,
};

/// A workload on a crash disk, step by step.
struct Sweep {
    random: StdRng,
    disk: Arc<CrashDisk>,
    engine: Option<Engine>,
    history: History,
    options: Options,
    /// Where shards begin, with the crash points at which a change to that began and had returned.
    maps: Vec<(usize, usize, Vec<Vec<u8>>)>,
}

impl Sweep {
    fn new(seed: u64, dir: &Path) -> Self {
        let disk = CrashDisk::new(dir).unwrap();
        // Some with values that are written once, some without.
        let write_once_bytes = [600, usize::MAX][(seed % 2) as usize];
        let options = Options { write_once_bytes, ..small() };
        let engine = Some(Engine::open_on(disk.clone(), options.clone()).unwrap());
        let random = StdRng::seed_from_u64(seed);
        Self {
            random,
            disk,
            engine,
            history: History::default(),
            options,
            maps: vec![(0, 0, vec![Vec::new()])],
        }
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    fn key(&mut self) -> Vec<u8> {
        format!("tenant/{:02}", self.random.random_range(0..40)).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        let len = [3, 8, 40, 100, 100, 600, 6000][self.random.random_range(0..7)];
        let byte: u8 = self.random.random();
        let mut value = vec![byte; len];
        value[0] = self.random.random();
        value
    }

    fn step(&mut self) {
        let begun = self.disk.crash_points();
        let (lsn, change) = match self.random.random_range(0..20) {
            0..11 => {
                let (key, value) = (self.key(), self.value());
                let lsn = self.engine().put(&key, &value, &Condition::None).unwrap().lsn;
                (lsn, vec![(key, Some(value))])
            }
            11..15 => {
                let key = self.key();
                let written = self.engine().delete(&key, &Condition::None).unwrap();
                (written.lsn, if written.existed { vec![(key, None)] } else { Vec::new() })
            }
            15..19 => self.batch(),
            _ => self.delete_range(),
        };
        if !change.is_empty() {
            self.history.applied(lsn, begun, change);
        }
        if self.random.random_bool(0.3) {
            self.engine().wait_durable(lsn).unwrap();
            self.settle();
        }
    }

    fn batch(&mut self) -> (Lsn, Change) {
        let mut change = Model::new();
        for _ in 0..self.random.random_range(2..6) {
            change.insert(self.key(), self.value());
        }
        let put = |(key, value): (&Vec<u8>, &Vec<u8>)| Operation::Put {
            key: key.clone(),
            value: value.clone(),
        };
        let operations: Vec<_> = change.iter().map(put).collect();
        let lsn = self.engine().write_batch(&operations).unwrap();
        (lsn, change.into_iter().map(|(key, value)| (key, Some(value))).collect())
    }

    fn delete_range(&mut self) -> (Lsn, Change) {
        let start = self.key();
        // To the end of the ten that the key belongs to.
        let range = KeyRange::new(start.clone(), [&start[..8], b"~"].concat());
        let gone = self.history.model.keys().filter(|key| range.contains(key));
        let change: Change = gone.map(|key| (key.clone(), None)).collect();
        (self.engine().delete_range(&range, 1000).unwrap().lsn, change)
    }

    /// Splits a shard, or merges two. Durable when it returns.
    fn change_shards(&mut self) {
        let begun = self.disk.crash_points();
        let shards = self.engine().shards();
        let id = shards.iter().map(|shard| shard.id.0).max().unwrap() + 1;
        let epoch = shards.iter().map(|shard| shard.epoch).max().unwrap() + 1;
        let chosen = self.random.random_range(0..shards.len());
        if let ([left, right, ..], true) = (&shards[chosen..], shards.len() > 2) {
            let (left, right, merged) = (left.id, right.id, ShardId(id));
            let merge = MergeShards { operation: id, left, right, merged, epoch };
            self.engine().merge_shards(&merge).unwrap();
        } else {
            let key = self.key();
            let shard = shards.iter().find(|shard| shard.range.contains(&key)).unwrap();
            if shard.range.start == key {
                return;
            }
            let (shard, left, right) = (shard.id, ShardId(id), ShardId(id + 1));
            let split = SplitShard { operation: id, shard, key, left, right, epoch };
            self.engine().split_shard(&split).unwrap();
        }
        let starts = self.engine().shards().into_iter().map(|shard| shard.range.start).collect();
        self.maps.push((begun, self.disk.crash_points(), starts));
        self.settle();
    }

    /// Fails unless the shards are what a cut at `point` may leave.
    fn check_shards(&self, engine: &Engine, point: usize, at: &str) {
        let found: Vec<_> = engine.shards().into_iter().map(|shard| shard.range.start).collect();
        let least = self.maps.iter().rposition(|map| map.1 <= point).unwrap();
        let mut possible = self.maps[least..].iter().take_while(|map| map.0 <= point);
        assert!(possible.any(|map| map.2 == found), "{at}: shards at {found:?}");
    }

    fn settle(&mut self) {
        let durable = self.engine().durable_lsn();
        self.history.acknowledged(durable, self.disk.crash_points());
    }

    fn reopen(&mut self) {
        let engine = self.engine.take().unwrap();
        // Dropping writes the log out.
        drop(engine);
        self.history.acknowledged(Lsn(u64::MAX), self.disk.crash_points());
        self.engine = Some(Engine::open_on(self.disk.clone(), self.options.clone()).unwrap());
    }

    /// A whole cycle: what is live moves out of full segments, which a checkpoint then frees.
    fn defragment(&mut self) {
        for filler in [b"tenant/f1", b"tenant/f2"] {
            // Fills up the open segment; dies, so that the rest of it is to be moved.
            let begun = self.disk.crash_points();
            let value = vec![begun as u8; 8 << 20];
            let lsn = self.engine().put(filler, &value, &Condition::None).unwrap().lsn;
            self.history.applied(lsn, begun, vec![(filler.to_vec(), Some(value))]);
            let begun = self.disk.crash_points();
            let lsn = self.engine().delete(filler, &Condition::None).unwrap().lsn;
            self.history.applied(lsn, begun, vec![(filler.to_vec(), None)]);
        }
        self.engine().checkpoint().unwrap();
        let options = DefragmentOptions { min_dead_ratio: 0.001, max_bytes: 0 };
        let report = self.engine().defragment(&options, &|_| Continue::Yes).unwrap();
        assert!(report.records_moved > 0 && report.segments > 0, "{report:?}");
        for _ in 0..5 {
            self.step();
        }
        self.engine().checkpoint().unwrap();
        assert!(self.engine().stats().counters.value_segments_freed > 0);
        assert_eq!(self.engine().recount_live(), Vec::<String>::new());
    }

    /// Records go into key order, while the index goes on to change.
    fn put_in_order(&mut self) {
        for number in (0..10).rev() {
            let begun = self.disk.crash_points();
            let (key, value) = (format!("tenant/{number:02}").into_bytes(), vec![number; 600]);
            let lsn = self.engine().put(&key, &value, &Condition::None).unwrap().lsn;
            self.history.applied(lsn, begun, vec![(key, Some(value))]);
        }
        // The open segment is left alone: this opens another one. It lives, for dead space is bounded.
        let begun = self.disk.crash_points();
        let (filler, value) = (b"tenant/f3".to_vec(), vec![3; 8 << 20]);
        let lsn = self.engine().put(&filler, &value, &Condition::None).unwrap().lsn;
        self.history.applied(lsn, begun, vec![(filler, Some(value))]);
        self.engine().checkpoint().unwrap();
        let options = DefragmentOptions::default();
        let report = self.engine().put_in_order(&options, &|_| Continue::Yes).unwrap();
        assert!(report.records_moved > 0 && !report.short_of_space, "{report:?}");
        let begun = self.disk.crash_points();
        let lsn = self.engine().delete(b"tenant/f3", &Condition::None).unwrap().lsn;
        self.history.applied(lsn, begun, vec![(b"tenant/f3".to_vec(), None)]);
        for _ in 0..5 {
            self.step();
        }
        self.engine().checkpoint().unwrap();
        assert_eq!(self.engine().recount_live(), Vec::<String>::new());
    }

    fn run(&mut self, phases: usize) {
        for phase in 0..phases {
            for step in 0..25 {
                self.step();
                if step % 8 == 7 {
                    self.change_shards();
                }
            }
            match phase % 5 {
                0 => self.engine().reorganize(None).unwrap(),
                1 => self.engine().checkpoint().map(drop).unwrap(),
                3 => self.defragment(),
                4 => self.put_in_order(),
                _ => self.reopen(),
            }
            self.settle();
        }
        assert_eq!(contents(self.engine()), self.history.model);
    }
}

/// Opens an image and checks it; the engine, and how many writes are in it.
fn check(sweep: &Sweep, image: &Arc<CrashDisk>, point: usize, at: &str) -> (Engine, usize) {
    let engine = Engine::open_on(image.clone(), sweep.options.clone());
    let engine = engine.unwrap_or_else(|error| panic!("{at}: open: {error:?}"));
    let count = sweep.history.check(&contents(&engine), point, at);
    sweep.check_shards(&engine, point, at);
    verify(&engine, at);
    (engine, count)
}

/// New writes work, by log and by checkpoint, and survive a second cut.
fn goes_on(sweep: &Sweep, engine: Engine, image: &CrashDisk, next: &Path, point: usize, at: &str) {
    put_durable(&engine, b"after/1", b"short");
    if point.is_multiple_of(2) {
        engine.checkpoint().unwrap();
    }
    put_durable(&engine, b"after/2", &[7; 300]);
    let expected = contents(&engine);
    let disk = cut_to(image, None, next, &PowerCut::strict());
    drop(engine);
    let engine = Engine::open_on(disk, sweep.options.clone());
    let engine = engine.unwrap_or_else(|error| panic!("{at}: second open: {error:?}"));
    assert!(contents(&engine) == expected, "{at}: second cut");
    verify(&engine, at);
}

struct Folders {
    folder: tempfile::TempDir,
    next: usize,
}

impl Folders {
    fn next(&mut self) -> PathBuf {
        // Images are large: only the last few are kept.
        if self.next > 4 {
            let _ = std::fs::remove_dir_all(self.folder.path().join((self.next - 4).to_string()));
        }
        self.next += 1;
        self.folder.path().join(self.next.to_string())
    }
}

fn folders() -> Folders {
    Folders { folder: support::fast_dir(), next: 0 }
}

#[test]
fn a_power_cut_at_every_sync() {
    let seed = seed("power cut at every sync");
    watchdog("power cut at every sync", 300, || {
        let mut images = folders();
        let base = support::fast_dir();
        let mut sweep = Sweep::new(seed, base.path());
        sweep.run(6);
        let points = sweep.disk.crash_points();
        assert!(points > 60, "the workload syncs ({points} times)");
        let wal = sweep.engine().stats().wal;
        let files = wal.recycled_segments + wal.kept_segments + wal.segments;
        assert!(files > 2, "the log rolls: {wal:?}");
        for point in 0..=points {
            let cuts = [
                PowerCut::strict(),
                PowerCut::random(seed.wrapping_add(point as u64)),
                PowerCut { seed, keep: Keep::Everything, unit: 4096 },
            ];
            // Of the two that keep something, one at a time.
            for cut in [&cuts[0], &cuts[1 + usize::from(point % 4 == 3)]] {
                let at = format!("seed {seed} point {point} of {points} {cut:?}");
                let dir = images.next();
                let image = cut_to(&sweep.disk, Some(point), &dir, cut);
                let (engine, _) = check(&sweep, &image, point, &at);
                if point % 3 == 0 {
                    goes_on(&sweep, engine, &image, &images.next(), point, &at);
                }
            }
        }
    });
}

#[test]
fn a_power_cut_at_every_sync_of_a_recovery() {
    let seed = seed("power cut in recovery");
    watchdog("power cut in recovery", 300, || {
        let mut images = folders();
        let base = support::fast_dir();
        let mut sweep = Sweep::new(seed, base.path());
        sweep.run(4);
        // A tail that is not synced makes the recovery rewrite it.
        for _ in 0..5 {
            sweep.step();
        }
        let points = sweep.disk.crash_points();
        let mut random = StdRng::seed_from_u64(seed);
        for round in 0..8 {
            let point = random.random_range(points / 4..=points);
            let cut = PowerCut::random(random.random());
            let at = format!("seed {seed} point {point} {cut:?}");
            let first = folders();
            let dir = first.folder.path().join("image");
            let image = cut_to(&sweep.disk, Some(point), &dir, &cut);
            let (engine, served) = check(&sweep, &image, point, &at);
            // A crash may come right after the first read: what it showed must stay.
            let during = image.crash_points();
            drop(engine);
            for inner in 0..=during {
                let cut = match (inner + round) % 3 {
                    0 => PowerCut::random(random.random()),
                    _ => PowerCut::strict(),
                };
                let at = format!("{at}, in recovery at {inner} of {during} {cut:?}");
                let dir = images.next();
                let again = cut_to(&image, Some(inner), &dir, &cut);
                let (engine, count) = check(&sweep, &again, point, &at);
                assert!(inner < during || count == served, "{at}: served {served}, now {count}");
                if inner % 4 == 0 {
                    goes_on(&sweep, engine, &again, &images.next(), inner, &at);
                }
            }
        }
    });
}

/// The process dies with log records written but not synced; the recovery serves them; only then
/// the power goes.
#[test]
fn kill_then_power_cut() {
    let seed = seed("kill then power cut");
    watchdog("kill then power cut", 120, || {
        let mut images = folders();
        for round in 0..6 {
            let base = support::fast_dir();
            let crash = CrashDisk::new(base.path()).unwrap();
            let disk = support::GateDisk::new(crash.clone());
            let engine = Engine::open_on(disk.clone(), small()).unwrap();
            let mut random = StdRng::seed_from_u64(seed + round);
            for i in 0..random.random_range(1..40) {
                put_durable(&engine, format!("k{i}").as_bytes(), &vec![1; 50 + i]);
            }
            if round % 2 == 0 {
                engine.checkpoint().unwrap();
            }
            let gate = disk.close(Io::Sync, "wal/");
            for i in 0..random.random_range(1..9) {
                support::put(&engine, format!("k{i}").as_bytes(), b"new");
                support::put(&engine, format!("n{i}").as_bytes(), &[3; 200]);
            }
            gate.reached();
            let killed = killed_to(&crash, &images.next(), seed + round);
            gate.open();
            let served = {
                let engine = Engine::open_on(killed.clone(), small()).unwrap();
                let served = contents(&engine);
                assert!(served.values().any(|value| value == b"new"), "the log was written");
                // Now, while it serves: nothing is flushed by closing.
                let dir = images.next();
                (served, cut_to(&killed, None, &dir, &PowerCut::strict()))
            };
            let (served, disk) = served;
            let engine = Engine::open_on(disk, small()).unwrap();
            assert!(contents(&engine) == served, "seed {seed} round {round}: taken back");
            verify(&engine, "after both");
        }
    });
}
