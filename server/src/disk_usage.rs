//! How much disk the data directory uses, and how much it may use.
//!
//! Invariant: as the engine sees it, without a walk over the directory; with `engine.capacity_bytes`
//! the directory is a disk of that size.

use vmemkv_engine::Stats;

/// Bytes of disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    /// Used by the data directory.
    pub(crate) used_bytes: u64,
    /// Free to it.
    pub(crate) free_bytes: u64,
    /// What it may use in all.
    pub(crate) capacity_bytes: u64,
}

/// What the engine has found.
pub(crate) fn measure(stats: &Stats) -> DiskUsage {
    let (used_bytes, free_bytes) = (stats.disk.used_bytes, stats.disk.free_bytes);
    DiskUsage { used_bytes, free_bytes, capacity_bytes: used_bytes.saturating_add(free_bytes) }
}
