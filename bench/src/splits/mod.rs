//! `splits`: how long writers wait at automatic splits, and what the splits cost in inserts.
//!
//! Invariants: the wait is that of the put call, taken at the caller, without the wait for the log;
//! the splits are the engine's own, by its policy; a run with too few of them fails.

mod insert;
mod pauses;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use insert::Found;
pub(crate) use insert::{Task as InsertTask, run as insert};

use crate::args::Place;
use crate::corpus::{self, Scratch};
use crate::output::{self, Report};
use crate::runner;
use crate::task::Task;

/// Writer-visible pauses of automatic splits, and the inserts that splits cost.
///
/// Threads insert new keys of 1 KiB in an order that looks random, so that all shards grow together
/// and split in waves; the time between the waves is what the time with splits is compared with. For each
/// writer and each split the longest put is taken that touches the time of the split (without the
/// wait for the log): the percentiles are over those pairs. `insert_loss_pct` compares the
/// acknowledged inserts in seconds with a split under way with those in the other seconds; in a run
/// without enough seconds of both kinds, the time of the splits itself with the rest (`loss_by`).
#[derive(Args, Debug)]
pub(crate) struct SplitsArguments {
    /// Length of the run
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Threads that insert
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// The engine's option: a shard with more live bytes is split
    #[arg(long, default_value_t = 8 << 20, value_parser = clap::value_parser!(u64).range(4096..))]
    shard_max_bytes: u64,
    /// The run fails with fewer splits
    #[arg(long, default_value_t = 64)]
    min_splits: u64,
    #[command(flatten)]
    place: Place,
}

/// What the subcommand reports.
#[derive(Clone, Debug, Serialize)]
struct SplitsResult {
    pause_p50_ms: f64,
    pause_p999_ms: f64,
    pause_max_ms: f64,
    insert_ops_per_s: f64,
    seconds: u64,
    threads: u16,
    /// The engine's option of this run.
    shard_max_bytes: u64,
    /// `seconds` or `windows`.
    loss_by: &'static str,
    #[serde(flatten)]
    found: Found,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &SplitsArguments) -> Result<bool> {
    let SplitsArguments { seconds, threads, shard_max_bytes, min_splits, .. } = *arguments;
    let dir = corpus::open_directory(&arguments.place.dir)?;
    let scratch = Scratch::new(&dir)?;
    let task = InsertTask {
        data: scratch.data(),
        seconds,
        threads: usize::from(threads),
        shard_max_bytes,
    };
    let (found, _): (Found, _) = runner::run(&Task::Splits(task), None)?;
    drop(scratch);
    ensure!(
        found.splits >= min_splits.max(1),
        "only {} splits in {seconds} s, --min-splits is {min_splits}: lower --shard-max-bytes \
         ({shard_max_bytes})",
        found.splits
    );
    ensure!(
        found.insert_loss_pct.is_some(),
        "splits were under way all the time, so there is nothing to compare with: raise \
         --shard-max-bytes ({shard_max_bytes})"
    );
    let milliseconds = |ns: u64| ns as f64 / 1e6;
    let result = SplitsResult {
        pause_p50_ms: milliseconds(found.pause_p50_ns),
        pause_p999_ms: milliseconds(found.pause_p999_ns),
        pause_max_ms: milliseconds(found.pause_max_ns),
        insert_ops_per_s: found.inserts as f64 / found.run_s,
        seconds,
        threads,
        shard_max_bytes,
        loss_by: if found.loss_by_seconds { "seconds" } else { "windows" },
        found,
    };
    output::write(&result, arguments.place.json.as_deref())?;
    Ok(true)
}

impl Report for SplitsResult {
    fn text(&self) -> String {
        format!(
            "splits: {} in {} s, {} threads, shards of at most {} MiB\n\
             pause of a writer at a split: median {:.3} ms, p99.9 {:.3} ms, longest {:.3} ms (all puts: \
             p99.9 {:.3} ms)\n\
             {:.0} inserts/s; lost while splits are under way: {:.1} % (by {})",
            self.found.splits,
            self.seconds,
            self.threads,
            self.shard_max_bytes >> 20,
            self.pause_p50_ms,
            self.pause_p999_ms,
            self.pause_max_ms,
            self.found.put_p999_ns as f64 / 1e6,
            self.insert_ops_per_s,
            self.found.insert_loss_pct.unwrap_or(f64::NAN),
            self.loss_by
        )
    }
}
