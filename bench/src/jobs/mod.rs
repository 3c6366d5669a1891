//! `jobs`: what a background job costs those who read and write meanwhile.
//!
//! Invariants: each job runs on a fresh copy of one corpus; a figure is the median of the rounds;
//! the whole command keeps to its time, by repeating short jobs less often.

mod measure;
mod work;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use measure::Measured;
pub(crate) use measure::{Task as MeasureTask, run as measure};
use work::{Job, Load};

use crate::args::Place;
use crate::command;
use crate::corpus::{self, Corpus, Scratch};
use crate::foreground::{Action, FLAVOUR, SCENARIO};
use crate::output::{self, Report};
use crate::runner::{self, Limit, LimitReport, MEMORY_LIMIT_BYTES, SWAP_FILE_BYTES, page_cache};
use crate::statistics::median;
use crate::store::{StoreName, Variant};
use crate::task::Task;

const LONGEST_ACTION_SECONDS: f64 = 90.0;

/// Throughput lost while a background job runs: reorganize, checkpoint and defragment, each against
/// scans, updates and inserts, in memory and under a memory limit.
///
/// Each measurement alternates: prepare work for the job with everything else held, let the threads
/// go, count for 2 s without the job, then count while it runs; again until the job has run for
/// `--seconds`. The loss is that of the rate with the job against the rate without. Every figure is
/// the median of the rounds; `work_bytes` is what the run with least to do did.
#[derive(Args, Debug)]
pub(crate) struct JobsArguments {
    /// Records of the corpus, of 1 KiB
    #[arg(long, default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1000..=1 << 32))]
    records: u64,
    /// Threads that insert and update
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Threads that scan
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    scan_threads: u16,
    /// A job is run again until it has run for so long
    #[arg(long, default_value_t = 5.0, value_parser = crate::args::seconds)]
    seconds: f64,
    /// Time without the job before each run
    #[arg(long, default_value_t = 2.0, value_parser = crate::args::seconds)]
    before_seconds: f64,
    /// Rounds that the median is of
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Keys that reorganize merges [default: a tenth of the records]
    #[arg(long)]
    merge_keys: Option<u64>,
    /// Bytes that checkpoint makes durable and defragment frees
    #[arg(long, default_value_t = 512 << 20, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    work_bytes: u64,
    /// Minutes for the whole command
    #[arg(long, default_value_t = 75, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Jobs to measure [default: all]
    #[arg(long = "job", value_parser = ["reorganize", "checkpoint", "defragment"])]
    only: Vec<String>,
    /// Scenarios to leave out: mem or ltm
    #[arg(long, value_parser = ["mem", "ltm"])]
    without: Vec<String>,
    /// Memory limit of the scenario that is larger than memory, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = MEMORY_LIMIT_BYTES, value_parser = clap::value_parser!(u64).range(16 << 20..))]
    memory_limit: u64,
    /// Swap file for it on a machine without swap; 0 = none
    #[arg(long, value_name = "BYTES", default_value_t = SWAP_FILE_BYTES)]
    swap_bytes: u64,
    #[command(flatten)]
    place: Place,
}

/// What the subcommand reports.
#[derive(Clone, Debug, Serialize)]
struct JobsResult {
    records: u64,
    threads: u16,
    scan_threads: u16,
    minutes: f64,
    jobs: Vec<JobResult>,
}

/// One job in one scenario.
#[derive(Clone, Debug, Serialize)]
struct JobResult {
    job: Job,
    scenario: &'static str,
    /// The longest run of the job.
    duration_s: f64,
    /// The shortest time that an action was measured with the job.
    window_s: f64,
    /// The work of the run that had least.
    work_bytes: u64,
    /// Whether every run had the work that it should have had.
    work_is_whole: bool,
    insert_loss_pct: f64,
    update_loss_pct: f64,
    scan_loss_pct: f64,
    /// Everything, by round and action.
    rounds: Vec<Vec<Measured>>,
    /// Of the last round.
    #[serde(flatten)]
    limit: Option<LimitReport>,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &JobsArguments) -> Result<bool> {
    let began = Instant::now();
    let dir = corpus::open_directory(&arguments.place.dir)?;
    let load = arguments.load()?;
    let corpus = Corpus {
        scenario: SCENARIO,
        flavour: FLAVOUR,
        records: arguments.records,
        store: StoreName::Vmemkv(Variant::Inline),
    };
    if !corpus.is_complete(&dir) {
        command::prepare(&corpus, &dir, None)?;
    }
    let scenarios: Vec<&'static str> = ["mem", "ltm"]
        .into_iter()
        .filter(|name| !arguments.without.iter().any(|w| w == name))
        .collect();
    ensure!(!scenarios.is_empty(), "--without leaves no scenario");
    let mut results: Vec<JobResult> = scenarios
        .iter()
        .flat_map(|scenario| {
            let jobs = Job::ALL.into_iter().filter(|job| arguments.is_wanted(*job));
            jobs.map(|job| JobResult::new(job, scenario))
        })
        .collect();
    let scratch = Scratch::new(&dir)?;
    let runs = results.len() as u32 * arguments.rounds;
    let deadline = began + Duration::from_secs(60 * arguments.minutes);
    let mut done = 0;
    for round in 0..arguments.rounds {
        for result in &mut results {
            eprintln!(
                "{:?}, {}, round {} of {} ({} s so far)",
                result.job,
                result.scenario,
                round + 1,
                arguments.rounds,
                began.elapsed().as_secs()
            );
            scratch.restore(&corpus.data(&dir))?;
            let limit = (result.scenario == "ltm").then(|| arguments.limit(&dir));
            if limit.is_some() {
                page_cache::drop_below(&scratch.data())?;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let task = MeasureTask {
                data: scratch.data(),
                records: arguments.records,
                job: result.job,
                load,
                writers: usize::from(arguments.threads),
                scanners: usize::from(arguments.scan_threads),
                window_s: arguments.seconds,
                warm_up_s: arguments.before_seconds / 2.0,
                before_s: arguments.before_seconds,
                budget_s: budget(left, runs - done),
            };
            let mut process = runner::Measured::start(&Task::Jobs(task), limit.as_ref())?;
            let answers: Result<Vec<Measured>> =
                Action::ALL.iter().map(|_| process.answer()).collect();
            result.rounds.push(answers?);
            result.limit = process.finish()?;
            done += 1;
        }
    }
    drop(scratch);
    for result in &mut results {
        let record_bytes = 40 + SCENARIO.value_bytes() as u64;
        result.conclude(least_bytes(result.job, &load, record_bytes))?;
    }
    let is_whole = results.iter().all(|result| result.work_is_whole);
    let result = JobsResult {
        records: arguments.records,
        threads: arguments.threads,
        scan_threads: arguments.scan_threads,
        minutes: began.elapsed().as_secs_f64() / 60.0,
        jobs: results,
    };
    output::write(&result, arguments.place.json.as_deref())?;
    if !is_whole {
        eprintln!("vmemkv-bench: a job had less to do than it should (work_is_whole)");
    }
    Ok(is_whole)
}

/// Seconds for each action of a run: an equal share of what is left, a third of it kept for copies and
/// the last run of a job, which is not cut short.
fn budget(left: Duration, runs: u32) -> f64 {
    let share = left.as_secs_f64() / f64::from(runs.max(1)) / Action::ALL.len() as f64;
    (share * 2.0 / 3.0).min(LONGEST_ACTION_SECONDS)
}

/// The least that a run of a job must do.
fn least_bytes(job: Job, load: &Load, record_bytes: u64) -> u64 {
    match job {
        Job::Reorganize => load.merge_keys * record_bytes,
        Job::Checkpoint | Job::Defragment => load.bytes,
    }
}

impl JobsArguments {
    fn is_wanted(&self, job: Job) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == job.name())
    }

    fn load(&self) -> Result<Load> {
        let merge_keys = self.merge_keys.unwrap_or(self.records / 10);
        ensure!(
            (1..=self.records / 2).contains(&merge_keys),
            "--merge-keys must be from 1 to half of the records"
        );
        let most = self.records * SCENARIO.value_bytes() as u64 / 2;
        ensure!(
            self.work_bytes <= most,
            "--work-bytes is at most {most}, half of the corpus: name fewer, or more --records"
        );
        Ok(Load { merge_keys, bytes: self.work_bytes })
    }

    fn limit(&self, dir: &std::path::Path) -> Limit {
        let (memory_bytes, swap_bytes) = (self.memory_limit, self.swap_bytes);
        Limit { memory_bytes, swap_bytes, dir: dir.to_owned() }
    }
}

impl JobResult {
    fn new(job: Job, scenario: &'static str) -> Self {
        Self {
            job,
            scenario,
            duration_s: 0.0,
            window_s: 0.0,
            work_bytes: 0,
            work_is_whole: false,
            insert_loss_pct: 0.0,
            update_loss_pct: 0.0,
            scan_loss_pct: 0.0,
            rounds: Vec::new(),
            limit: None,
        }
    }

    /// Fills in the figures from the rounds.
    fn conclude(&mut self, least_bytes: u64) -> Result<()> {
        let all = || self.rounds.iter().flatten();
        let loss = |action: Action| {
            let losses: Vec<f64> =
                all().filter(|found| found.action == action).map(|found| found.loss_pct).collect();
            median(&losses).with_context(|| format!("{action:?} was not measured"))
        };
        let (insert, update, scan) =
            (loss(Action::Insert)?, loss(Action::Update)?, loss(Action::Scan)?);
        let duration_s = all().map(|found| found.duration_s).fold(0.0, f64::max);
        let window_s = all().map(|found| found.window_s).fold(f64::INFINITY, f64::min);
        let work_bytes = all().map(|found| found.work_bytes).min().unwrap_or(0);
        (self.insert_loss_pct, self.update_loss_pct, self.scan_loss_pct) = (insert, update, scan);
        (self.duration_s, self.window_s, self.work_bytes) = (duration_s, window_s, work_bytes);
        self.work_is_whole = work_bytes >= least_bytes;
        Ok(())
    }
}

impl Report for JobsResult {
    fn text(&self) -> String {
        let mut text = format!(
            "jobs: {} records of 1 KiB, {} threads, {} for scans; {:.0} minutes",
            self.records, self.threads, self.scan_threads, self.minutes
        );
        for job in &self.jobs {
            text += &format!(
                "\n{:<11} {}: {:.1} s for {} MiB; lost: insert {:.1} %, update {:.1} %, scan {:.1} % \
                 (windows of {:.1} s and more)",
                format!("{:?}", job.job).to_lowercase(),
                job.scenario,
                job.duration_s,
                job.work_bytes >> 20,
                job.insert_loss_pct,
                job.update_loss_pct,
                job.scan_loss_pct,
                job.window_s
            );
            if let Some(limit) = &job.limit {
                text += &format!("\n            {}", limit.text());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(action: Action, loss_pct: f64, seconds: f64, work_bytes: u64) -> Measured {
        Measured {
            action,
            ops_per_s_before: 100.0,
            ops_per_s_during: 100.0 - loss_pct,
            loss_pct,
            window_s: 2.0 * seconds,
            duration_s: seconds,
            work_bytes,
            runs: 2,
        }
    }

    #[test]
    fn the_figures_are_medians_and_the_worst_of_the_rest() {
        let mut result = JobResult::new(Job::Checkpoint, "mem");
        for (loss, seconds, bytes) in [(30.0, 1.0, 700), (10.0, 3.0, 500), (12.0, 2.0, 600)] {
            let of = |action, more| measured(action, loss + more, seconds, bytes);
            let round = [(Action::Insert, 0.0), (Action::Update, 1.0), (Action::Scan, 2.0)];
            result.rounds.push(round.map(|(action, more)| of(action, more)).to_vec());
        }
        result.conclude(501).expect("conclude");
        let losses = (result.insert_loss_pct, result.update_loss_pct, result.scan_loss_pct);
        assert_eq!(losses, (12.0, 13.0, 14.0));
        assert_eq!((result.duration_s, result.window_s, result.work_bytes), (3.0, 2.0, 500));
        assert!(!result.work_is_whole, "500 bytes instead of 501");
        result.conclude(500).expect("conclude");
        assert!(result.work_is_whole);
        assert!(JobResult::new(Job::Reorganize, "mem").conclude(0).is_err(), "nothing measured");
    }

    #[test]
    fn the_budget_shrinks_with_the_time_that_is_left() {
        let hour = Duration::from_secs(3600);
        assert_eq!(budget(hour, 1), LONGEST_ACTION_SECONDS);
        assert!((budget(hour, 18) - 3600.0 / 18.0 / 3.0 * 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(budget(Duration::ZERO, 4), 0.0);
        assert_eq!(budget(Duration::ZERO, 0), 0.0);
    }
}
