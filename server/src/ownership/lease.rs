//! How long this node may serve.
//!
//! Invariants: a lease counts from the sending of the request that a router granted; it is never
//! shortened by a late or repeated answer, only ended by a refusal; there is none before the first grant.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The end of the lease, in the time of a [`Clock`](crate::clock::Clock).
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// Nanoseconds; 0: none.
    until: AtomicU64,
}

impl Lease {
    /// A router granted `length` in answer to a request that was sent at `sent`.
    pub(crate) fn renew(&self, sent: Duration, length: Duration) {
        let until = u64::try_from((sent + length).as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: the end stands alone, no other memory is published by it.
        self.until.fetch_max(until, Ordering::Relaxed);
    }

    /// It ends now: a router has said that somebody else has it, or nobody.
    pub(crate) fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Whether it lasts at `now`.
    pub(crate) fn is_valid(&self, now: Duration) -> bool {
        now.as_nanos() < u128::from(self.until.load(Ordering::Relaxed))
    }

    /// How long it lasts from `now` on.
    pub(crate) fn left(&self, now: Duration) -> Duration {
        Duration::from_nanos(self.until.load(Ordering::Relaxed)).saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_counts_from_sending() {
        let lease = Lease::default();
        assert!(!lease.is_valid(Duration::ZERO));
        lease.renew(s(100), s(10));
        assert!(lease.is_valid(s(109)));
        assert!(!lease.is_valid(s(110)));
        assert_eq!(lease.left(s(104)), s(6));
        assert_eq!(lease.left(s(200)), Duration::ZERO);
    }

    #[test]
    fn it_ends_at_once_and_can_be_granted_anew() {
        let lease = Lease::default();
        lease.renew(s(10), s(5));
        lease.end();
        assert!(!lease.is_valid(s(11)));
        lease.renew(s(12), s(5));
        assert!(lease.is_valid(s(13)));
    }

    #[test]
    fn a_late_answer_does_not_shorten_it() {
        let lease = Lease::default();
        lease.renew(s(100), s(10));
        lease.renew(s(90), s(10));
        assert!(lease.is_valid(s(105)));
    }
}
