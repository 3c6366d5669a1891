//! What each thread will do, prepared before the clock runs.
//!
//! Invariants: operations that may be repeated (reads, updates) start over when the plan is used
//! up; those that may not (inserts, deletes) end the window early. Threads never share a new key
//! or a key to delete.

use anyhow::{Result, ensure};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::keygen::{KeyKind, Keys};
use crate::random::{Draws, Stream, generator};
use crate::workload::{Cell, SCAN_ENTRIES, Workload};

/// Draws of all threads together, and at least so many for each: a plan is a few dozen megabytes.
const DRAWS: usize = 1 << 21;
const MIN_DRAWS_PER_THREAD: usize = 1 << 15;
/// Draws for each second of the window: a short one needs no more, whatever starts over.
const DRAWS_PER_SECOND: f64 = 2e5;
/// Durable writes a second, of all threads, that a plan of new keys is made for.
const WRITES_PER_SECOND: f64 = 400_000.0;
/// Entries that may be missing after a scan's start in a corpus with deletes.
const SCAN_SLACK: u64 = 2 * SCAN_ENTRIES as u64;

/// Keys of one length, one after another.
#[derive(Default)]
pub(crate) struct KeyBlock {
    stride: usize,
    bytes: Vec<u8>,
}

impl KeyBlock {
    fn new(keys: &Keys, kind: KeyKind, indices: &[u64]) -> Self {
        let stride = keys.key_bytes();
        let mut bytes = vec![0; stride * indices.len()];
        for (out, &index) in bytes.chunks_exact_mut(stride).zip(indices) {
            keys.write(kind, index, out);
        }
        Self { stride, bytes }
    }

    /// The key at a position.
    #[inline]
    pub(crate) fn get(&self, position: usize) -> &[u8] {
        &self.bytes[position * self.stride..(position + 1) * self.stride]
    }
}

/// The plan of one thread.
#[derive(Default)]
pub(crate) struct Plan {
    /// The record of each operation; of an insert, its number among the inserts.
    pub(crate) records: Vec<u64>,
    /// The key of each operation.
    pub(crate) keys: KeyBlock,
    /// ycsb-e: whether the operation is an insert.
    pub(crate) is_insert: Vec<bool>,
    /// ycsb-e: the numbers of this thread's inserts.
    pub(crate) insert_records: Vec<u64>,
    /// ycsb-e: their keys.
    pub(crate) insert_keys: KeyBlock,
}

impl Plan {
    /// The plan of `thread` of a cell. Read-only workloads have another one for the warm-up.
    pub(crate) fn new(cell: &Cell, stream: Stream, thread: usize) -> Result<Self> {
        let keys = Keys::new(cell.flavour, cell.records);
        let mut rng = generator(stream, thread);
        match cell.workload {
            Workload::Insert => {
                let records = numbers(cell, thread, WRITES_PER_SECOND, keys.new_keys());
                Self::of(cell, &keys, new_keys(cell), records)
            }
            Workload::Delete => {
                let records = numbers(cell, thread, WRITES_PER_SECOND, cell.records);
                Self::of(cell, &keys, KeyKind::Existing, records)
            }
            Workload::GetMiss => {
                let records = drawn(cell, &keys, &mut rng)?;
                Self::of(cell, &keys, KeyKind::Missing, records)
            }
            Workload::YcsbE => {
                let mut plan =
                    Self::of(cell, &keys, KeyKind::Existing, drawn(cell, &keys, &mut rng)?)?;
                plan.is_insert = plan.records.iter().map(|_| rng.random_bool(0.05)).collect();
                let inserts =
                    numbers(cell, thread, 0.05 * WRITES_PER_SECOND / 2.0, keys.new_keys());
                plan.insert_keys = KeyBlock::new(&keys, new_keys(cell), &inserts);
                plan.insert_records = inserts;
                Ok(plan)
            }
            _ => Self::of(cell, &keys, KeyKind::Existing, drawn(cell, &keys, &mut rng)?),
        }
    }

    fn of(cell: &Cell, keys: &Keys, kind: KeyKind, records: Vec<u64>) -> Result<Self> {
        ensure!(!records.is_empty(), "fewer records than threads ({})", cell.threads);
        let keys = KeyBlock::new(keys, kind, &records);
        Ok(Self { records, keys, ..Self::default() })
    }

    /// How many operations are prepared.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }
}

/// The kind of the keys that a cell inserts.
pub(crate) fn new_keys(cell: &Cell) -> KeyKind {
    KeyKind::New { loaded: cell.loaded_records() }
}

/// `thread`, `thread + threads`, ... below `limit`, as many as the window can need.
fn numbers(cell: &Cell, thread: usize, per_second: f64, limit: u64) -> Vec<u64> {
    let share = (cell.seconds * per_second / cell.threads as f64).ceil() as usize + 1024;
    (thread as u64..limit).step_by(cell.threads).take(share).collect()
}

/// Records drawn as the workload says.
fn drawn(cell: &Cell, keys: &Keys, rng: &mut StdRng) -> Result<Vec<u64>> {
    let scans = cell.workload.is_scan() || cell.workload == Workload::YcsbE;
    let slack = if cell.is_aged() { SCAN_SLACK } else { SCAN_ENTRIES as u64 };
    let bound = if scans { cell.records.saturating_sub(slack) } else { cell.records };
    let draws = if cell.workload.is_zipf() {
        Draws::zipf(cell.flavour, *keys, bound)?
    } else {
        Draws::uniform(bound)?
    };
    let needed = (cell.seconds * DRAWS_PER_SECOND) as usize;
    let count = needed.min(DRAWS / cell.threads).max(MIN_DRAWS_PER_THREAD);
    Ok((0..count).map(|_| draws.draw(rng)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Flavour, Scenario, Touch};
    use std::collections::HashSet;

    fn cell(workload: Workload, flavour: Flavour) -> Cell {
        Cell {
            scenario: Scenario::Mem1Kb,
            workload,
            flavour,
            threads: 3,
            records: 3000,
            seconds: 0.1,
            touch: Touch::Line,
        }
    }

    #[test]
    fn threads_share_no_new_key_and_no_key_to_delete() {
        for workload in [Workload::Insert, Workload::Delete] {
            for flavour in [Flavour::Seed, Flavour::Field] {
                let mut seen = HashSet::new();
                for thread in 0..3 {
                    let plan = Plan::new(&cell(workload, flavour), Stream::Window, thread);
                    let plan = plan.expect("plan");
                    assert!((0..plan.len()).all(|i| seen.insert(plan.keys.get(i).to_vec())));
                }
            }
        }
    }

    #[test]
    fn a_delete_plan_ends_with_the_records() {
        let plans = (0..3).map(|thread| {
            Plan::new(&cell(Workload::Delete, Flavour::Seed), Stream::Window, thread)
        });
        let total: usize = plans.map(|plan| plan.expect("plan").len()).sum();
        assert_eq!(total, 3000);
    }

    #[test]
    fn scans_start_early_enough_to_be_full() {
        let scan = cell(Workload::ScanUniform, Flavour::Field);
        let plan = Plan::new(&scan, Stream::Window, 0).expect("plan");
        assert!(plan.records.iter().all(|&record| record < 3000 - SCAN_SLACK));
        let keys = Keys::new(Flavour::Field, 3000);
        assert_eq!(plan.keys.get(5), keys.key(KeyKind::Existing, plan.records[5]));
    }

    #[test]
    fn the_warm_up_has_draws_of_its_own() {
        let get = cell(Workload::GetHitUniform, Flavour::Seed);
        let window = Plan::new(&get, Stream::Window, 0).expect("plan");
        let warm_up = Plan::new(&get, Stream::WarmUp, 0).expect("plan");
        assert_ne!(window.records, warm_up.records);
    }

    #[test]
    fn one_operation_in_twenty_of_ycsb_e_inserts() {
        let plan = Plan::new(&cell(Workload::YcsbE, Flavour::Seed), Stream::Window, 0);
        let plan = plan.expect("plan");
        let share =
            plan.is_insert.iter().filter(|&&insert| insert).count() as f64 / plan.len() as f64;
        assert!((0.045..0.055).contains(&share), "{share}");
        assert!(!plan.insert_records.is_empty());
    }
}
