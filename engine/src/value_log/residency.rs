//! Which pages were seen in the page cache, so that a read of a hot record asks the kernel nothing.
//!
//! Invariant: a hint only. A bit says that its page was in memory when somebody looked, after the
//! last time that any page of the segment was found missing: while nothing is evicted, all bits
//! become right and stay so; under memory pressure they are soon dropped, and the kernel is asked.

use crate::sync::primitives::atomic::{AtomicU64, Ordering};

use super::placement::PAGE;

/// One bit for each page of a segment. All accesses are relaxed: nothing is ordered by a hint.
pub(super) struct Residency {
    bits: Box<[AtomicU64]>,
}

impl Residency {
    pub(super) fn new(segment_bytes: u64) -> Self {
        let words = segment_bytes.div_ceil(PAGE).div_ceil(64);
        Self { bits: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Whether `[start, start + len)` of the segment is in memory; asks `kernel` when in doubt.
    pub(super) fn check(&self, start: u64, len: u64, kernel: impl FnOnce() -> bool) -> bool {
        let pages = start / PAGE..(start + len).div_ceil(PAGE);
        let bit = |page: u64| (&self.bits[(page / 64) as usize], 1 << (page % 64));
        let seen = pages.clone().all(|page| {
            let (word, bit) = bit(page);
            word.load(Ordering::Relaxed) & bit != 0
        });
        if seen {
            return true;
        }
        let resident = kernel();
        if resident {
            for page in pages {
                let (word, bit) = bit(page);
                word.fetch_or(bit, Ordering::Relaxed);
            }
        } else {
            self.clear();
        }
        resident
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        for word in &self.bits {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_once_and_again_after_a_miss() {
        let hints = Residency::new(1 << 20);
        assert!(hints.check(5000, 10_000, || true));
        assert!(hints.check(4096, 8192, || unreachable!()));
        assert!(!hints.check(0, 5000, || false));
        assert!(!hints.check(5000, 10, || false));
        assert!(hints.check((1 << 20) - 1, 1, || true));
    }
}
