//! `torture --minutes M --seed S [--dir DIR]`: see [`vmemkv_tests::torture`].
//!
//! Invariants: the last line is one JSON object; exit code 1 on a violation, 2 when it could not
//! run.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use vmemkv_tests::torture::{Orders, Run, run_child, run_parent};

const USAGE: &str = "usage: torture [--minutes M] [--seed S] [--dir DIR]

Runs an engine on real files with 16 writers, readers, scanners, followers of the change feed and
jobs, kills it every few seconds and checks that nothing acknowledged is lost. --minutes: 1. --seed: from the clock.
--dir: where the data goes, a temporary folder.";

fn main() -> ExitCode {
    match command() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("torture: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn command() -> Result<ExitCode> {
    let mut run = Run { minutes: 1.0, seed: clock(), dir: None, plant: false, plant_feed: false };
    let (mut is_child, mut check_only, mut round) = (false, false, 0);
    let mut ledger = None;
    let mut arguments = std::env::args_os().skip(1);
    while let Some(name) = arguments.next() {
        let name = name.to_string_lossy().into_owned();
        let mut value = || arguments.next().with_context(|| format!("{name} needs a value"));
        match name.as_str() {
            "--minutes" => run.minutes = value()?.to_string_lossy().parse().context("--minutes")?,
            "--seed" => run.seed = value()?.to_string_lossy().parse().context("--seed")?,
            "--dir" => run.dir = Some(value()?.into()),
            // What follows is between the two processes, and for the test of the checker.
            "--plant" => run.plant = true,
            "--plant-feed" => run.plant_feed = true,
            "--child" => is_child = true,
            "--check-only" => check_only = true,
            "--round" => round = value()?.to_string_lossy().parse().context("--round")?,
            "--ledger" => ledger = Some(value()?.into()),
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(ExitCode::SUCCESS);
            }
            other => bail!("unknown argument {other}\n{USAGE}"),
        }
    }
    if is_child {
        let (Some(dir), Some(ledger)) = (run.dir, ledger) else { bail!("--dir and --ledger") };
        let Run { seed, plant, plant_feed, .. } = run;
        run_child(&Orders { dir, ledger, seed, round, check_only, plant, plant_feed })?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("torture: --minutes {} --seed {}", run.minutes, run.seed);
    let outcome = run_parent(&run)?;
    println!("{}", outcome.to_json());
    Ok(if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64 & 0xffff_ffff)
}
