//! How long to wait after a failure.
//!
//! Invariant: waits double from [`FIRST`] to [`LONGEST`], each shortened at random by up to half,
//! so that servers do not come in step.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(3);

/// The waits after failures in a row.
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    /// No failure yet.
    pub(super) fn new() -> Self {
        Self { next: FIRST }
    }

    /// Something worked.
    pub(super) fn reset(&mut self) {
        self.next = FIRST;
    }

    /// How long to wait after one more failure.
    pub(super) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LONGEST);
        wait.mul_f64(1.0 - rand::random::<f64>() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_start_anew() {
        let mut backoff = Backoff::new();
        for _ in 0..20 {
            let wait = backoff.next();
            assert!(wait >= FIRST / 2 && wait <= LONGEST);
        }
        assert!(backoff.next() >= LONGEST / 2);
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
