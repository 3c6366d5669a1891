//! How long to wait before a process asks another one again: one curve for routers and servers.
//!
//! Invariants: waits double from the first to the longest, each shortened at random by up to half,
//! so that callers do not come in step; no clock and no randomness of its own.

use std::time::Duration;

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(3);

/// The waits after failures in a row.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    next: Duration,
}

impl Backoff {
    /// No failure yet; the first wait is `first` at most.
    pub fn new(first: Duration) -> Self {
        Self { first, next: first }
    }

    /// Something worked.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// How long to wait after one more failure; `random` is drawn evenly from [0, 1).
    pub fn next(&mut self, random: f64) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LONGEST);
        wait.mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_start_anew() {
        let first = Duration::from_millis(20);
        let mut backoff = Backoff::new(first);
        assert_eq!(backoff.next(0.0), first);
        assert_eq!(backoff.next(0.0), first * 2);
        assert_eq!(backoff.next(1.0), first * 2, "four times the first, halved");
        for _ in 0..20 {
            assert!(backoff.next(0.5) <= LONGEST);
        }
        assert_eq!(backoff.next(0.0), LONGEST);
        backoff.reset();
        assert_eq!(backoff.next(0.0), first);
    }
}
