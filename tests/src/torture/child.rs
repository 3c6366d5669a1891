//! The process that is killed: an engine on real files, writers, readers, scanners and jobs.
//!
//! Invariants: before anybody writes, every key is checked against the ledger; from then on every
//! answer is checked, and every number goes to the ledger in the order that the ledger asks for; a
//! violation is a line `violation: ...` on standard output, after which the process goes on.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use vmemkv_engine::{Condition, Engine, ErrorKind, KeyRange, Lsn, Operation, ScanOptions};

use super::checker::{check, check_order, check_unit};
use super::keys::{Keys, Kind, Unit, WRITERS};
use super::ledger::{Allowed, Ledger};
use super::rounds;

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
}

/// What the threads share.
struct Work<'a> {
    engine: &'a Engine,
    keys: &'a Keys,
    ledger: &'a Ledger,
    by_name: HashMap<&'a [u8], usize>,
    operations: AtomicU64,
    stop: AtomicBool,
    plant: bool,
    failed: Mutex<Option<String>>,
}

/// Runs until it is killed; with `check_only` until everything has been checked.
pub fn run(orders: &Orders) -> Result<()> {
    let keys = Keys::new(orders.seed);
    let ledger = Ledger::open(&orders.ledger, &keys)?;
    let mut random = StdRng::seed_from_u64(orders.seed.wrapping_mul(31) + orders.round);
    let options = rounds::options(&mut random);
    let engine = Engine::open(&orders.dir, options).context("open the engine")?;
    let work = Work {
        engine: &engine,
        keys: &keys,
        ledger: &ledger,
        by_name: (0..keys.count()).map(|key| (keys.name(key), key)).collect(),
        operations: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        plant: orders.plant,
        failed: Mutex::default(),
    };
    work.check_all()?;
    println!("ready");
    if orders.check_only {
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
fn violation(what: &str) {
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

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
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

    fn count(&self) -> Result<()> {
        while !self.is_stopped() {
            std::thread::sleep(Duration::from_millis(50));
            self.ledger.count(self.operations.swap(0, Ordering::Relaxed))?;
        }
        Ok(())
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

    fn saw(&self, key: usize, least: u64, value: Option<&[u8]>, how: &str) -> Result<()> {
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

/// One writer: its units, and which of them wait for the log.
struct Writer<'a> {
    work: &'a Work<'a>,
    random: StdRng,
    waiting: VecDeque<(usize, u64, Lsn)>,
}

impl<'a> Writer<'a> {
    fn new(work: &'a Work<'a>, random: StdRng) -> Self {
        Self { work, random, waiting: VecDeque::new() }
    }

    fn run(&mut self, writer: usize) -> Result<()> {
        let units = &self.work.keys.units[writer];
        let depth = self.random.random_range(1..12);
        while !self.work.is_stopped() {
            let number = self.random.random_range(0..units.len());
            if self.waiting.iter().any(|waiting| waiting.0 == number) {
                continue;
            }
            let unit = &units[number];
            let n = unit.keys.iter().map(|key| self.work.ledger.attempted(*key)).max();
            let n = n.unwrap_or(0) + 1;
            for key in &unit.keys {
                self.work.ledger.attempt(*key, n)?;
            }
            let skip = self.work.plant && self.random.random_bool(0.01);
            let written = if skip { Ok(Lsn(0)) } else { self.write(unit, n) };
            match written {
                Ok(lsn) => self.waiting.push_back((number, n, lsn)),
                Err(error) if is_full(&error) => {
                    // Nothing was changed. Reads and jobs go on meanwhile.
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
            self.work.operations.fetch_add(1, Ordering::Relaxed);
            while self.waiting.len() >= depth {
                self.acknowledge(units)?;
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, units: &[Unit]) -> Result<()> {
        let Some((number, n, lsn)) = self.waiting.pop_front() else { return Ok(()) };
        self.work.engine.wait_durable(lsn)?;
        for key in &units[number].keys {
            self.work.ledger.acknowledge(*key, n)?;
        }
        // Its own write, at once.
        let key = units[number].keys[self.random.random_range(0..units[number].keys.len())];
        let value = self.work.engine.get(self.work.keys.name(key))?;
        self.work.saw(key, n, value.as_deref(), "the writer's own get")
    }

    /// Makes write `n` of a unit.
    fn write(&mut self, unit: &Unit, n: u64) -> Result<Lsn> {
        let (keys, engine) = (self.work.keys, self.work.engine);
        let operation = |key: &usize| {
            let name = keys.name(*key).to_vec();
            match keys.written(*key, n) {
                Some(value) => Operation::Put { key: name, value },
                None => Operation::Delete { key: name },
            }
        };
        match unit.kind {
            Kind::Single => self.write_one(unit.keys[0], n),
            Kind::Range if keys.written(unit.keys[0], n).is_none() => {
                let (start, end) = keys.range_of(unit.keys[0]);
                let mut range = KeyRange::new(start, end);
                loop {
                    let deleted = engine.delete_range(&range, 10)?;
                    if deleted.done {
                        return Ok(deleted.lsn);
                    }
                    range.start = deleted.covered_to;
                }
            }
            _ => {
                let operations: Vec<_> = unit.keys.iter().map(operation).collect();
                Ok(engine.write_batch(&operations)?)
            }
        }
    }

    /// With the condition that must hold, now and then: the writer knows what is there.
    fn write_one(&mut self, key: usize, n: u64) -> Result<Lsn> {
        let (keys, engine) = (self.work.keys, self.work.engine);
        // Known as the only writer, whose last write of this key was acknowledged or found.
        let there = keys.written(key, self.work.ledger.known(key));
        let condition = match (self.random.random_range(0..6), &there) {
            (0, None) => Condition::IfAbsent,
            (0, Some(_)) => Condition::IfPresent,
            (1, Some(value)) => Condition::IfValueEquals(value.clone()),
            _ => Condition::None,
        };
        let name = keys.name(key);
        let written = match keys.written(key, n) {
            Some(value) => engine.put(name, &value, &condition)?,
            None => engine.delete(name, &condition)?,
        };
        if !written.applied || written.existed != there.is_some() {
            let name = name.escape_ascii();
            let (applied, existed) = (written.applied, written.existed);
            violation(&format!(
                "write {n} of key \"{name}\" with {condition:.40?}: applied {applied}, existed {existed}"
            ));
        }
        Ok(written.lsn)
    }
}

fn is_full(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<vmemkv_engine::Error>().map(vmemkv_engine::Error::kind);
    matches!(kind, Some(ErrorKind::DiskFull | ErrorKind::MemoryFull))
}
