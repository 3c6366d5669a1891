//! The thread that keeps dead bytes within bounds, and the disk from filling up.
//!
//! While there is nothing of that to do, it puts records in key order for scans that pay for
//! disorder, and gives idle memory back.
//!
//! Invariants: it never holds up reorganizes and checkpoints that others asked for; it yields to
//! whoever works in the foreground, the less so the more is dead; it ends at the next step of
//! whatever it does once the engine closes.

use std::time::{Duration, Instant};

use crate::api::{Continue, DefragmentOptions};
use crate::core::Core;
use crate::error::Result;
use crate::jobs::give_back::GiveBack;
use crate::jobs::orderer::Orderer;
use crate::jobs::pace::Pace;
use crate::jobs::reclaim_policy::{Defragment, LEAST_RATIO, Situation, Step, decide};
use crate::value_log::SegmentUse;

/// Time between two looks while there is nothing to do, and with headroom for long.
const IDLE: Duration = Duration::from_millis(20);
const IDLE_LONG: Duration = Duration::from_millis(100);
/// The same after a step that has gained nothing, or failed.
const IN_VAIN: Duration = Duration::from_millis(500);
/// The same while writers wait for space.
const IN_VAIN_TIGHT: Duration = Duration::from_millis(20);
/// Nice value of the thread.
const NICE: i32 = 10;

/// Runs until the engine closes.
pub(crate) fn run(core: &Core) {
    be_nice(NICE);
    let mut give_back = GiveBack::new(core);
    let mut orderer = Orderer::new(Instant::now());
    while !core.requests.is_closed() {
        let now = core.situation();
        let step = if core.check_writable().is_ok() { decide(&now) } else { Step::default() };
        if step.checkpoint {
            // By another thread: this one goes on meanwhile, unless there is nothing else that it can
            // do for the writers that wait.
            if step.defragment.is_none() && core.space.is_full() {
                if let Err(error) = core.checkpoint() {
                    tracing::warn!(%error, "a checkpoint to give space back failed");
                }
            } else {
                core.requests.checkpoint();
            }
        }
        let Some(work) = step.defragment else {
            core.space.set_in_vain(false);
            if core.check_writable().is_ok() && orderer.step(core, Instant::now()) {
                continue;
            }
            give_back.step(core);
            let is_long = now.headroom / 2 > now.reclaim_below;
            core.requests.pause(if is_long { IDLE_LONG } else { IDLE });
            continue;
        };
        let gained = core.reclaim(work).unwrap_or_else(|error| {
            tracing::warn!(?step, %error, "reclaiming space failed");
            false
        });
        core.space.set_in_vain(!gained);
        if !gained {
            let until = Instant::now() + IN_VAIN;
            loop {
                core.requests.pause(IN_VAIN_TIGHT);
                let is_over = core.space.slows_writers() || Instant::now() >= until;
                if is_over || core.requests.is_closed() {
                    break;
                }
            }
        }
    }
}

/// Lets the thread run after others. A refusal costs speed only.
pub(crate) fn be_nice(nice: i32) {
    let thread = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(thread), nice) {
        tracing::debug!(%error, "cannot lower the priority of a background thread");
    }
}

impl Core {
    /// Looks at everything that the policy depends on.
    pub(crate) fn situation(&self) -> Situation {
        let disk = self.look();
        let log = &self.store.value_log;
        let values = log.stats();
        let is_worth = |dead: u64, used: u64| dead as f64 >= used as f64 * LEAST_RATIO;
        let reclaimable = log
            .candidates()
            .iter()
            .filter(|segment| is_worth(segment.dead_bytes(), segment.used_bytes))
            .map(SegmentUse::dead_bytes)
            .sum();
        Situation {
            dead: values.dead_bytes,
            reclaimable,
            emptied: log.empty_bytes(),
            log: self.wal.bytes_since_checkpoint(),
            log_segment: self.store.options.wal_segment_bytes,
            tail: log.tail_bytes_since_base(),
            segment: self.store.options.value_segment_bytes,
            headroom: disk.headroom,
            slow_below: disk.limits.slow_below,
            reclaim_below: disk.limits.reclaim_below,
        }
    }

    /// Empties segments; whether any were.
    fn reclaim(&self, work: Defragment) -> Result<bool> {
        let Defragment { min_dead_ratio, max_bytes, duty } = work;
        // Asked anew each time: writers may have come to wait.
        let duty = || if self.space.slows_writers() { 1.0 } else { duty };
        let pace = Pace::new(self, &duty);
        let options = DefragmentOptions { min_dead_ratio, max_bytes };
        let report = self.defragment(&options, &|_| {
            pace.step();
            if self.requests.is_closed() { Continue::No } else { Continue::Yes }
        })?;
        Ok(report.segments > 0)
    }
}
