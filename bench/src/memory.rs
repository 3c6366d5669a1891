//! `memory`: bytes of RAM for each key, after a load in random order and after a reopen.
//!
//! Invariants: memory is what is resident less the value log's pages; nothing is merged by hand
//! before the look, only waited for; the process that is measured holds no keys of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use vmemkv_engine::{Engine, Options};

use crate::args::Place;
use crate::bulk;
use crate::corpus::{self, Scratch};
use crate::output::{self, Report};
use crate::progress::Progress;
use crate::runner::{self, page_cache};
use crate::shaped_keys::{KeyShape, ShapedKeys};
use crate::smaps::{self, Resident};
use crate::task;
use crate::values::Values;
use crate::workload::Flavour;

const IDLE_SECONDS: u64 = 120;
/// Most seconds from there until as much is resident for [`STEADY_SECONDS`]: what is free goes back
/// to the system in the background, too.
const SETTLE_SECONDS: u64 = 30;
const STEADY_SECONDS: u64 = 6;

/// Bytes of RAM for each key, after a load in random order and after a reopen.
///
/// Loads the keys, waits until the background jobs rest and memory stays the same, for at most 150 s
/// (`waited_seconds`), and takes the resident memory of the process without the pages of the value
/// log, which are cache. Then closes, drops the page cache, opens in a new process and looks again.
/// `bytes_per_key` is the larger of the two; it holds everything, the log's ring and the program too.
#[derive(Args, Debug)]
pub(crate) struct MemoryArguments {
    /// Keys
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1000..=1 << 32))]
    records: u64,
    /// Length of each key
    #[arg(long, default_value_t = 16)]
    key_bytes: usize,
    /// Leading bytes that all keys share
    #[arg(long, default_value_t = 0)]
    shared_prefix: usize,
    /// What follows them
    #[arg(long, value_enum, default_value = "dense")]
    key_shape: KeyShape,
    /// Length of each value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    value_bytes: u32,
    #[command(flatten)]
    place: Place,
}

/// A task of the measured process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    dir: PathBuf,
    keys: ShapedKeys,
    value_bytes: usize,
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Look {
    resident_bytes: u64,
    value_log_bytes: u64,
    index_bytes: u64,
    append_entries: u64,
    is_idle: bool,
    /// From the end of the load or open to the look.
    waited_seconds: f64,
}

/// What the subcommand reports.
#[derive(Clone, Debug, Serialize)]
struct MemoryResult {
    keys: u64,
    key_bytes: usize,
    bytes_per_key: f64,
    shared_prefix: usize,
    key_shape: KeyShape,
    value_bytes: usize,
    after_load_bytes_per_key: f64,
    after_reopen_bytes_per_key: f64,
    /// The engine's own account of its regions and filters, after the load.
    index_bytes_per_key: f64,
    after_load: Look,
    after_reopen: Look,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &MemoryArguments) -> Result<bool> {
    let MemoryArguments { records, key_bytes, shared_prefix, key_shape, .. } = *arguments;
    let keys = ShapedKeys { key_bytes, shared_prefix, shape: key_shape, records };
    keys.check()?;
    let dir = corpus::open_directory(&arguments.place.dir)?;
    let scratch = Scratch::new(&dir)?;
    let value_bytes = arguments.value_bytes as usize;
    let task = Task { dir: scratch.data(), keys, value_bytes };
    let (after_load, _): (Look, _) = runner::run(&task::Task::MemoryLoad(task.clone()), None)?;
    page_cache::drop_below(&scratch.data())?;
    eprintln!("opening again");
    let (after_reopen, _): (Look, _) = runner::run(&task::Task::MemoryReopen(task), None)?;
    for (look, when) in [(&after_load, "load"), (&after_reopen, "reopen")] {
        if !look.is_idle {
            eprintln!(
                "vmemkv-bench: jobs still ran, or memory changed, {:.0} s after the {when}",
                look.waited_seconds
            );
        }
    }
    let per_key = |bytes: u64| bytes as f64 / records as f64;
    let of = |look: &Look| per_key(look.resident_bytes - look.value_log_bytes);
    let result = MemoryResult {
        keys: records,
        key_bytes,
        bytes_per_key: of(&after_load).max(of(&after_reopen)),
        shared_prefix,
        key_shape,
        value_bytes,
        after_load_bytes_per_key: of(&after_load),
        after_reopen_bytes_per_key: of(&after_reopen),
        index_bytes_per_key: per_key(after_load.index_bytes),
        after_load,
        after_reopen,
    };
    output::write(&result, arguments.place.json.as_deref())?;
    Ok(true)
}

/// Task: loads, rests, looks, and stops cleanly.
pub(crate) fn load(task: &Task) -> Result<()> {
    let engine = Engine::open(&task.dir, Options::default())?;
    {
        let values = Values::of_size(task.value_bytes, Flavour::Field);
        let keys = task.keys;
        let mut progress = Progress::new("loading", keys.records);
        let records = (0..keys.records).map(|position| keys.loaded(position));
        let pairs = records.map(|record| (keys.key(record), values.inserted(record).to_vec()));
        bulk::write(&engine, pairs, |done| progress.show(done))?;
        progress.end();
    }
    answer(&engine, task)?;
    Ok(engine.close()?)
}

/// Task: opens, reads a key, rests, looks.
pub(crate) fn reopen(task: &Task) -> Result<()> {
    let engine = Engine::open(&task.dir, Options::default())?;
    answer(&engine, task)?;
    Ok(engine.close()?)
}

fn answer(engine: &Engine, task: &Task) -> Result<()> {
    let last = task.keys.key(task.keys.records - 1);
    ensure!(engine.get(&last)?.is_some(), "the last key is missing");
    eprintln!("waiting for the background jobs");
    let began = Instant::now();
    let is_idle = bulk::wait_until_idle(engine, IDLE_SECONDS) && wait_until_steady()?;
    let waited_seconds = began.elapsed().as_secs_f64();
    let resident = Resident::now(&task.dir)?;
    let index = engine.stats().index;
    let entries = index.sorted_entries + index.append_entries;
    ensure!(entries >= task.keys.records, "the index holds {entries} of {}", task.keys.records);
    runner::reply(&Look {
        resident_bytes: resident.all_bytes,
        value_log_bytes: resident.all_bytes - resident.without_value_log(),
        index_bytes: index.memory_bytes,
        append_entries: index.append_entries,
        is_idle,
        waited_seconds,
    })
}

/// Waits until about as much memory is resident for [`STEADY_SECONDS`], or for [`SETTLE_SECONDS`];
/// false if it still changed.
fn wait_until_steady() -> Result<bool> {
    const ABOUT_BYTES: u64 = 1 << 20;
    let began = Instant::now();
    let mut steady = (smaps::anonymous_bytes()?, began);
    while began.elapsed().as_secs() < SETTLE_SECONDS {
        std::thread::sleep(Duration::from_millis(250));
        let now = smaps::anonymous_bytes()?;
        if now.abs_diff(steady.0) > ABOUT_BYTES {
            steady = (now, Instant::now());
        } else if steady.1.elapsed().as_secs() >= STEADY_SECONDS {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Report for MemoryResult {
    fn text(&self) -> String {
        format!(
            "memory: {} keys of {} bytes ({:?}, {} shared), values of {} bytes\n\
             {:.1} bytes per key: {:.1} after the load (looked at {:.0} s later), {:.1} after a \
             reopen ({:.0} s); the index's own account is {:.1}",
            self.keys,
            self.key_bytes,
            self.key_shape,
            self.shared_prefix,
            self.value_bytes,
            self.bytes_per_key,
            self.after_load_bytes_per_key,
            self.after_load.waited_seconds,
            self.after_reopen_bytes_per_key,
            self.after_reopen.waited_seconds,
            self.index_bytes_per_key
        )
    }
}
