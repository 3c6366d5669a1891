//! The thread that keeps dead bytes within bounds, and the disk from filling up.
//!
//! Invariants: it never holds up reorganizes and checkpoints that others asked for; it yields to
//! whoever works in the foreground, the less so the more is dead; it ends at the next step of
//! whatever it does once the engine closes.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::api::{Continue, DefragmentOptions, DefragmentProgress};
use crate::core::Core;
use crate::error::Result;
use crate::jobs::reclaim_policy::{LEAST_RATIO, Situation, Step, decide};
use crate::value_log::SegmentUse;

/// Time between two looks while there is nothing to do.
const IDLE: Duration = Duration::from_millis(100);
/// The same after a step that has gained nothing, or failed.
const IN_VAIN: Duration = Duration::from_millis(500);
/// The same while writers wait for space.
const IN_VAIN_TIGHT: Duration = Duration::from_millis(20);
/// Longest pause at once, so that a close is noticed.
const MOST_PAUSE: Duration = Duration::from_millis(50);
/// Nice value of the thread.
const NICE: i32 = 10;

/// Runs until the engine closes.
pub(crate) fn run(core: &Core) {
    be_nice(NICE);
    while !core.requests.is_closed() {
        let step =
            if core.check_writable().is_ok() { decide(&core.situation()) } else { Step::Nothing };
        let gained = core.reclaim(step).unwrap_or_else(|error| {
            tracing::warn!(?step, %error, "reclaiming space failed");
            false
        });
        match (step, gained) {
            (Step::Nothing, _) => core.requests.pause(IDLE),
            (_, false) if core.space.is_full() => core.requests.pause(IN_VAIN_TIGHT),
            (_, false) => core.requests.pause(IN_VAIN),
            (_, true) => {}
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
        let disk = self.look_at_disk();
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
            live: values.live_bytes,
            dead: values.dead_bytes,
            reclaimable,
            emptied: log.empty_bytes(),
            files: values.disk_bytes + self.wal.disk_bytes(),
            segment: self.store.options.value_segment_bytes,
            available: disk.available_bytes,
            soft_reserve: disk.soft_reserve_bytes,
            tight_below: disk.slow_below_bytes,
        }
    }

    /// Does a step; whether it gained anything.
    fn reclaim(&self, step: Step) -> Result<bool> {
        let (min_dead_ratio, max_bytes, duty) = match step {
            Step::Nothing => return Ok(false),
            Step::Checkpoint => {
                let emptied = self.store.value_log.empty_bytes();
                self.checkpoint()?;
                return Ok(emptied > 0);
            }
            Step::Defragment { min_dead_ratio, max_bytes, duty } => {
                (min_dead_ratio, max_bytes, duty)
            }
        };
        let pace = Pace { core: self, duty, began: Cell::new(Instant::now()), seen: Cell::new(0) };
        let options = DefragmentOptions { min_dead_ratio, max_bytes };
        let report = self.defragment(&options, &|progress| pace.step(progress))?;
        Ok(report.segments > 0)
    }
}

/// Divides the time between the job and the foreground.
struct Pace<'a> {
    core: &'a Core,
    /// The part of the time that the job may take while others work.
    duty: f64,
    /// When the job went on after its last pause.
    began: Cell<Instant>,
    /// Foreground operations seen.
    seen: Cell<u64>,
}

impl Pace<'_> {
    fn step(&self, _: DefragmentProgress) -> Continue {
        let requests = &self.core.requests;
        if requests.is_closed() {
            return Continue::No;
        }
        let done = self.core.foreground_operations();
        let is_busy = done != self.seen.replace(done);
        if is_busy && self.duty < 1.0 {
            let worked = self.began.get().elapsed();
            requests.pause(pause_after(worked, self.duty));
        }
        self.began.set(Instant::now());
        Continue::Yes
    }
}

/// The pause that makes `worked` the part `duty` of the time.
fn pause_after(worked: Duration, duty: f64) -> Duration {
    worked.mul_f64((1.0 - duty) / duty.max(0.01)).min(MOST_PAUSE)
}

impl Core {
    fn foreground_operations(&self) -> u64 {
        let counters = self.store.counters.snapshot();
        counters.puts
            + counters.deletes
            + counters.gets_hit
            + counters.gets_miss
            + counters.scan_chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_time_means_three_quarters_of_pause() {
        let ms = Duration::from_millis;
        assert_eq!(pause_after(ms(4), 0.25), ms(12));
        assert_eq!(pause_after(ms(4), 1.0), ms(0));
        assert_eq!(pause_after(ms(400), 0.25), MOST_PAUSE);
    }
}
