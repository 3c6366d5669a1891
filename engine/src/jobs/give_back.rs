//! Memory that nothing needs any more goes back to the system once the engine comes to rest: what
//! the allocator has kept of merged and split regions, and the pages of the log's ring.
//!
//! Invariants: each is given back only after [`QUIET`] without activity of its kind, once for each
//! rest, and takes at most one part in [`SHARE`] of the time; only a background thread does it.

use std::time::{Duration, Instant};

use crate::core::Core;
use crate::memory::trim_heap;
use crate::sync::primitives::atomic::Ordering;

/// How long nothing must have happened: what is given back must be got again from the system.
const QUIET: Duration = Duration::from_secs(1);
/// After taking `t`, at least so many `t` pass before the next time: allocations of other threads
/// may wait meanwhile.
const SHARE: u32 = 50;

/// Decides when one kind of memory is given back.
#[derive(Debug)]
struct Rest {
    /// The count of activity when it was last looked at, and since when it is the same.
    seen: (u64, Instant),
    /// The count at which memory was last given back.
    given_at: u64,
    /// Not before.
    earliest: Instant,
}

impl Rest {
    /// Nothing has been given back; `count` is what has happened so far.
    fn new(count: u64, now: Instant) -> Self {
        // Whatever came before the start counts as activity: an open frees memory too.
        Self { seen: (count, now), given_at: count.wrapping_sub(1), earliest: now }
    }

    /// Whether it is due at `now`, when the count of activity is `count`.
    fn is_due(&mut self, count: u64, now: Instant) -> bool {
        if count != self.seen.0 {
            self.seen = (count, now);
        }
        count != self.given_at && now >= self.earliest && now - self.seen.1 >= QUIET
    }

    /// It was done from `began` to `ended`.
    fn given(&mut self, began: Instant, ended: Instant) {
        self.given_at = self.seen.0;
        self.earliest = ended + (ended - began) * SHARE;
    }
}

/// What one background thread does about it.
#[derive(Debug)]
pub(super) struct GiveBack {
    heap: Rest,
    ring: Rest,
}

impl GiveBack {
    pub(super) fn new(core: &Core) -> Self {
        let now = Instant::now();
        Self { heap: Rest::new(jobs_done(core), now), ring: Rest::new(appended(core), now) }
    }

    /// Gives back what is due.
    pub(super) fn step(&mut self, core: &Core) {
        let began = Instant::now();
        if self.ring.is_due(appended(core), began) && core.wal.give_back_ring() {
            self.ring.given(began, Instant::now());
        }
        let began = Instant::now();
        if self.heap.is_due(jobs_done(core), began) && !core.requests.any_waits() {
            trim_heap();
            let ended = Instant::now();
            self.heap.given(began, ended);
            tracing::debug!(took_us = (ended - began).as_micros(), "gave free memory back");
        }
    }
}

/// Changes with everything that frees much memory.
fn jobs_done(core: &Core) -> u64 {
    let counters = &core.store.counters;
    [&counters.reorganizes, &counters.shard_splits, &counters.shard_merges, &counters.checkpoints]
        .into_iter()
        // Relaxed: a job that is not seen yet is seen at the next look.
        .fold(0, |sum, counter| sum + counter.load(Ordering::Relaxed))
}

/// Changes with everything that touches the ring.
fn appended(core: &Core) -> u64 {
    core.wal.appended_lsn().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_quiet_and_comes_once_for_each_rest() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut rest = Rest::new(7, start);
        assert!(!rest.is_due(7, at(999)));
        assert!(rest.is_due(7, at(1000)));
        rest.given(at(1000), at(1100));
        assert!(!rest.is_due(7, at(60_000)), "nothing has happened since");
        assert!(!rest.is_due(8, at(60_100)));
        assert!(!rest.is_due(9, at(60_900)));
        assert!(!rest.is_due(9, at(61_800)), "activity 900 ms ago");
        assert!(rest.is_due(9, at(61_900)));
    }

    #[test]
    fn it_takes_a_small_part_of_the_time() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut rest = Rest::new(0, start);
        assert!(rest.is_due(0, at(1000)));
        rest.given(at(1000), at(1200));
        assert!(!rest.is_due(1, at(1300)));
        assert!(!rest.is_due(1, at(1200 + 200 * u64::from(SHARE) - 1)));
        assert!(rest.is_due(1, at(1200 + 200 * u64::from(SHARE))));
    }
}
