//! The workloads as operations on a store, as short as can be: this is the timed code.
//!
//! Invariant: the answer of each operation is looked at, and each value is read.

use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;

use crate::driver::{self, Outcome, Runner, Step, Tally, Window};
use crate::plan::Plan;
use crate::store::Store;
use crate::system::Device;
use crate::values::Values;
use crate::workload::{Cell, SCAN_ENTRIES, Touch, Workload};

/// Latencies are taken of one read in so many; of writes and scans, all.
const READ_SAMPLE: u64 = 8;

/// What ycsb-e forces, and at which second.
const YCSB_E_EVENTS: [(u64, Event); 3] =
    [(5, Event::Reorganize), (10, Event::Checkpoint), (25, Event::Checkpoint)];

/// A background job forced in the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// Merge the recent keys into the sorted ones.
    Reorganize,
    /// Make all durable and drop the log.
    Checkpoint,
}

/// When an event began and how long it took, in seconds of the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventTime {
    /// What.
    pub(crate) event: Event,
    /// From the start of the window.
    pub(crate) began_s: f64,
    /// Its length.
    pub(crate) took_s: f64,
}

/// What a window did.
pub(crate) struct Ran {
    /// By thread and in all.
    pub(crate) outcome: Outcome,
    /// ycsb-e: the jobs that were forced.
    pub(crate) events: Vec<EventTime>,
    /// ycsb-e: how many inserts each thread made.
    pub(crate) inserts: Vec<usize>,
}

/// What threads of ycsb-e report beside their tallies.
#[derive(Default)]
struct Notes {
    events: Vec<EventTime>,
    inserts: Vec<(usize, usize)>,
}

/// What a window is made of.
pub(crate) struct Bench<'a> {
    /// The cell.
    pub(crate) cell: Cell,
    /// The store.
    pub(crate) store: &'a dyn Store,
    /// Its values.
    pub(crate) values: &'a Values,
    /// The device that holds it.
    pub(crate) device: &'a Device,
}

impl Bench<'_> {
    /// Runs the plans, one for each thread, for `length`.
    pub(crate) fn run(&self, plans: &[Plan], length: Duration) -> Result<Ran> {
        let notes = Mutex::new(Notes::default());
        let sample_every = if self.cell.workload.is_get() { READ_SAMPLE } else { 1 };
        let window = Window { threads: plans.len(), length, sample_every };
        let outcome = driver::run(window, self.device, |thread, runner| {
            let plan = &plans[thread];
            match self.cell.workload {
                Workload::Insert => self.insert(plan, runner),
                Workload::UpdateZipf => self.update(plan, runner),
                Workload::Delete => self.delete(plan, runner),
                Workload::GetMiss => self.get(plan, runner, false),
                Workload::GetHitZipf | Workload::GetHitUniform => self.get(plan, runner, true),
                Workload::ScanZipf | Workload::ScanUniform => self.scan(plan, runner),
                Workload::YcsbE => self.ycsb_e(plan, runner, thread, &notes),
            }
        })?;
        let notes = notes.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut inserts = vec![0; plans.len()];
        for (thread, made) in notes.inserts {
            inserts[thread] = made;
        }
        Ok(Ran { outcome, events: notes.events, inserts })
    }

    fn insert(&self, plan: &Plan, runner: Runner<'_>) -> Result<Tally> {
        let loaded = self.cell.loaded_records();
        runner.run(|number, _| {
            let position = number as usize;
            if position >= plan.len() {
                return Ok(Step::Exhausted);
            }
            let value = self.values.inserted(loaded + plan.records[position]);
            Ok(counted(self.store.insert(plan.keys.get(position), value)?))
        })
    }

    fn update(&self, plan: &Plan, runner: Runner<'_>) -> Result<Tally> {
        runner.run(|number, _| {
            let position = number as usize % plan.len();
            let value = self.values.updated(plan.records[position], number);
            Ok(counted(self.store.update(plan.keys.get(position), value)?))
        })
    }

    fn delete(&self, plan: &Plan, runner: Runner<'_>) -> Result<Tally> {
        runner.run(|number, _| {
            let position = number as usize;
            if position >= plan.len() {
                return Ok(Step::Exhausted);
            }
            Ok(counted(self.store.delete(plan.keys.get(position))?))
        })
    }

    fn get(&self, plan: &Plan, runner: Runner<'_>, present: bool) -> Result<Tally> {
        let mut sum = 0u64;
        let touch = self.cell.touch;
        let mut position = 0;
        let tally = runner.run(|_, _| {
            let key = plan.keys.get(position);
            position = if position + 1 == plan.len() { 0 } else { position + 1 };
            let found =
                self.store.get(key, &mut |value| sum = sum.wrapping_add(touch.read(value)))?;
            Ok(counted(found == present))
        });
        black_box(sum);
        tally
    }

    fn scan(&self, plan: &Plan, runner: Runner<'_>) -> Result<Tally> {
        let mut sum = 0u64;
        let tally = runner.run(|number, _| {
            let position = number as usize % plan.len();
            let entries =
                scan_once(self.store, plan.keys.get(position), self.cell.touch, &mut sum)?;
            Ok(counted(entries == SCAN_ENTRIES))
        });
        black_box(sum);
        tally
    }

    fn ycsb_e(
        &self,
        plan: &Plan,
        runner: Runner<'_>,
        thread: usize,
        notes: &Mutex<Notes>,
    ) -> Result<Tally> {
        let mut sum = 0u64;
        let mut inserts = 0;
        let mut to_come = if thread == 0 { &YCSB_E_EVENTS[..] } else { &[] };
        let loaded = self.cell.loaded_records();
        let tally = runner.run(|number, now| {
            if let Some((&(second, event), rest)) = to_come.split_first()
                && now.as_secs() >= second
            {
                to_come = rest;
                let time = self.force(event, now)?;
                lock(notes).events.push(time);
                return Ok(Step::Aside);
            }
            let position = number as usize % plan.len();
            if plan.is_insert[position] {
                let Some(&record) = plan.insert_records.get(inserts) else {
                    return Ok(Step::Exhausted);
                };
                let value = self.values.inserted(loaded + record);
                let applied = self.store.insert(plan.insert_keys.get(inserts), value)?;
                inserts += 1;
                return Ok(if applied { Step::Aside } else { Step::Wrong });
            }
            let entries =
                scan_once(self.store, plan.keys.get(position), self.cell.touch, &mut sum)?;
            Ok(counted(entries == SCAN_ENTRIES))
        });
        black_box(sum);
        lock(notes).inserts.push((thread, inserts));
        tally
    }

    fn force(&self, event: Event, now: Duration) -> Result<EventTime> {
        let began = std::time::Instant::now();
        match event {
            Event::Reorganize => self.store.reorganize()?,
            Event::Checkpoint => self.store.checkpoint()?,
        }
        let took_s = began.elapsed().as_secs_f64();
        Ok(EventTime { event, began_s: now.as_secs_f64(), took_s })
    }
}

fn lock(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
fn counted(right: bool) -> Step {
    if right { Step::Counted } else { Step::Wrong }
}

#[inline]
fn scan_once(store: &dyn Store, start: &[u8], touch: Touch, sum: &mut u64) -> Result<usize> {
    store.scan(start, SCAN_ENTRIES, &mut |key, value| {
        *sum = sum.wrapping_add(u64::from(key[0])).wrapping_add(touch.read(value));
    })
}
