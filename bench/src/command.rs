//! The subcommands.
//!
//! Invariants: the process that measures has loaded nothing, so its memory is the store's and the
//! plan's; an answer of a store that is not checked is not reported as verified.

use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use crate::args::{Arguments, Command, EngineArguments, PrepareArguments};
use crate::corpus::{self, Corpus, Scratch};
use crate::operations::{Bench, Event, Ran};
use crate::output::{self, CellResult, EventResult};
use crate::plan::Plan;
use crate::random::Stream;
use crate::runner::{Limit, MEMORY_LIMIT_BYTES, page_cache};
use crate::store::StoreName;
use crate::system::{self, Device};
use crate::task::Task;
use crate::values::Values;
use crate::verify::verify;
use crate::workload::{Cell, Workload, name};
use crate::{amplification, checkpoint, jobs, memory, recovery, runner, splits};

/// The longest warm-up.
const WARM_UP_SECONDS: f64 = 2.0;

/// Runs a subcommand; false if it ran but found a fault.
pub(crate) fn run(arguments: Arguments) -> Result<bool> {
    match arguments.command {
        Command::Engine(engine) => measure(&engine),
        Command::Prepare(prepare) => {
            let PrepareArguments { scenario, flavour, records, store, dir, age } = prepare;
            let corpus = Corpus { scenario, flavour, records, store };
            match age {
                Some(copy) => corpus.age(&copy)?,
                None => corpus.load(&dir)?,
            }
            Ok(true)
        }
        Command::Splits(arguments) => splits::run(&arguments),
        Command::Jobs(arguments) => jobs::run(&arguments),
        Command::Recovery(arguments) => recovery::run(&arguments),
        Command::Memory(arguments) => memory::run(&arguments),
        Command::Checkpoint(arguments) => checkpoint::run(&arguments),
        Command::Amplification(arguments) => amplification::run(&arguments),
        Command::Measured { task, cgroup } => {
            runner::enter(cgroup.as_deref())?;
            let task: Task = serde_json::from_str(&task).context("read the task")?;
            task.run().map(|()| true)
        }
        Command::Clean { dir } => {
            let removed = corpus::clean(&dir)?;
            let what = if removed { "removed" } else { "nothing at" };
            eprintln!("{what} {}", dir.display());
            Ok(true)
        }
    }
}

fn measure(arguments: &EngineArguments) -> Result<bool> {
    let cell = arguments.cell();
    let store = &arguments.store;
    store.check_built()?;
    let dir = corpus::open_directory(&arguments.place.dir)?;

    let corpus = Corpus::of(&cell, store);
    if cell.loaded_records() > 0 && !corpus.is_complete(&dir) {
        prepare(&corpus, &dir, None)?;
    }
    let scratch = if cell.leaves_corpus() {
        None
    } else if cell.loaded_records() == 0 {
        Some(Scratch::new(&dir)?)
    } else {
        eprintln!("copying the corpus");
        let scratch = Scratch::copy_of(&dir, &corpus.data(&dir))?;
        if cell.is_aged() {
            prepare(&corpus, &dir, Some(&scratch.data()))?;
        }
        Some(scratch)
    };
    let data = scratch.as_ref().map_or_else(|| corpus.data(&dir), Scratch::data);
    let task = CellTask { cell, store: store.name(), data };
    let (result, problems) = match limit(arguments, &dir) {
        None => measure_in(&task)?,
        Some(limit) => measure_under(&task, &limit)?,
    };
    drop(scratch);
    for problem in &problems {
        eprintln!("vmemkv-bench: {problem}");
    }
    output::write(&result, arguments.place.json.as_deref())?;
    Ok(problems.is_empty())
}

/// The memory limit of the measured process.
fn limit(arguments: &EngineArguments, dir: &Path) -> Option<Limit> {
    let usual = arguments.scenario.is_larger_than_memory().then_some(MEMORY_LIMIT_BYTES);
    let memory_bytes = arguments.memory_limit.or(usual)?;
    Some(Limit { memory_bytes, swap_bytes: arguments.swap_bytes, dir: dir.to_owned() })
}

/// A cell to measure in a process of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CellTask {
    cell: Cell,
    store: String,
    data: PathBuf,
}

/// Measures in a limited process, the page cache of the load dropped first.
fn measure_under(task: &CellTask, limit: &Limit) -> Result<(CellResult, Vec<String>)> {
    let left = page_cache::drop_below(&task.data)?;
    if left > 0 {
        eprintln!("vmemkv-bench: {left} bytes of the data stay in the page cache");
    }
    let task = Task::Cell(task.clone());
    let ((result, problems), limit) = runner::run::<(CellResult, _)>(&task, Some(limit))?;
    Ok((CellResult { limit, ..result }, problems))
}

/// Task: measures the cell.
pub(crate) fn measure_cell(task: &CellTask) -> Result<()> {
    runner::reply(&measure_in(task)?)
}

/// Loads the corpus, or ages a copy of it, in a process of its own.
pub(crate) fn prepare(corpus: &Corpus, dir: &Path, age: Option<&Path>) -> Result<()> {
    let program = std::env::current_exe().context("find the path of this program")?;
    let mut process = Process::new(program);
    process
        .args(["prepare", "--scenario", &name(corpus.scenario)])
        .args(["--flavour", &name(corpus.flavour)])
        .args(["--records", &corpus.records.to_string()])
        .args(["--store", &corpus.store.name()])
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if let Some(copy) = age {
        process.arg("--age").arg(copy);
    }
    let status = process.status().context("start the load in a process of its own")?;
    ensure!(status.success(), "the corpus could not be prepared ({status})");
    Ok(())
}

fn measure_in(task: &CellTask) -> Result<(CellResult, Vec<String>)> {
    let CellTask { cell, store, data } = task;
    let name: StoreName = store.parse().map_err(|error| anyhow!("{error}"))?;
    let values = Values::new(cell.scenario, cell.flavour);
    let window = plans(cell, Stream::Window)?;
    let store = name
        .open(data)
        .context("open the store; data of another version goes with `vmemkv-bench clean`")?;
    let device = Device::of(data)?;
    let bench = Bench { cell: *cell, store: store.as_ref(), values: &values, device: &device };
    if cell.workload.only_reads() {
        let seconds = cell.seconds.min(WARM_UP_SECONDS);
        eprintln!("warming up for {seconds} s");
        bench.run(&plans(cell, Stream::WarmUp)?, Duration::from_secs_f64(seconds))?;
    }
    eprintln!("measuring for {} s", cell.seconds);
    let ran = bench.run(&window, Duration::from_secs_f64(cell.seconds))?;
    let peak_rss_bytes = system::peak_rss_bytes()?;
    eprintln!("verifying");
    let problems = verify(&bench, &window, &ran)?;
    let result = report(cell, &name, &device, &ran, peak_rss_bytes, problems.is_empty())?;
    store.close()?;
    Ok((result, problems))
}

fn plans(cell: &Cell, stream: Stream) -> Result<Vec<Plan>> {
    (0..cell.threads).map(|thread| Plan::new(cell, stream, thread)).collect()
}

fn report(
    cell: &Cell,
    store: &StoreName,
    device: &Device,
    ran: &Ran,
    peak_rss_bytes: u64,
    verified: bool,
) -> Result<CellResult> {
    let outcome = &ran.outcome;
    let latencies = outcome.latencies()?;
    let elapsed: f64 = outcome.tallies.iter().map(|tally| tally.elapsed.as_secs_f64()).sum();
    let is_timed = cell.workload == Workload::YcsbE;
    let events = ran.events.iter().map(|time| EventResult {
        event: match time.event {
            Event::Reorganize => "reorganize".into(),
            Event::Checkpoint => "checkpoint".into(),
        },
        began_s: time.began_s,
        took_s: time.took_s,
    });
    Ok(CellResult {
        scenario: name(cell.scenario),
        workload: name(cell.workload),
        flavour: name(cell.flavour),
        store: store.name(),
        store_version: store.version().into(),
        threads: cell.threads,
        records: cell.records,
        ops_per_s: outcome.ops_per_s(),
        p50_us: latencies.quantile_us(0.5),
        p99_us: latencies.quantile_us(0.99),
        p999_us: latencies.quantile_us(0.999),
        cpu_s: outcome.usage.cpu_s,
        device_reads: outcome.usage.device_reads,
        peak_rss_bytes,
        verified,
        operations: outcome.counted(),
        seconds: elapsed / outcome.tallies.len().max(1) as f64,
        loaded_records: cell.loaded_records(),
        touch: name(cell.touch),
        latency_samples: latencies.count(),
        device_read_bytes: outcome.usage.device_read_bytes,
        device_reads_source: device.source().into(),
        timeline: if is_timed { outcome.timeline() } else { Vec::new() },
        events: events.collect(),
        limit: None,
    })
}
