//! What the scans of a shard have paid for records that do not lie in key order.
//!
//! Invariants: only scans that wait for the disk touch the count; it is an estimate, and all
//! accesses are relaxed: nothing is ordered by it.

use crate::sync::primitives::atomic::{AtomicU64, Ordering};

/// Jumps of scans that had to wait for the disk, since a rewrite last took them.
#[derive(Default)]
pub(crate) struct ColdScans {
    jumps: AtomicU64,
}

impl ColdScans {
    /// As many jumps more.
    pub(crate) fn add(&self, jumps: u64) {
        self.jumps.fetch_add(jumps, Ordering::Relaxed);
    }

    /// Jumps so far.
    pub(crate) fn jumps(&self) -> u64 {
        self.jumps.load(Ordering::Relaxed)
    }
}
