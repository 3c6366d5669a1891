//! The measured process of `splits`: inserts, and a look at the engine's split counters every
//! millisecond.
//!
//! Invariant: what a thread records it writes to memory of its own, outside the put that it times.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use vmemkv_engine::{Condition, Engine, Options};

use super::pauses::{Call, Look, longest_waits, loss, windows};
use crate::keygen::permute;
use crate::progress::Progress;
use crate::runner;
use crate::shaped_keys::ShapedKeys;
use crate::statistics::percentile;
use crate::values::Values;
use crate::workload::Flavour;

/// New keys that there are: more than any run can insert.
const KEYS: u64 = 1 << 32;
const VALUE_BYTES: usize = 1024;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) data: PathBuf,
    pub(crate) seconds: u64,
    pub(crate) threads: usize,
    pub(crate) shard_max_bytes: u64,
}

/// What was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    pub(crate) splits: u64,
    pub(crate) shards: u64,
    /// Pairs of a writer and a split.
    pub(crate) pairs: u64,
    pub(crate) pause_p50_ns: u64,
    pub(crate) pause_p999_ns: u64,
    pub(crate) pause_max_ns: u64,
    /// Of all puts of the run, in splits or not.
    pub(crate) put_p999_ns: u64,
    pub(crate) put_max_ns: u64,
    pub(crate) inserts: u64,
    pub(crate) run_s: f64,
    /// None if there was no time with splits, or nothing but.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) insert_loss_pct: Option<f64>,
    pub(crate) loss_by_seconds: bool,
    /// Time with a split under way, as the loss counts it.
    pub(crate) with_splits_s: f64,
    pub(crate) ops_per_s_with_splits: f64,
    pub(crate) ops_per_s_without: f64,
}

/// Task: inserts until the time is up.
pub(crate) fn run(task: &Task) -> Result<()> {
    let options = Options { shard_max_bytes: task.shard_max_bytes, ..Options::default() };
    let engine = Engine::open(&task.data, options)?;
    let values = Values::of_size(VALUE_BYTES, Flavour::Field);
    let began = Instant::now();
    // Handed out one by one; orders nothing.
    let next = AtomicU64::new(0);
    // Set once when the time is up or a thread has failed; orders nothing.
    let is_over = AtomicBool::new(false);
    let (looks, threads) = std::thread::scope(|scope| -> Result<_> {
        let handles: Vec<_> = (0..task.threads)
            .map(|_| {
                let (engine, values, next, is_over) = (&engine, &values, &next, &is_over);
                scope.spawn(move || {
                    let calls = insert(engine, values, began, next, is_over);
                    is_over.fetch_or(calls.is_err(), Ordering::Relaxed);
                    calls
                })
            })
            .collect();
        let looks = watch(&engine, began, task.seconds, &is_over);
        is_over.store(true, Ordering::Relaxed);
        let mut threads = Vec::new();
        for (number, handle) in handles.into_iter().enumerate() {
            let calls = handle.join().map_err(|_| anyhow!("thread {number} panicked"))?;
            threads.push(calls.with_context(|| format!("thread {number}"))?);
        }
        Ok((looks, threads))
    })?;
    let run_s = began.elapsed().as_secs_f64();
    let found = evaluate(task, &looks, &threads, run_s, engine.stats().index.shards)?;
    runner::reply(&found)?;
    Ok(engine.close()?)
}

fn insert(
    engine: &Engine,
    values: &Values,
    began: Instant,
    next: &AtomicU64,
    is_over: &AtomicBool,
) -> Result<Vec<Call>> {
    let keys = ShapedKeys::of_seeds(KEYS);
    let now = || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut calls = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let record = permute(next.fetch_add(1, Ordering::Relaxed) % KEYS, KEYS, 7);
        let (key, value) = (keys.key(record), values.inserted(record));
        let start_ns = now();
        let written = engine.put(&key, value, &Condition::IfAbsent)?;
        let end_ns = now();
        ensure!(written.applied, "a new key was there already");
        engine.wait_durable(written.lsn)?;
        calls.push(Call { start_ns, end_ns, acknowledged_ns: now() });
    }
    Ok(calls)
}

/// Looks at the counters until the time is up.
fn watch(engine: &Engine, began: Instant, seconds: u64, is_over: &AtomicBool) -> Vec<Look> {
    let mut progress = Progress::new("inserting (seconds)", seconds);
    let mut looks = Vec::new();
    while began.elapsed().as_secs() < seconds && !is_over.load(Ordering::Relaxed) {
        // The clock last: what was seen had happened by then.
        let counters = engine.stats().counters;
        looks.push(Look {
            at_ns: began.elapsed().as_nanos() as u64,
            splits: counters.shard_splits,
            took_us: counters.shard_changes_us,
        });
        progress.show(began.elapsed().as_secs());
        std::thread::sleep(LOOK_EVERY);
    }
    progress.end();
    looks
}

fn evaluate(
    task: &Task,
    looks: &[Look],
    threads: &[Vec<Call>],
    run_s: f64,
    shards: u64,
) -> Result<Found> {
    let windows = windows(looks);
    let waits = longest_waits(threads, &windows);
    let mut puts: Vec<u64> =
        threads.iter().flatten().map(|call| call.end_ns - call.start_ns).collect();
    puts.sort_unstable();
    let of = |sorted: &[u64], share| percentile(sorted, share).unwrap_or(0);
    let loss = loss(threads, &windows, task.seconds);
    let (with, without) = loss.map_or_else(Default::default, |loss| (loss.during, loss.without));
    Ok(Found {
        splits: windows.len() as u64,
        shards,
        pairs: waits.len() as u64,
        pause_p50_ns: of(&waits, 0.5),
        pause_p999_ns: of(&waits, 0.999),
        pause_max_ns: of(&waits, 1.0),
        put_p999_ns: of(&puts, 0.999),
        put_max_ns: of(&puts, 1.0),
        inserts: puts.len() as u64,
        run_s,
        insert_loss_pct: loss.map(|loss| loss.percent),
        loss_by_seconds: loss.is_some_and(|loss| loss.by_seconds),
        with_splits_s: with.seconds,
        ops_per_s_with_splits: with.per_second(),
        ops_per_s_without: without.per_second(),
    })
}
