//! What the engine counts, and the snapshot that callers get.
//!
//! Invariant: counters only rise; a snapshot reads each of them once, without a common instant.

use crate::api::CheckpointReport;
use crate::types::Lsn;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The live counters. Each is a relaxed atomic: nothing is ordered by them.
        #[derive(Default)]
        pub(crate) struct Counters { $($(#[$doc])* pub(crate) $name: AtomicU64),* }

        /// The counters at one moment, since the engine was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterValues { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> CounterValues {
                CounterValues { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}

counters! {
    /// Keys set (applied), batches included.
    puts,
    /// Of those, keys that were not there before.
    inserts,
    /// Keys removed (applied), batches and ranges included.
    deletes,
    /// Conditional writes whose condition did not hold.
    conditions_failed,
    /// Values overwritten where they are.
    updates_in_place,
    /// Keys set whose value was written to the value log only.
    puts_once,
    /// Reads that found a key.
    gets_hit,
    /// Reads of a missing key.
    gets_miss,
    /// Reads that waited for the log.
    reads_waited,
    /// Scan chunks.
    scan_chunks,
    /// Entries delivered by scans.
    scan_entries,
    /// Jumps of scans between records that lie apart, at which they waited for the disk: an
    /// estimate from samples.
    scan_cold_jumps,
    /// Reorganizes done.
    reorganizes,
    /// Time in reorganizes, in microseconds.
    reorganize_us,
    /// Shards split.
    shard_splits,
    /// Pairs of shards merged.
    shard_merges,
    /// Time in those splits and merges, in microseconds, until durable.
    shard_changes_us,
    /// Of that, time from the swap of the shards to the last stripe passed, in microseconds: what a
    /// writer may have felt.
    shard_pauses_us,
    /// Checkpoints committed.
    checkpoints,
    /// Checkpoints that failed.
    checkpoints_failed,
    /// Time in checkpoints, in microseconds.
    checkpoint_us,
    /// Bytes of index files written.
    checkpoint_index_bytes,
    /// Writes that waited for room in an append region.
    stalls_append,
    /// Microseconds of those waits.
    stalls_append_us,
    /// Writers slowed because their append region fills up while the one before is being merged.
    slowed_append,
    /// Microseconds of those pauses.
    slowed_append_us,
    /// Inserts of new keys refused for want of memory.
    memory_refusals,
    /// Reorganizes that were asked for because the shard is being scanned, or memory is short.
    reorganizes_early,
    /// Value-log records read whose checksum was wrong.
    corrupt_reads,
    /// Segments of the value log freed.
    value_segments_freed,
    /// Puts that were slowed down because the disk was nearly full.
    stalls_disk,
    /// Microseconds of those, and of waits for space.
    stalls_disk_us,
    /// Puts that were slowed down because dead space was not reclaimed as fast as it came to be.
    stalls_debt,
    /// Microseconds of those.
    stalls_debt_us,
    /// Writes refused because the disk was down to its reserve.
    refused_disk,
    /// Defragment cycles done: calls and background ones.
    defragments,
    /// Time in them, in microseconds, pauses included.
    defragment_us,
    /// Bytes that they read from segments.
    defragment_read_bytes,
    /// Records that they moved.
    defragment_records,
    /// Bytes of those.
    defragment_copied_bytes,
    /// Records that changed while they were copied, or had to stay for the time being.
    defragment_skipped,
    /// Records that could not be read, and stay where they are.
    defragment_bad_records,
    /// Segments that they emptied.
    defragment_segments,
    /// Bytes that were dead in those.
    defragment_freed_bytes,
    /// Times that records were put in key order: calls, and shards in the background.
    order_runs,
    /// Time in those, in microseconds, pauses included.
    order_us,
    /// Of the records that defragments moved, those that were put in order.
    order_records,
    /// Bytes of those.
    order_bytes,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// Whether the engine takes writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// All is well.
    Healthy,
    /// No writes until it is reopened.
    ReadOnly {
        /// Why.
        reason: String,
    },
    /// Puts are refused until space returns.
    DiskFull,
    /// Inserts are refused until memory returns.
    MemoryFull,
}

/// The log, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalStats {
    /// The log is needed from here.
    pub checkpoint_lsn: Lsn,
    /// Durable up to here.
    pub durable_lsn: Lsn,
    /// Reserved up to here.
    pub appended_lsn: Lsn,
    /// Records made durable.
    pub records: u64,
    /// Syncs of log segments; `records / fsyncs` is the group size.
    pub fsyncs: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Segments that hold the log.
    pub segments: u64,
    /// Segments kept behind the checkpoint for readers of changes.
    pub kept_segments: u64,
    /// Segments kept for reuse.
    pub recycled_segments: u64,
    /// Bytes of disk of all segments, those kept for reuse included.
    pub disk_bytes: u64,
    /// Writers that waited for room in the ring.
    pub stalls: u64,
}

/// The value log, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueLogStats {
    /// Segments in use.
    pub segments: u64,
    /// Segments kept for reuse.
    pub free_segments: u64,
    /// Immutable bytes.
    pub base_bytes: u64,
    /// Bytes still rebuilt from the log after a crash.
    pub tail_bytes: u64,
    /// Bytes that the index points to.
    pub live_bytes: u64,
    /// Bytes that nothing points to.
    pub dead_bytes: u64,
    /// Bytes of disk of all segments, those kept for reuse included.
    pub disk_bytes: u64,
}

/// The disk, when it was last looked at. All in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Its size, or the capacity given in the options; the highest number when it does not say.
    pub total_bytes: u64,
    /// Used by the directory's files: value log, log and index files.
    pub used_bytes: u64,
    /// Free, as the file system says.
    pub free_bytes: u64,
    /// Free, and in files that wait to be used again.
    pub available_bytes: u64,
    /// Below this much available, puts are refused.
    pub soft_reserve_bytes: u64,
    /// Of that: what is kept for deletes, defragment, checkpoints and restart.
    pub hard_reserve_bytes: u64,
    /// Below this much available, puts are slowed down.
    pub slow_below_bytes: u64,
    /// Index files of the last checkpoint.
    pub index_file_bytes: u64,
}

/// The indexes of all shards, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Shards.
    pub shards: u64,
    /// Entries of sorted regions.
    pub sorted_entries: u64,
    /// Entries of append regions, frozen ones included.
    pub append_entries: u64,
    /// Memory of the regions and filters in bytes.
    pub memory_bytes: u64,
    /// What they may take, in bytes: beyond it inserts of new keys are refused.
    pub budget_bytes: u64,
}

/// The engine's statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Whether writes are taken.
    pub state: State,
    /// What has been done since the open.
    pub counters: CounterValues,
    /// The log.
    pub wal: WalStats,
    /// The value log.
    pub value_log: ValueLogStats,
    /// The disk.
    pub disk: DiskStats,
    /// The indexes.
    pub index: IndexStats,
    /// The last checkpoint that was committed since the open.
    pub last_checkpoint: CheckpointReport,
    /// How long records were last put in order, in microseconds: a call, or a shard in the
    /// background.
    pub last_order_us: u64,
}
