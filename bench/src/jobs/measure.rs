//! The measured process of `jobs`: one job against scans, updates and inserts in turn.
//!
//! Invariants: the time without the job lies right before the time with it, in the same process and
//! on the same data; only time in which the job really runs counts as time with it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use vmemkv_engine::{Engine, Options};

use super::work::{Job, Load, Work};
use crate::foreground::{Action, Gate, Loaded, with_threads};
use crate::runner;
use crate::statistics::{Rate, loss_percent};

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) data: PathBuf,
    pub(crate) records: u64,
    pub(crate) job: Job,
    pub(crate) load: Load,
    pub(crate) writers: usize,
    pub(crate) scanners: usize,
    /// A job is run again until it has run for so long.
    pub(crate) window_s: f64,
    /// Before each run: first a time that does not count, then the time without the job.
    pub(crate) warm_up_s: f64,
    pub(crate) before_s: f64,
    /// No further run of a job begins later than this after the start of its action.
    pub(crate) budget_s: f64,
}

/// What a job did to one action.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) action: Action,
    pub(crate) ops_per_s_before: f64,
    pub(crate) ops_per_s_during: f64,
    pub(crate) loss_pct: f64,
    /// Time with the job.
    pub(crate) window_s: f64,
    /// The longest run.
    pub(crate) duration_s: f64,
    /// The work of the run that had least.
    pub(crate) work_bytes: u64,
    pub(crate) runs: u32,
}

/// Task: measures; one answer for each action.
pub(crate) fn run(task: &Task) -> Result<()> {
    // Jobs run when they are told to, and no others.
    let options =
        Options { background: false, checkpoint_wal_bytes: 1 << 50, ..Options::default() };
    let engine = Engine::open(&task.data, options)?;
    let loaded = Loaded::new(&engine, task.records);
    let work = Work::new(&loaded, &task.data, task.load);
    let mut next_insert = 0;
    for action in Action::ALL {
        let threads = if action == Action::Scan { task.scanners } else { task.writers };
        let (measured, next) = with_threads(&loaded, action, threads, next_insert, |gate| {
            measure(task, action, &work, gate)
        })?;
        next_insert = next;
        runner::reply(&measured)?;
        // The next action starts with short append regions and a short log.
        engine.checkpoint()?;
    }
    Ok(engine.close()?)
}

fn measure(task: &Task, action: Action, work: &Work<'_>, gate: &Gate) -> Result<Measured> {
    let began = Instant::now();
    let (mut before, mut during) = (Rate::default(), Rate::default());
    let (mut duration_s, mut work_bytes, mut runs) = (0f64, u64::MAX, 0);
    work.begin(task.job)?;
    while runs == 0
        || (during.seconds < task.window_s && began.elapsed().as_secs_f64() < task.budget_s)
    {
        gate.hold()?;
        work.prepare(task.job)?;
        gate.run();
        std::thread::sleep(Duration::from_secs_f64(task.warm_up_s));
        let rest = Duration::from_secs_f64(task.before_s);
        let (rate, ()) = gate.rate_during(|| {
            std::thread::sleep(rest);
            Ok(())
        })?;
        before.add(rate);
        let (rate, done) = gate.rate_during(|| work.run(task.job))?;
        during.add(rate);
        duration_s = duration_s.max(done.seconds);
        work_bytes = work_bytes.min(done.work_bytes);
        runs += 1;
    }
    let (ops_per_s_before, ops_per_s_during) = (before.per_second(), during.per_second());
    let loss_pct = loss_percent(ops_per_s_before, ops_per_s_during)
        .with_context(|| format!("no {action:?} ended in {} s without the job", before.seconds))?;
    let window_s = during.seconds;
    Ok(Measured {
        action,
        ops_per_s_before,
        ops_per_s_during,
        loss_pct,
        window_s,
        duration_s,
        work_bytes,
        runs,
    })
}
