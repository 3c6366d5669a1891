//! The process that is killed: an engine on real files, writers, readers, scanners and jobs.
//!
//! Invariants: before anybody writes, every key is checked against the ledger; from then on every
//! answer is checked, and every number goes to the ledger in the order that the ledger asks for; a
//! violation is a line `violation: ...` on standard output, after which the process goes on.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use vmemkv_engine::{Engine, KeyRange, ScanOptions};

use super::checker::{check, check_order, check_unit};
use super::follower::{FOLLOWERS, Follower};
use super::keys::{Keys, WRITERS};
use super::ledger::{Allowed, Ledger};
use super::rounds;
use super::skips::{Skip, Skips};
use super::writer::Writer;

const READERS: u64 = 3;
const SCANNERS: u64 = 2;

/// What a child is told.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The data directory.
    pub dir: PathBuf,
    /// The ledger's file.
    pub ledger: PathBuf,
    /// The run's seed: the keys.
    pub seed: u64,
    /// The round: options, and what the threads do.
    pub round: u64,
    /// Open, check, close.
    pub check_only: bool,
    /// Acknowledge writes that were not made: the checker must see it.
    pub plant: bool,
    /// Lose changes between the feed and its follower: the checker must see it.
    pub plant_feed: bool,
}

/// What the threads share.
pub(super) struct Work<'a> {
    pub(super) engine: &'a Engine,
    pub(super) keys: &'a Keys,
    pub(super) ledger: &'a Ledger,
    pub(super) skips: &'a Skips,
    pub(super) by_name: BTreeMap<&'a [u8], usize>,
    pub(super) operations: AtomicU64,
    /// Changes that followers were shown, and how often one had to begin anew.
    pub(super) changes: AtomicU64,
    pub(super) resyncs: AtomicU64,
    stop: AtomicBool,
    pub(super) plant: bool,
    failed: Mutex<Option<String>>,
}

/// Runs until it is killed; with `check_only` until everything has been checked.
pub fn run(orders: &Orders) -> Result<()> {
    let keys = Keys::new(orders.seed);
    let ledger = Ledger::open(&orders.ledger, &keys)?;
    let mut random = StdRng::seed_from_u64(orders.seed.wrapping_mul(31) + orders.round);
    let options = rounds::options(&mut random);
    let skips = Skips::open(&orders.ledger.with_file_name("skips"))?;
    let engine = Engine::open(&orders.dir, options).context("open the engine")?;
    let work = Work {
        engine: &engine,
        keys: &keys,
        ledger: &ledger,
        skips: &skips,
        by_name: (0..keys.count()).map(|key| (keys.name(key), key)).collect(),
        operations: AtomicU64::new(0),
        changes: AtomicU64::new(0),
        resyncs: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        plant: orders.plant,
        failed: Mutex::default(),
    };
    work.check_all()?;
    let mut followers = Vec::new();
    for number in 0..FOLLOWERS {
        let plant = orders.plant_feed.then(|| StdRng::seed_from_u64(random.random()));
        let path = orders.ledger.with_file_name(format!("follower-{number}"));
        let mut follower = Follower::open(&work, path, plant)?;
        follower.catch_up()?;
        followers.push(follower);
    }
    work.count_now()?;
    println!("ready");
    if orders.check_only {
        drop(followers);
        return Ok(engine.close()?);
    }
    std::thread::scope(|scope| {
        let work = &work;
        for writer in 0..WRITERS {
            let random = StdRng::seed_from_u64(random.random());
            scope.spawn(move || work.guard("a writer", || Writer::new(work, random).run(writer)));
        }
        for _ in 0..READERS {
            let random = StdRng::seed_from_u64(random.random());
            scope.spawn(move || work.guard("a reader", || work.read(random)));
        }
        for _ in 0..SCANNERS {
            let random = StdRng::seed_from_u64(random.random());
            scope.spawn(move || work.guard("a scanner", || work.scan(random)));
        }
        for (number, follower) in followers.into_iter().enumerate() {
            let random = StdRng::seed_from_u64(random.random());
            scope.spawn(move || {
                work.guard("a follower", || follower.run(random, number > 0));
            });
        }
        let jobs = StdRng::seed_from_u64(random.random());
        scope.spawn(move || {
            work.guard("a job", || rounds::jobs(work.engine, jobs, &work.stop));
        });
        scope.spawn(move || work.guard("the counter", || work.count()));
    });
    let failed = work.failed.lock().map_or(None, |failed| failed.clone());
    match failed {
        Some(what) => bail!(what),
        None => Ok(()),
    }
}

/// One line, and the parent sees it at once.
pub(super) fn violation(what: &str) {
    println!("violation: {what}");
}

impl Work<'_> {
    /// An error of one thread ends them all.
    fn guard(&self, who: &str, body: impl FnOnce() -> Result<()>) {
        if let Err(error) = body() {
            self.stop.store(true, Ordering::Relaxed);
            violation(&format!("{who} failed: {error:#}"));
            if let Ok(mut failed) = self.failed.lock() {
                failed.get_or_insert(format!("{who}: {error:#}"));
            }
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sleeps, but no longer than the work goes on.
    pub(super) fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_stopped() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20).min(time));
        }
    }

    /// The keys of a range.
    pub(super) fn keys_of(&self, range: &KeyRange) -> impl Iterator<Item = usize> {
        let start = Bound::Included(&range.start[..]);
        let end = Bound::Excluded(&range.end[..]);
        let end = if range.end.is_empty() { Bound::Unbounded } else { end };
        self.by_name.range::<[u8], _>((start, end)).map(|(_, key)| *key)
    }

    /// What recovery left: every key by get, all of them by a scan, every unit, every record.
    fn check_all(&self) -> Result<()> {
        let mut found = vec![0; self.keys.count()];
        for (key, found) in found.iter_mut().enumerate() {
            let allowed = self.ledger.allowed(key);
            let value = self.engine.get(self.keys.name(key))?;
            match check(self.keys, key, allowed, value.as_deref()) {
                Ok(n) => *found = n,
                Err(what) => violation(&format!("after a restart {what}")),
            }
        }
        for unit in self.keys.units.iter().flatten() {
            let of_unit: Vec<u64> = unit.keys.iter().map(|key| found[*key]).collect();
            if let Err(what) = check_unit(self.keys, unit, &of_unit) {
                violation(&format!("after a restart {what}"));
            }
        }
        for (key, n) in found.into_iter().enumerate() {
            self.note_lost(key, n)?;
            self.ledger.settle(key, n)?;
        }
        let bounds: Vec<u64> = (0..self.keys.count()).map(|key| self.ledger.known(key)).collect();
        self.scan_once(&bounds, &KeyRange::all(), false, 1 << 20)?;
        self.scan_once(&bounds, &KeyRange::all(), true, 1 << 16)?;
        for problem in self.engine.verify(&|| false)?.problems {
            violation(&format!("verify after a restart: {problem}"));
        }
        Ok(())
    }

    /// What became of the write that was being made at the kill: the last one, as a key is not
    /// written again before that is known.
    fn note_lost(&self, key: usize, found: u64) -> Result<()> {
        let last = self.ledger.attempted(key);
        if last <= found {
            return Ok(());
        }
        let same = self.keys.written(key, last) == self.keys.written(key, found);
        self.skips.note(key, last, if same { Skip::Perhaps } else { Skip::Never })
    }

    fn count(&self) -> Result<()> {
        while !self.is_stopped() {
            std::thread::sleep(Duration::from_millis(50));
            self.count_now()?;
        }
        Ok(())
    }

    fn count_now(&self) -> Result<()> {
        let new = [&self.operations, &self.changes, &self.resyncs];
        self.ledger.count(new.map(|count| count.swap(0, Ordering::Relaxed))).map(drop)
    }

    /// Point reads of any key.
    fn read(&self, mut random: StdRng) -> Result<()> {
        while !self.is_stopped() {
            let key = random.random_range(0..self.keys.count());
            let least = self.ledger.known(key);
            let value = self.engine.get(self.keys.name(key))?;
            self.saw(key, least, value.as_deref(), "a get")?;
            self.operations.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn saw(
        &self,
        key: usize,
        least: u64,
        value: Option<&[u8]>,
        how: &str,
    ) -> Result<()> {
        let allowed = Allowed { least, most: self.ledger.attempted(key) };
        match check(self.keys, key, allowed, value) {
            Ok(n) => self.ledger.show(key, n),
            Err(what) => {
                violation(&format!("{how}: {what}"));
                Ok(())
            }
        }
    }

    /// Scans of everything or a part, in both directions, by chunks of any size.
    fn scan(&self, mut random: StdRng) -> Result<()> {
        while !self.is_stopped() {
            let bounds: Vec<u64> =
                (0..self.keys.count()).map(|key| self.ledger.known(key)).collect();
            let mut name = || self.keys.name(random.random_range(0..self.keys.count())).to_vec();
            let (a, b) = (name(), name());
            let range = if random.random_bool(0.3) {
                KeyRange::all()
            } else {
                KeyRange::new(a.clone().min(b.clone()), a.max(b))
            };
            let max_bytes = [2000, 50_000, 1 << 22][random.random_range(0..3)];
            self.scan_once(&bounds, &range, random.random_bool(0.5), max_bytes)?;
        }
        Ok(())
    }

    /// Every key of the range once, in order, none missed: `bounds` were known before.
    fn scan_once(
        &self,
        bounds: &[u64],
        range: &KeyRange,
        reverse: bool,
        max_bytes: usize,
    ) -> Result<()> {
        let mut rest = ScanOptions { range: range.clone(), reverse, max_bytes, ..<_>::default() };
        let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        loop {
            let chunk = self.engine.scan(&rest)?;
            self.operations.fetch_add(1, Ordering::Relaxed);
            found.extend(chunk.entries);
            if chunk.done {
                break;
            }
            let side = if reverse { &mut rest.range.end } else { &mut rest.range.start };
            *side = chunk.covered_to;
        }
        let names = found.iter().map(|entry| entry.0.as_slice());
        let known = |name: &[u8]| self.by_name.contains_key(name) && range.contains(name);
        if let Err(what) = check_order(names, reverse, known) {
            violation(&what);
            return Ok(());
        }
        let found: HashMap<&[u8], &[u8]> =
            found.iter().map(|entry| (&entry.0[..], &entry.1[..])).collect();
        for (key, least) in bounds.iter().enumerate() {
            let name = self.keys.name(key);
            if range.contains(name) {
                self.saw(key, *least, found.get(name).copied(), "a scan")?;
            }
        }
        Ok(())
    }
}
