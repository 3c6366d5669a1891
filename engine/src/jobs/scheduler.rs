//! The background threads.
//!
//! Invariants: a job that fails is logged and asked for again by the next write that finds it
//! due; the threads end before the engine does.

use crate::sync::primitives::thread::{self, JoinHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::jobs::triggers::Reorganize;
use crate::jobs::{Next, Request, reclaimer};
use crate::stats::Counters;

/// How long a thread rests after a failed job. The next write asks again at once, and what failed
/// (a full disk) seldom heals within a moment.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The same while writers wait for space.
const AFTER_FAILURE_SHORT: Duration = Duration::from_millis(20);

/// How often a thread looks for neighbours to merge.
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);

/// The running threads.
pub(crate) struct Scheduler {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

impl Scheduler {
    /// Starts as many threads as the options say; none without `background`.
    pub(crate) fn start(core: &Arc<Core>) -> Result<Self> {
        let options = &core.store.options;
        let count = if options.background { options.job_threads } else { 0 };
        let mut scheduler = Self { core: Arc::clone(core), threads: Vec::with_capacity(count) };
        for number in 0..count {
            let core = Arc::clone(core);
            let thread = thread::Builder::new()
                .name(format!("vmemkv-job-{number}"))
                .spawn(move || run(&core))
                .map_err(|error| Error::io("start a thread for", "background jobs", &error))?;
            scheduler.threads.push(thread);
        }
        if options.background {
            let core = Arc::clone(core);
            let thread = thread::Builder::new()
                .name("vmemkv-reclaim".into())
                .spawn(move || reclaimer::run(&core))
                .map_err(|error| Error::io("start a thread for", "reclaiming space", &error))?;
            scheduler.threads.push(thread);
        }
        Ok(scheduler)
    }

    /// The threads, for somebody else to stop.
    pub(crate) fn take(&mut self) -> Self {
        Self { core: Arc::clone(&self.core), threads: std::mem::take(&mut self.threads) }
    }

    /// Has the threads end, and waits for none of them.
    pub(crate) fn detach(mut self) {
        self.core.requests.close();
        self.threads.clear();
    }

    /// Ends the threads after the jobs that they are at.
    pub(crate) fn stop(&mut self) {
        self.core.requests.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background job panicked");
            }
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Nice value of the threads: they run after the foreground, but writers may wait for them.
const NICE: i32 = 2;

fn run(core: &Core) {
    reclaimer::be_nice(NICE);
    let mut look_at = Instant::now() + BETWEEN_LOOKS;
    loop {
        let (job, result) = match core.requests.next(look_at) {
            Next::Closed => return,
            Next::Request(request) => execute(core, request),
            Next::Nothing => ("nothing", Ok(())),
        };
        rest_after_failure(core, job, result);
        if Instant::now() >= look_at {
            core.ask_for_splits();
            let merged = core.merge_if_due();
            let more = matches!(merged, Ok(true));
            rest_after_failure(core, "merge of shards", merged.map(drop));
            look_at = Instant::now() + if more { Duration::ZERO } else { BETWEEN_LOOKS };
        }
    }
}

fn execute(core: &Core, request: Request) -> (&'static str, Result<()>) {
    match request {
        Request::Reorganize(shard) => {
            // A write that waited for room may have done it meanwhile.
            let (due, is_left_frozen) = {
                let bundle = shard.load();
                (core.reorganize_is_due(&bundle), bundle.frozen.is_some())
            };
            let result = match due {
                None if is_left_frozen => core.reorganize_shard(&shard, usize::MAX),
                None => Ok(()),
                Some(Reorganize::Filling) => core.reorganize_shard(&shard, 1),
                Some(Reorganize::Scanned | Reorganize::Memory) => {
                    Counters::add(&core.store.counters.reorganizes_early, 1);
                    // Also without recent entries: what it gains may be tombstones.
                    core.reorganize_shard(&shard, 0)
                }
            };
            if core.split_is_due(&shard) {
                core.requests.split(&shard);
            }
            ("reorganize", result)
        }
        Request::Split(shard) => ("split", core.split_if_due(&shard)),
        Request::Checkpoint => ("checkpoint", core.checkpoint().map(drop)),
    }
}

fn rest_after_failure(core: &Core, job: &str, result: Result<()>) {
    if let Err(error) = result {
        tracing::warn!(job, %error, "a background job failed");
        // Writers that wait for space may wait for the next job of this thread.
        let rest = if core.space.slows_writers() { AFTER_FAILURE_SHORT } else { AFTER_FAILURE };
        core.requests.pause(rest);
    }
}
