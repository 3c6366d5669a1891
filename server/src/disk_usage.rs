//! How much disk the data directory uses, and how much it may use.
//!
//! Invariant: an estimate from the engine's segments and the file system's free space, without a
//! walk over the directory.

use std::path::Path;

use vmemkv_engine::Stats;

use crate::config::EngineConfig;

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

/// Measures the file system of `dir`.
pub(crate) fn measure(dir: &Path, stats: &Stats, config: &EngineConfig) -> DiskUsage {
    let value_segments = stats.value_log.segments + stats.value_log.free_segments;
    let log_segments = stats.wal.segments + stats.wal.recycled_segments;
    let used_bytes = value_segments * config.value_segment_bytes
        + log_segments * config.wal_segment_bytes
        + stats.counters.checkpoint_index_bytes.min(stats.index.memory_bytes);
    let free_bytes =
        rustix::fs::statvfs(dir).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    DiskUsage { used_bytes, free_bytes, capacity_bytes: used_bytes.saturating_add(free_bytes) }
}
