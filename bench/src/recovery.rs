//! `recovery`: how long an open takes after a clean stop, and how fast the log is replayed.
//!
//! Invariants: each open is in a new process, the first read included; nothing is taken off the
//! times; what was acknowledged is looked for afterwards.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use vmemkv_engine::{Condition, Engine, Lsn, Options};

use crate::args::Place;
use crate::bulk;
use crate::corpus::{self, Scratch};
use crate::keygen::permute;
use crate::output::{self, Report};
use crate::progress::Progress;
use crate::runner::{self, Measured, page_cache};
use crate::shaped_keys::ShapedKeys;
use crate::statistics::median;
use crate::task::Task;
use crate::values::Values;
use crate::workload::Flavour;

const RECORD_BYTES: usize = 1024;
const SAMPLES: u64 = 1000;

/// Restart times: an open after a clean stop, and the replay of the log after kill -9.
///
/// First loads the keys and stops cleanly; drops the page cache of the data; opens in a new process
/// and reads one key: `open_s`, the median of the rounds. Then writes a log of 1 KiB records,
/// without a checkpoint, kills the process with SIGKILL and opens: `replay_mb_per_s` is the bytes of
/// keys and values in the log over the whole time of that open, in 10^6 bytes a second.
#[derive(Args, Debug)]
pub(crate) struct RecoveryArguments {
    /// Keys of the clean stop, of 16 bytes
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1000..=1 << 32))]
    records: u64,
    /// Length of their values
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    value_bytes: u32,
    /// Opens after the clean stop
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Bytes of keys and values in the log that is replayed
    #[arg(long, default_value_t = 2 << 30, value_parser = clap::value_parser!(u64).range(1 << 20..=1 << 40))]
    log_bytes: u64,
    /// Threads that write that log
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    #[command(flatten)]
    place: Place,
}

/// A task on the directory of the clean stop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    dir: PathBuf,
    keys: ShapedKeys,
    value_bytes: usize,
    round: u64,
}

/// A task on the directory of the kill.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Write {
    dir: PathBuf,
    keys: ShapedKeys,
    threads: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Opened {
    open_s: f64,
    first_read_us: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Logged {
    log_bytes: u64,
}

/// What the subcommand reports.
#[derive(Clone, Debug, Serialize)]
struct RecoveryResult {
    keys: u64,
    open_s: f64,
    replay_mb_per_s: f64,
    value_bytes: usize,
    /// Of each round, the first read included.
    opens_s: Vec<f64>,
    /// Of each round.
    first_reads_us: Vec<f64>,
    /// Bytes of the data that stayed in memory when the page cache was dropped, the most of all
    /// rounds.
    page_cache_left_bytes: u64,
    replay_s: f64,
    replay_records: u64,
    /// Bytes of their keys and values.
    replay_user_bytes: u64,
    /// Bytes of the log.
    replay_log_bytes: u64,
    /// The killed process leaves the log in the page cache, as a crash of the service does.
    replay_page_cache: &'static str,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &RecoveryArguments) -> Result<bool> {
    let dir = corpus::open_directory(&arguments.place.dir)?;
    let scratch = Scratch::new(&dir)?;
    let keys = ShapedKeys::of_seeds(arguments.records);
    keys.check()?;
    let value_bytes = arguments.value_bytes as usize;
    let mut load = Load { dir: scratch.path("clean-stop"), keys, value_bytes, round: 0 };
    let ((), _) = runner::run(&Task::RecoveryLoad(load.clone()), None)?;
    let (mut opens_s, mut first_reads_us, mut page_cache_left_bytes) = (vec![], vec![], 0);
    for round in 0..arguments.rounds {
        page_cache_left_bytes = page_cache::drop_below(&load.dir)?.max(page_cache_left_bytes);
        load.round = u64::from(round);
        let (opened, _): (Opened, _) = runner::run(&Task::RecoveryOpen(load.clone()), None)?;
        eprintln!("opened in {:.2} s", opened.open_s);
        opens_s.push(opened.open_s);
        first_reads_us.push(opened.first_read_us);
    }
    std::fs::remove_dir_all(&load.dir).context("remove the data of the clean stop")?;

    let keys = ShapedKeys::of_seeds(arguments.log_bytes.div_ceil((16 + RECORD_BYTES) as u64));
    let threads = u64::from(arguments.threads);
    let write = Write { dir: scratch.path("killed"), keys, threads };
    let mut writer = Measured::start(&Task::RecoveryWrite(write.clone()), None)?;
    let logged: Logged = writer.answer()?;
    writer.kill()?;
    eprintln!("killed; replaying");
    let (replayed, _): (Opened, _) = runner::run(&Task::RecoveryReplay(write), None)?;
    let user_bytes = keys.records * (16 + RECORD_BYTES) as u64;
    let result = RecoveryResult {
        keys: arguments.records,
        open_s: median(&opens_s).context("no round")?,
        replay_mb_per_s: user_bytes as f64 / 1e6 / replayed.open_s,
        value_bytes,
        opens_s,
        first_reads_us,
        page_cache_left_bytes,
        replay_s: replayed.open_s,
        replay_records: keys.records,
        replay_user_bytes: user_bytes,
        replay_log_bytes: logged.log_bytes,
        replay_page_cache: "warm",
    };
    output::write(&result, arguments.place.json.as_deref())?;
    Ok(true)
}

/// Task: loads and stops cleanly.
pub(crate) fn load(task: &Load) -> Result<()> {
    let engine = Engine::open(&task.dir, Options::default())?;
    let values = Values::of_size(task.value_bytes, Flavour::Field);
    let mut progress = Progress::new("loading", task.keys.records);
    let records = (0..task.keys.records).map(|position| task.keys.loaded(position));
    let pairs = records.map(|record| (task.keys.key(record), values.inserted(record).to_vec()));
    bulk::write(&engine, pairs, |done| progress.show(done))?;
    progress.end();
    engine.close()?;
    runner::reply(&())
}

/// Task: opens with the clock running, checks, and stops cleanly.
pub(crate) fn open(task: &Load) -> Result<()> {
    let values = Values::of_size(task.value_bytes, Flavour::Field);
    let (engine, opened) = open_and_read(&task.dir, &task.keys, task.round)?;
    check(&engine, &task.keys, &values)?;
    engine.close()?;
    runner::reply(&opened)
}

/// Task: writes the log, says so, and waits to be killed.
pub(crate) fn write(task: &Write) -> Result<()> {
    // No checkpoint: the log's limit shrinks with what is live, whatever the option says.
    let options = Options { background: false, ..Options::default() };
    let engine = Engine::open(&task.dir, options)?;
    let values = Values::of_size(RECORD_BYTES, Flavour::Field);
    let keys = &task.keys;
    // How far all threads are; a count that orders nothing.
    let written = AtomicU64::new(0);
    let mut progress = Progress::new("writing the log", keys.records);
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..task.threads)
            .map(|thread| {
                let (engine, values, written) = (&engine, &values, &written);
                scope.spawn(move || -> Result<()> {
                    let mut last = Lsn(0);
                    for position in (thread..keys.records).step_by(task.threads as usize) {
                        let record = keys.loaded(position);
                        let value = values.inserted(record);
                        last = engine.put(&keys.key(record), value, &Condition::None)?.lsn;
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(engine.wait_durable(last)?)
                })
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            progress.show(written.load(Ordering::Relaxed));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?
        })
    })?;
    progress.end();
    let wal = engine.stats().wal;
    let log_bytes = wal.durable_lsn.0 - wal.checkpoint_lsn.0;
    let user_bytes = keys.records * (16 + RECORD_BYTES) as u64;
    ensure!(
        log_bytes >= user_bytes,
        "a checkpoint cut the log: {log_bytes} bytes of it are left instead of {user_bytes}"
    );
    runner::reply(&Logged { log_bytes })?;
    runner::wait_for_the_kill()
}

/// Task: opens after the kill with the clock running, and checks.
pub(crate) fn replay(task: &Write) -> Result<()> {
    let values = Values::of_size(RECORD_BYTES, Flavour::Field);
    let (engine, opened) = open_and_read(&task.dir, &task.keys, 0)?;
    check(&engine, &task.keys, &values)?;
    runner::reply(&opened)
}

fn open_and_read(dir: &Path, keys: &ShapedKeys, round: u64) -> Result<(Engine, Opened)> {
    let key = keys.key(permute(round % keys.records, keys.records, 3));
    let began = Instant::now();
    let engine = Engine::open(dir, Options::default())?;
    let read = Instant::now();
    let found = engine.get(&key)?.is_some();
    let (open_s, first_read_us) = (began.elapsed().as_secs_f64(), read.elapsed().as_micros());
    ensure!(found, "the first key that was read is missing");
    Ok((engine, Opened { open_s, first_read_us: first_read_us as f64 }))
}

/// Looks for what was acknowledged: samples with their values, and every key by a scan.
fn check(engine: &Engine, keys: &ShapedKeys, values: &Values) -> Result<()> {
    for sample in 0..SAMPLES.min(keys.records) {
        let record = permute(sample, keys.records, 4);
        let found = engine.get(&keys.key(record))?;
        ensure!(found.as_deref() == Some(values.inserted(record)), "record {record} is not right");
    }
    let found = bulk::count(engine)?;
    ensure!(found == keys.records, "{found} keys instead of {}", keys.records);
    Ok(())
}

impl Report for RecoveryResult {
    fn text(&self) -> String {
        format!(
            "recovery: {} keys of 16 bytes, values of {} bytes: open {:.2} s after a clean stop, \
             page cache dropped (rounds: {:.2?}); first read {:.0?} us\n\
             replay: {} records of 1 KiB in {:.2} s, {:.0} MB/s",
            self.keys,
            self.value_bytes,
            self.open_s,
            self.opens_s,
            self.first_reads_us,
            self.replay_records,
            self.replay_s,
            self.replay_mb_per_s
        )
    }
}
