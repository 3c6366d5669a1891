//! The process that kills: starts itself again as the child, kills it at odd moments, and reads
//! what the child found.
//!
//! Invariants: a child never outlives its round; a child that ends by itself, hangs, or makes no
//! progress is a violation as well.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;

use super::keys::Keys;
use super::ledger::Ledger;

/// How long an open with its check may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Run {
    /// How long.
    pub minutes: f64,
    /// What everything is drawn from.
    pub seed: u64,
    /// Where the data goes; a temporary folder if not given. Kept after a violation.
    pub dir: Option<PathBuf>,
    /// See [`Orders`](super::Orders).
    pub plant: bool,
    /// See [`Orders`](super::Orders).
    pub plant_feed: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    seed: u64,
    operations: u64,
    acknowledged: u64,
    /// What followers of the change feed were shown.
    changes: u64,
    /// How often one was told that its position is too old.
    resyncs: u64,
    kills: u64,
    kills_in_recovery: u64,
    /// What the checker found.
    pub violations: Vec<String>,
}

impl Outcome {
    /// Takes over what the children have counted so far.
    fn count(&mut self, seed: u64, folder: &Path) -> Result<()> {
        let ledger = Ledger::open(&folder.join("ledger"), &Keys::new(seed))?;
        [self.operations, self.changes, self.resyncs] = ledger.count([0; 3])?;
        self.acknowledged = ledger.acknowledged();
        Ok(())
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        json!({
            "seed": self.seed,
            "operations": self.operations,
            "acknowledged": self.acknowledged,
            "changes_followed": self.changes,
            "positions_too_old": self.resyncs,
            "faults": self.kills,
            "faults_in_recovery": self.kills_in_recovery,
            "violations": self.violations.len(),
            "first_violation": self.violations.first(),
        })
        .to_string()
    }
}

/// Runs rounds until the time is up.
pub fn run(run: &Run) -> Result<Outcome> {
    let parent = run.dir.clone().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&parent).with_context(|| format!("make {}", parent.display()))?;
    let folder = tempfile::Builder::new().prefix("vmemkv-torture-").tempdir_in(parent)?;
    let mut random = StdRng::seed_from_u64(run.seed);
    let mut outcome = Outcome { seed: run.seed, ..Outcome::default() };
    let end = Instant::now() + Duration::from_secs_f64(run.minutes * 60.0);
    let mut round = 0;
    while Instant::now() < end && outcome.violations.is_empty() {
        let life = if random.random_bool(0.2) {
            Life::Opening(Duration::from_millis(random.random_range(0..400)))
        } else {
            Life::Working(Duration::from_millis(random.random_range(300..5000)))
        };
        one_round(run, folder.path(), round, life, &mut outcome)?;
        outcome.count(run.seed, folder.path())?;
        round += 1;
        println!("round {round}: {life:?}, {}", outcome.to_json());
    }
    one_round(run, folder.path(), round, Life::CheckOnly, &mut outcome)?;
    outcome.count(run.seed, folder.path())?;
    if !outcome.violations.is_empty() {
        println!("the data is kept in {}", folder.keep().display());
    }
    Ok(outcome)
}

/// When a child dies.
#[derive(Clone, Copy, Debug)]
enum Life {
    /// So long after its start, wherever it is.
    Opening(Duration),
    /// So long after it has opened and checked.
    Working(Duration),
    /// By itself.
    CheckOnly,
}

/// What a child says.
enum Said {
    Ready,
    Violation(String),
    End,
}

fn one_round(
    run: &Run,
    folder: &Path,
    round: u64,
    life: Life,
    outcome: &mut Outcome,
) -> Result<()> {
    let mut child = start(run, folder, round, matches!(life, Life::CheckOnly))?;
    let said = listen(&mut child)?;
    let wait = if let Life::Opening(time) = life { time } else { PATIENCE };
    let mut until = Instant::now() + wait;
    let mut is_ready = false;
    let killed = loop {
        match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Said::Ready) => {
                is_ready = true;
                if let Life::Working(time) = life {
                    until = Instant::now() + time;
                }
            }
            Ok(Said::Violation(what)) => outcome.violations.push(what),
            Ok(Said::End) | Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    // SIGKILL. It may have ended already.
    let _ = child.kill();
    let status = child.wait()?;
    // What it said before it died.
    while let Ok(said) = said.recv() {
        match said {
            Said::Violation(what) => outcome.violations.push(what),
            Said::Ready => is_ready = true,
            Said::End => break,
        }
    }
    let in_time = is_ready || matches!(life, Life::Opening(_));
    if killed && (!in_time || matches!(life, Life::CheckOnly)) {
        outcome.violations.push(format!("round {round}: hangs or is too slow"));
    } else if killed {
        outcome.kills += 1;
        outcome.kills_in_recovery += u64::from(!is_ready);
    } else if !(matches!(life, Life::CheckOnly) && status.success()) {
        outcome.violations.push(format!("round {round}: the child ended by itself: {status}"));
    }
    Ok(())
}

fn start(run: &Run, folder: &Path, round: u64, check_only: bool) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.arg("--child");
    command.arg("--dir").arg(folder.join("data"));
    command.arg("--ledger").arg(folder.join("ledger"));
    command.args(["--seed", &run.seed.to_string(), "--round", &round.to_string()]);
    command.args(check_only.then_some("--check-only"));
    command.args(run.plant.then_some("--plant"));
    command.args(run.plant_feed.then_some("--plant-feed"));
    command.stdout(Stdio::piped()).spawn().context("start the child")
}

/// Reads the child's lines on a thread of its own.
fn listen(child: &mut Child) -> Result<Receiver<Said>> {
    let output = child.stdout.take().context("the child's output")?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
            let said = match line.strip_prefix("violation: ") {
                Some(what) => Said::Violation(what.to_owned()),
                None if line == "ready" => Said::Ready,
                None => continue,
            };
            if sender.send(said).is_err() {
                return;
            }
        }
        // The parent may have gone.
        let _ = sender.send(Said::End);
    });
    Ok(receiver)
}
