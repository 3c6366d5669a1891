//! What the scans of a shard have paid for records that do not lie in key order, and what was
//! rewritten for their sake.
//!
//! Invariants: only scans that wait for the disk touch the count of jumps, and only who rewrites
//! touches the rest; all of it is an estimate, and is forgotten when the engine closes.

use crate::sync::primitives::Mutex;
use crate::sync::primitives::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::types::Revision;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct ColdScans {
    /// Jumps of scans that had to wait for the disk, since a rewrite last took them. Relaxed:
    /// nothing is ordered by it.
    jumps: AtomicU64,
    /// A leaf among the locks.
    rewrites: Mutex<Rewrites>,
}

/// What rewrites have done to a shard.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rewrites {
    /// Records moved that no change of the shard has paid for since.
    pub(crate) unpaid: u64,
    /// When the last one ended.
    pub(crate) last: Option<Instant>,
    /// Changes up to here have paid.
    paid_to: Revision,
}

impl ColdScans {
    /// Of a shard that has a part like 1 in `parts` of what these shards hold together.
    pub(super) fn inherit(shards: &[&Self], parts: u64) -> Self {
        let mut all = Rewrites::default();
        let mut jumps = 0;
        for shard in shards {
            let rewrites = *shard.rewrites.lock();
            jumps += shard.jumps();
            all.unpaid += rewrites.unpaid;
            all.last = all.last.max(rewrites.last);
            all.paid_to = all.paid_to.max(rewrites.paid_to);
        }
        let rewrites = Mutex::new(Rewrites { unpaid: all.unpaid / parts, ..all });
        Self { jumps: (jumps / parts).into(), rewrites }
    }

    /// As many jumps more.
    pub(crate) fn add(&self, jumps: u64) {
        self.jumps.fetch_add(jumps, Ordering::Relaxed);
    }

    /// Jumps so far.
    pub(crate) fn jumps(&self) -> u64 {
        self.jumps.load(Ordering::Relaxed)
    }

    /// A rewrite begins: the jumps that pay for it.
    pub(crate) fn take(&self) -> u64 {
        self.jumps.swap(0, Ordering::Relaxed)
    }

    /// What was rewritten, after the changes up to `revision` have paid a record each.
    pub(crate) fn settle(&self, revision: Revision) -> Rewrites {
        let mut rewrites = self.rewrites.lock();
        let changes = revision.0.saturating_sub(rewrites.paid_to.0);
        rewrites.unpaid = rewrites.unpaid.saturating_sub(changes);
        rewrites.paid_to = revision.max(rewrites.paid_to);
        *rewrites
    }

    /// A rewrite that moved so many records ended at `now`.
    pub(crate) fn rewritten(&self, records: u64, now: Instant) {
        let mut rewrites = self.rewrites.lock();
        rewrites.unpaid = rewrites.unpaid.saturating_add(records);
        rewrites.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_pays_for_a_record_once() {
        let scans = ColdScans::default();
        assert_eq!(scans.settle(Revision(50)).unpaid, 0, "no credit for what was before");
        scans.rewritten(100, Instant::now());
        assert_eq!(scans.settle(Revision(80)).unpaid, 70);
        assert_eq!(scans.settle(Revision(80)).unpaid, 70);
        assert_eq!(scans.settle(Revision(500)).unpaid, 0);
        scans.rewritten(100, Instant::now());
        assert_eq!(scans.settle(Revision(500)).unpaid, 100);
    }

    #[test]
    fn parts_and_sums_of_shards_keep_what_was_paid() {
        let now = Instant::now();
        let scans = ColdScans::default();
        scans.settle(Revision(10));
        scans.add(64);
        scans.rewritten(100, now);
        let half = ColdScans::inherit(&[&scans], 2);
        assert_eq!((half.jumps(), half.settle(Revision(20)).unpaid), (32, 40));
        let sum = ColdScans::inherit(&[&scans, &half], 1);
        let rewrites = sum.settle(Revision(20));
        assert_eq!((sum.take(), sum.jumps(), rewrites.unpaid), (96, 0, 140));
        assert!(rewrites.last == Some(now));
    }
}
