//! How a job shares the machine with those who read and write: it works for a while, then it rests,
//! the longer the less urgent it is.
//!
//! Invariants: a job that nobody works beside never rests; nor does one that is urgent, or an engine
//! that closes; a rest is bounded, and ends when the engine closes. How urgent a job is, is asked
//! before each rest; whoever waits for what a job holds says so, and ends its rest.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::core::Core;

/// The part of the time that a job takes while others work and nothing is urgent. A job is one
/// thread of work for processor and disk; those who share two of either with it lose about half of
/// this.
pub(crate) const POLITE: f64 = 0.2;
/// Works for so long between two looks: less is not worth the look.
const SLICE: Duration = Duration::from_micros(500);
/// Longest rest at once: a slice that took long has mostly waited for others.
const MOST_REST: Duration = Duration::from_millis(8);

/// One job's pace.
pub(crate) struct Pace<'a> {
    core: &'a Core,
    /// The part of the time that the job may take now, above 0 to 1.
    duty: &'a dyn Fn() -> f64,
    /// When the job went on after its last rest.
    began: Cell<Instant>,
    /// Foreground operations seen.
    seen: Cell<u64>,
}

impl<'a> Pace<'a> {
    /// For a job that begins now.
    pub(crate) fn new(core: &'a Core, duty: &'a dyn Fn() -> f64) -> Self {
        let seen = Cell::new(core.foreground_operations());
        Self { core, duty, began: Cell::new(Instant::now()), seen }
    }

    /// To be called between two pieces of work, with nothing held that a reader or writer needs.
    pub(crate) fn step(&self) {
        self.core.space.stir();
        // The explorer of schedules knows no time.
        if cfg!(shuttle) {
            return;
        }
        let worked = self.began.get().elapsed();
        if worked < SLICE {
            return;
        }
        let done = self.core.foreground_operations();
        let is_busy = done != self.seen.replace(done);
        if is_busy {
            self.core.requests.rest(rest_after(worked, (self.duty)()));
        }
        self.began.set(Instant::now());
    }
}

/// The rest that makes `worked` the part `duty` of the time.
pub(crate) fn rest_after(worked: Duration, duty: f64) -> Duration {
    worked.mul_f64((1.0 - duty.min(1.0)) / duty.max(0.01)).min(MOST_REST)
}

impl Core {
    /// Operations of readers and writers so far.
    pub(crate) fn foreground_operations(&self) -> u64 {
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
    fn a_quarter_of_the_time_means_three_quarters_of_rest() {
        let ms = Duration::from_millis;
        assert_eq!(rest_after(ms(2), 0.25), ms(6));
        assert_eq!(rest_after(ms(4), 1.0), ms(0));
        assert_eq!(rest_after(ms(4), 7.0), ms(0));
        assert_eq!(rest_after(ms(400), 0.25), MOST_REST);
        assert_eq!(rest_after(ms(4), 0.0), MOST_REST);
    }
}
