//! `checkpoint`: what a checkpoint costs after few changes, against one that writes everything.
//!
//! Invariants: nothing runs in the background, so a checkpoint takes what was changed before it and
//! nothing else; every change is durable before the checkpoint begins.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use vmemkv_engine::{Engine, Options, Sharding};

use crate::args::Place;
use crate::bulk;
use crate::corpus::{self, Scratch};
use crate::output::{self, Report};
use crate::progress::Progress;
use crate::random::{Stream, generator};
use crate::runner;
use crate::shaped_keys::ShapedKeys;
use crate::statistics::median;
use crate::task;
use crate::values::Values;
use crate::workload::Flavour;

const VALUE_BYTES: usize = 100;
/// About what a shard holds when the engine splits by itself.
const SHARD_KEYS: u64 = 250_000;
/// Checkpoints of which the median is taken.
const ROUNDS: u32 = 15;

/// Index bytes and time of checkpoints after few changes.
///
/// Loads the keys in random order and makes a first checkpoint, which writes the whole index. Updates 1 % of
/// all keys, at random, and makes another: `index_ratio` is its index bytes over those of the first.
/// Then, 15 times, updates 1 % of the keys of one shard and makes a checkpoint: `one_shard_ms` is
/// the median. That with a small and a large number of keys: `growth_pct`.
#[derive(Args, Debug)]
pub(crate) struct CheckpointArguments {
    /// Keys of 16 bytes, with values of 100 bytes
    #[arg(long, default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1000..=1 << 32))]
    records: u64,
    /// The small number of keys
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=1 << 32))]
    small: u64,
    /// The large number of keys
    #[arg(long, default_value_t = 8_000_000, value_parser = clap::value_parser!(u64).range(1000..=1 << 32))]
    large: u64,
    #[command(flatten)]
    place: Place,
}

/// A task of the measured process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    dir: PathBuf,
    keys: ShapedKeys,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Measured {
    records: u64,
    shards: u64,
    first_index_bytes: u64,
    first_ms: f64,
    updated_index_bytes: u64,
    updated_ms: f64,
    one_shard_index_bytes: u64,
    one_shard_ms: f64,
}

/// What the subcommand reports.
#[derive(Clone, Debug, Serialize)]
struct CheckpointResult {
    /// Of `--records`: index bytes after 1 % of updates over those of the first checkpoint.
    index_ratio: f64,
    /// Time with one shard updated: how much more with `--large` keys than with `--small`.
    growth_pct: f64,
    measured: Vec<Measured>,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &CheckpointArguments) -> Result<bool> {
    ensure!(arguments.small < arguments.large, "--small must be less than --large");
    let dir = corpus::open_directory(&arguments.place.dir)?;
    let mut measured: Vec<Measured> = Vec::new();
    for records in [arguments.records, arguments.small, arguments.large] {
        eprintln!("{records} keys");
        let scratch = Scratch::new(&dir)?;
        let task = Task { dir: scratch.data(), keys: ShapedKeys::of_seeds(records) };
        measured.push(runner::run(&task::Task::Checkpoint(task), None)?.0);
    }
    let [all, small, large] = &measured[..] else { anyhow::bail!("three answers") };
    let result = CheckpointResult {
        index_ratio: all.updated_index_bytes as f64 / all.first_index_bytes as f64,
        growth_pct: (large.one_shard_ms / small.one_shard_ms - 1.0) * 100.0,
        measured,
    };
    output::write(&result, arguments.place.json.as_deref())?;
    Ok(true)
}

/// Task: loads and measures.
pub(crate) fn measure(task: &Task) -> Result<()> {
    let keys = task.keys;
    let shards = (keys.records / SHARD_KEYS).max(1);
    let first_of = |shard: u64| shard * keys.records / shards;
    let boundaries = (1..shards).map(|shard| keys.key(first_of(shard))).collect();
    let options = Options {
        background: false,
        checkpoint_wal_bytes: 1 << 50,
        sharding: Sharding::Alone { boundaries },
        ..Options::default()
    };
    let engine = Engine::open(&task.dir, options)?;
    let values = Values::of_size(VALUE_BYTES, Flavour::Field);
    let mut progress = Progress::new("loading", keys.records);
    let records = (0..keys.records).map(|position| keys.loaded(position));
    let pairs = records.map(|record| (keys.key(record), values.inserted(record).to_vec()));
    bulk::write(&engine, pairs, |done| progress.show(done))?;
    progress.end();
    let ms = |us: u64| us as f64 / 1000.0;
    let mut random = generator(Stream::Window, 0);
    let mut update = |first: u64, end: u64, turn: u64| {
        let count = (end - first).div_ceil(100);
        let pairs = (0..count).map(|_| {
            let record = random.random_range(first..end);
            (keys.key(record), values.updated(record, turn).to_vec())
        });
        bulk::write(&engine, pairs, |_| ())
    };
    let first = engine.checkpoint()?;
    update(0, keys.records, 1)?;
    let updated = engine.checkpoint()?;
    let (mut times, mut bytes) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Another one each time: the files of one shard would be joined at some point.
        let shard = u64::from(round) % shards;
        update(first_of(shard), first_of(shard + 1), 2 + u64::from(round))?;
        let one = engine.checkpoint()?;
        times.push(ms(one.duration_us));
        bytes.push(one.index_bytes as f64);
    }
    runner::reply(&Measured {
        records: keys.records,
        shards: engine.shards().len() as u64,
        first_index_bytes: first.index_bytes,
        first_ms: ms(first.duration_us),
        updated_index_bytes: updated.index_bytes,
        updated_ms: ms(updated.duration_us),
        one_shard_index_bytes: median(&bytes).unwrap_or_default() as u64,
        one_shard_ms: median(&times).unwrap_or_default(),
    })?;
    Ok(engine.close()?)
}

impl Report for CheckpointResult {
    fn text(&self) -> String {
        let mut text = format!(
            "checkpoint: after 1 % of updates {:.3} of the index bytes of the first; with one shard \
             updated {:+.1} % time with the larger index",
            self.index_ratio, self.growth_pct
        );
        for one in &self.measured {
            text += &format!(
                "\n{} keys, {} shards: first {} KiB, {:.0} ms; 1 % updated {} KiB, {:.0} ms; one \
                 shard updated {} KiB, {:.1} ms",
                one.records,
                one.shards,
                one.first_index_bytes >> 10,
                one.first_ms,
                one.updated_index_bytes >> 10,
                one.updated_ms,
                one.one_shard_index_bytes >> 10,
                one.one_shard_ms
            );
        }
        text
    }
}
