//! After the window: does the store hold what it should?
//!
//! Invariant: the expectation comes from the plan and from how far each thread got, never from
//! the store.

use std::borrow::Cow;
use std::collections::HashMap;

use anyhow::Result;

use crate::corpus::{AGED, is_aged_delete, is_aged_update};
use crate::keygen::{KeyKind, Keys};
use crate::operations::{Bench, Ran};
use crate::plan::{Plan, new_keys};
use crate::random::{Draws, Stream, generator};
use crate::workload::{SCAN_ENTRIES, Workload};

const SAMPLES: usize = 1000;
const SCANS: usize = 20;
/// Problems of one kind that are told.
const TOLD: usize = 3;

/// What is wrong with the store; nothing if all is well.
pub(crate) fn verify(bench: &Bench<'_>, plans: &[Plan], ran: &Ran) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    if ran.outcome.wrong() > 0 {
        problems.push(format!("{} operations were answered wrongly", ran.outcome.wrong()));
    }
    if ran.outcome.counted() == 0 {
        problems.push("no operation ended within the window".into());
    }
    let expectation = Expectation::new(bench, plans, ran);
    let (expected, found) = (expectation.count(), bench.store.count()?);
    if expected != found {
        problems.push(format!("the store holds {found} keys instead of {expected}"));
    }
    problems.extend(check_records(bench, &expectation)?.into_iter().take(TOLD));
    problems.extend(check_new_and_missing(bench, &expectation)?.into_iter().take(TOLD));
    if bench.cell.workload.is_scan() || bench.cell.workload == Workload::YcsbE {
        problems.extend(check_scans(bench, &expectation)?.into_iter().take(TOLD));
    }
    Ok(problems)
}

/// What the store should hold.
struct Expectation<'a> {
    bench: &'a Bench<'a>,
    keys: Keys,
    /// How far each thread got.
    started: Vec<u64>,
    /// Records that the window updated: the number of the last update by each thread that did.
    /// Which of them was the very last is not known.
    updated: HashMap<u64, Vec<u64>>,
    /// The numbers of the inserts that were made.
    inserted: Vec<u64>,
}

impl<'a> Expectation<'a> {
    fn new(bench: &'a Bench<'a>, plans: &[Plan], ran: &Ran) -> Self {
        let started: Vec<u64> = ran.outcome.tallies.iter().map(|tally| tally.started).collect();
        let (mut updated, mut inserted) = (HashMap::new(), Vec::new());
        for (thread, plan) in plans.iter().enumerate() {
            let done = plan.len().min(started[thread] as usize);
            match bench.cell.workload {
                Workload::UpdateZipf => {
                    for (record, number) in last_updates(plan, started[thread]) {
                        updated.entry(record).or_insert_with(Vec::new).push(number);
                    }
                }
                Workload::Insert => inserted.extend(&plan.records[..done]),
                Workload::YcsbE => inserted.extend(&plan.insert_records[..ran.inserts[thread]]),
                _ => {}
            }
        }
        let keys = Keys::new(bench.cell.flavour, bench.cell.records);
        Self { bench, keys, started, updated, inserted }
    }

    fn count(&self) -> u64 {
        let loaded = self.bench.cell.loaded_records();
        let gone = match self.bench.cell.workload {
            Workload::Delete => self.started.iter().sum(),
            _ if self.bench.cell.is_aged() => {
                (0..loaded).filter(|&record| is_aged_delete(record)).count() as u64
            }
            _ => 0,
        };
        loaded - gone + self.inserted.len() as u64
    }

    /// Whether a record of the corpus may have this value.
    fn allows(&self, record: u64, found: Option<&[u8]>) -> bool {
        match self.updated.get(&record) {
            Some(numbers) => {
                numbers.iter().any(|&n| found == Some(self.bench.values.updated(record, n)))
            }
            None => found == self.value(record).as_deref(),
        }
    }

    /// The value of a record of the corpus that the window did not update.
    fn value(&self, record: u64) -> Option<Cow<'a, [u8]>> {
        let values = self.bench.values;
        let threads = self.started.len() as u64;
        let cell = &self.bench.cell;
        let deleted = match cell.workload {
            Workload::Delete => record / threads < self.started[(record % threads) as usize],
            _ => cell.is_aged() && is_aged_delete(record),
        };
        if deleted {
            return None;
        }
        if cell.is_aged() && is_aged_update(record) {
            return Some(Cow::Borrowed(values.updated(record, AGED)));
        }
        Some(Cow::Owned(values.loaded(record)))
    }
}

/// The number of the last update of each record among the first `started` of a plan.
fn last_updates(plan: &Plan, started: u64) -> HashMap<u64, u64> {
    let first = started.saturating_sub(plan.len() as u64);
    let record = |number: u64| plan.records[(number % plan.len() as u64) as usize];
    (first..started).map(|number| (record(number), number)).collect()
}

/// Random records, and those that the window changed first and last.
fn check_records(bench: &Bench<'_>, expectation: &Expectation<'_>) -> Result<Vec<String>> {
    let loaded = bench.cell.loaded_records();
    let mut problems = Vec::new();
    if loaded == 0 {
        return Ok(problems);
    }
    let mut rng = generator(Stream::Verify, 0);
    let uniform = Draws::uniform(loaded)?;
    let mut records: Vec<u64> = (0..SAMPLES).map(|_| uniform.draw(&mut rng)).collect();
    records.extend(expectation.updated.keys().take(SAMPLES));
    let ends = expectation.started.iter().zip(0..).map(|(&started, thread)| {
        started.saturating_sub(1) * expectation.started.len() as u64 + thread
    });
    records.extend(ends.filter(|&record| record < loaded));
    records.extend([0, loaded - 1]);
    for record in records {
        let key = expectation.keys.key(KeyKind::Existing, record);
        let found = read(bench, &key)?;
        if !expectation.allows(record, found.as_deref()) {
            problems.push(complaint("record", record, &key, found.as_deref()));
        }
    }
    Ok(problems)
}

/// Keys that the window inserted, and keys that nobody did.
fn check_new_and_missing(bench: &Bench<'_>, expectation: &Expectation<'_>) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let loaded = bench.cell.loaded_records();
    let step = (expectation.inserted.len() / SAMPLES).max(1);
    let last = expectation.inserted.last();
    for &number in expectation.inserted.iter().step_by(step).chain(last) {
        let key = expectation.keys.key(new_keys(&bench.cell), number);
        let found = read(bench, &key)?;
        if found.as_deref() != Some(bench.values.inserted(loaded + number)) {
            problems.push(complaint("insert", number, &key, found.as_deref()));
        }
    }
    if expectation.inserted.is_empty() {
        for record in (0..bench.cell.records).step_by((bench.cell.records / 100).max(1) as usize) {
            let key = expectation.keys.key(KeyKind::Missing, record);
            if let Some(found) = read(bench, &key)? {
                problems.push(complaint("missing key", record, &key, Some(&found)));
            }
        }
    }
    Ok(problems)
}

/// Whole scans, entry by entry. New keys may stand between those of the corpus.
fn check_scans(bench: &Bench<'_>, expectation: &Expectation<'_>) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let records = bench.cell.records;
    let mut rng = generator(Stream::Verify, 1);
    let starts = Draws::uniform(records - 2 * SCAN_ENTRIES as u64)?;
    for _ in 0..SCANS {
        let start = starts.draw(&mut rng);
        let key = expectation.keys.key(KeyKind::Existing, start);
        let mut entries = Vec::new();
        bench.store.scan(&key, SCAN_ENTRIES, &mut |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
        })?;
        let in_order = entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let of_corpus: Vec<_> = entries
            .iter()
            .filter_map(|(key, value)| Some((expectation.keys.index_of(key)?, value.as_slice())))
            .filter(|(record, _)| *record < records)
            .collect();
        let expected = (start..records)
            .filter_map(|record| Some((record, expectation.value(record)?)))
            .take(of_corpus.len());
        let as_expected = expected.zip(&of_corpus).all(|(a, b)| (a.0, &*a.1) == (b.0, b.1));
        let new = entries.len() - of_corpus.len();
        let new_is_plausible = new == 0 || !expectation.inserted.is_empty();
        if entries.len() != SCAN_ENTRIES || !in_order || !as_expected || !new_is_plausible {
            let found = entries.len();
            problems.push(format!(
                "the scan from {} gave {found} entries that are not those of the corpus",
                key.escape_ascii()
            ));
        }
    }
    Ok(problems)
}

fn read(bench: &Bench<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut found = None;
    let present = bench.store.get(key, &mut |value| found = Some(value.to_vec()))?;
    Ok(if present { found } else { None })
}

fn complaint(what: &str, number: u64, key: &[u8], found: Option<&[u8]>) -> String {
    let found = match found {
        None => "nothing".to_owned(),
        Some(value) => format!("another value of {} bytes", value.len()),
    };
    format!("{what} {number} ({}): the store has {found}", key.escape_ascii())
}

#[cfg(test)]
#[path = "verify_test.rs"]
mod tests;
