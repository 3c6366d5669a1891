//! The background threads.
//!
//! Invariants: a job that fails is logged and asked for again by the next write that finds it
//! due; the threads end before the engine does.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::jobs::Request;
use crate::jobs::triggers::Reorganize;
use crate::stats::Counters;

/// How long a thread rests after a failed job. The next write asks again at once, and what failed
/// (a full disk) seldom heals within a moment.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

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
            let thread = std::thread::Builder::new()
                .name(format!("vmemkv-job-{number}"))
                .spawn(move || run(&core))
                .map_err(|error| Error::io("start a thread for", "background jobs", &error))?;
            scheduler.threads.push(thread);
        }
        Ok(scheduler)
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

fn run(core: &Core) {
    while let Some(request) = core.requests.next() {
        let (job, result) = match request {
            Request::Reorganize(shard) => {
                // A write that waited for room may have done it meanwhile.
                let due = core.reorganize_is_due(&shard.load());
                let result = match due {
                    None => Ok(()),
                    Some(Reorganize::Filling) => core.reorganize_shard(&shard, 1),
                    Some(Reorganize::Scanned | Reorganize::Memory) => {
                        Counters::add(&core.store.counters.reorganizes_early, 1);
                        // Also without recent entries: what it gains may be tombstones.
                        core.reorganize_shard(&shard, 0)
                    }
                };
                ("reorganize", result)
            }
            Request::Checkpoint => ("checkpoint", core.checkpoint().map(drop)),
        };
        if let Err(error) = result {
            tracing::warn!(job, %error, "a background job failed");
            core.requests.pause(AFTER_FAILURE);
        }
    }
}
