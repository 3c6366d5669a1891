//! `amplification`: disk in use against live data, and device bytes against user bytes.
//!
//! Invariants: space is what the file system has allocated for everything in the directory, log
//! included; a write counts as user bytes once it is acknowledged; stalls are looked for at every
//! moment, not at whole seconds of the clock.

mod overwrite;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use overwrite::{Limits, Overwritten};
pub(crate) use overwrite::{Task as OverwriteTask, run as overwrite};

use crate::args::Place;
use crate::command;
use crate::corpus::{self, Corpus, Scratch};
use crate::foreground::{FLAVOUR, SCENARIO};
use crate::output::{self, Report};
use crate::runner;
use crate::store::{StoreName, Variant};
use crate::task::Task;

/// In the first phase a thread waits for the log once for so many writes: it is about space, not about
/// waiting.
const WRITES_PER_WAIT: u64 = 32;

/// Space and write amplification under random overwrites.
///
/// Two phases, each on a fresh copy of the corpus. First, with free disk, overwrites of `--times` the
/// corpus: `space` is the disk in use afterwards, log included, over the keys and values that are
/// live. Then, with the engine's `capacity_bytes` at the live bytes over `--fill`, overwrites for
/// `--seconds`: `write` is device bytes over acknowledged user bytes, `stalls` the seconds without
/// any acknowledged write. Device bytes are those that the device counts, of all processes; where
/// no device is known, those that the kernel charges to the process (`write_bytes` of /proc/self/io), which
/// are in the output too: they count all of a large page of the cache for each byte written to it.
#[derive(Args, Debug)]
pub(crate) struct AmplificationArguments {
    /// Records of the corpus, of 1 KiB
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1000..=1 << 32))]
    records: u64,
    /// Threads that overwrite
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Overwrites of the first phase, in times of the corpus
    #[arg(long, default_value_t = 10.0, value_parser = times)]
    times: f64,
    /// Length of the second phase
    #[arg(long, default_value_t = 600.0, value_parser = crate::args::seconds)]
    seconds: f64,
    /// Live bytes over capacity in the second phase
    #[arg(long, default_value_t = 0.7, value_parser = fill)]
    fill: f64,
    #[command(flatten)]
    place: Place,
}

fn times(text: &str) -> Result<f64, String> {
    within(text, 0.01, 1000.0)
}

fn fill(text: &str) -> Result<f64, String> {
    within(text, 0.05, 0.95)
}

fn within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    (least..=most).contains(&number).then_some(number).ok_or(format!("from {least} to {most}"))
}

/// What the subcommand reports.
#[derive(Clone, Debug, Serialize)]
struct AmplificationResult {
    space: f64,
    write: f64,
    minutes: f64,
    stalls: u64,
    records: u64,
    /// Bytes of the keys and values of the corpus.
    live_bytes: u64,
    /// The most in use during the first phase, seen every second, over the live bytes.
    space_peak: f64,
    capacity_bytes: u64,
    longest_stall_s: f64,
    /// Where the device bytes of `write` are from.
    write_source: &'static str,
    /// Bytes that the kernel charges to the process over user bytes.
    write_of_process: f64,
    free_disk: Overwritten,
    limited: Overwritten,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &AmplificationArguments) -> Result<bool> {
    let dir = corpus::open_directory(&arguments.place.dir)?;
    let records = arguments.records;
    let corpus = Corpus {
        scenario: SCENARIO,
        flavour: FLAVOUR,
        records,
        store: StoreName::Vmemkv(Variant::Inline),
    };
    if !corpus.is_complete(&dir) {
        command::prepare(&corpus, &dir, None)?;
    }
    let scratch = Scratch::new(&dir)?;
    let phase = |name: &str, limits: Limits| -> Result<Overwritten> {
        eprintln!("{name}: copying the corpus");
        scratch.restore(&corpus.data(&dir))?;
        let threads = usize::from(arguments.threads);
        let task = OverwriteTask { data: scratch.data(), records, threads, limits };
        let (found, _) = runner::run(&Task::Overwrite(task), None)?;
        Ok(found)
    };
    let writes = (arguments.times * records as f64).ceil() as u64;
    let limits =
        Limits { writes: Some(writes), writes_per_wait: WRITES_PER_WAIT, ..Limits::default() };
    let free_disk = phase("free disk", limits)?;
    let capacity_bytes = (free_disk.live_bytes as f64 / arguments.fill) as u64;
    let limits = Limits {
        seconds: Some(arguments.seconds),
        capacity_bytes: Some(capacity_bytes),
        ..Limits::default()
    };
    let limited = phase("limited disk", limits)?;
    drop(scratch);
    ensure!(limited.user_bytes > 0, "no write was acknowledged in the second phase");
    let per_live = |bytes: u64| bytes as f64 / free_disk.live_bytes as f64;
    let per_user = |bytes: u64| bytes as f64 / limited.user_bytes as f64;
    let result = AmplificationResult {
        space: per_live(free_disk.disk_bytes),
        write: per_user(limited.device_write_bytes.unwrap_or(limited.process_write_bytes)),
        minutes: limited.seconds / 60.0,
        stalls: limited.stall_seconds,
        records,
        live_bytes: free_disk.live_bytes,
        space_peak: per_live(free_disk.disk_peak_bytes),
        capacity_bytes,
        longest_stall_s: limited.longest_stall_s,
        write_source: match limited.device_write_bytes {
            Some(_) => "the device, all processes",
            None => "process: write_bytes of /proc/self/io",
        },
        write_of_process: per_user(limited.process_write_bytes),
        free_disk,
        limited,
    };
    output::write(&result, arguments.place.json.as_deref()).context("report")?;
    Ok(true)
}

impl Report for AmplificationResult {
    fn text(&self) -> String {
        let of_user = |bytes: u64| bytes as f64 / self.limited.user_bytes as f64;
        format!(
            "amplification: {} records of 1 KiB\n\
             free disk: {:.2} times the live data after {} overwrites (at most {:.2})\n\
             capacity of {} MiB for {:.1} minutes: {:.2} device bytes for a user byte ({}; charged to the \
             process: {:.2}), {:.0} writes/s, {} s of stalls, the longest {:.2} s, {} refusals\n\
             of these: log {:.2}, new values {:.2}, copies {:.2}, index {:.2}; {:.1} writes a sync",
            self.records,
            self.space,
            self.free_disk.writes,
            self.space_peak,
            self.capacity_bytes >> 20,
            self.minutes,
            self.write,
            self.write_source,
            self.write_of_process,
            self.limited.writes as f64 / self.limited.seconds,
            self.stalls,
            self.longest_stall_s,
            self.limited.refused,
            of_user(self.limited.written.log_bytes),
            of_user(self.limited.written.value_bytes),
            of_user(self.limited.written.copied_bytes),
            of_user(self.limited.written.index_bytes),
            self.limited.writes as f64 / self.limited.written.log_syncs.max(1) as f64
        )
    }
}
