//! Every size, limit and switch of the engine, and how they relate.
//!
//! Invariants (checked by [`Options::validate`], which names the option at fault): a WAL segment
//! holds the largest record; the ring holds two; a value-log segment holds the largest record.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::KeyRange;

/// Longest key in bytes; the shortest is 1.
pub const MAX_KEY_BYTES: usize = 4096;
/// Longest value in bytes; a value may be empty.
pub const MAX_VALUE_BYTES: usize = 8 << 20;
/// Most operations of one [`write_batch`](crate::Engine::write_batch).
pub const MAX_BATCH_OPERATIONS: usize = 4096;
/// Most bytes (keys and values) of one batch of more than one operation.
pub const MAX_BATCH_BYTES: usize = 4 << 20;
/// A value of at most this many bytes is kept in the index.
pub const MAX_INLINE_BYTES: usize = 8;

/// Smallest [`capacity_bytes`](Options::capacity_bytes): a few segments, and the reserves.
pub const MIN_CAPACITY_BYTES: u64 = 64 << 20;

/// Smallest [`write_once_bytes`](Options::write_once_bytes): what refers to a value is not larger.
pub const MIN_WRITE_ONCE_BYTES: usize = 64;

/// How values are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadPolicy {
    /// By size, operation and residency.
    #[default]
    Adaptive,
    /// Always by the random-access mapping.
    Random,
    /// Always by the sequential mapping.
    Sequential,
}

/// What a read may show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Visibility {
    /// Only what a crash cannot take back.
    #[default]
    Durable,
    /// Whatever has been applied.
    Applied,
}

/// Who makes shards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sharding {
    /// The engine: a new directory gets one shard for each range between these keys (none: one
    /// shard for everything).
    Alone {
        /// Keys at which the key space is cut, ascending.
        boundaries: Vec<Vec<u8>>,
    },
    /// Somebody else, with [`create_shard`](crate::Engine::create_shard): a new directory has
    /// none.
    Managed,
}

impl Default for Sharding {
    fn default() -> Self {
        Self::Alone { boundaries: Vec::new() }
    }
}

/// The engine's options. `Options::default()` suits production; `Options::for_tests()` makes
/// every limit small, so that each is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A filter in front of the sorted region.
    pub bloom: bool,
    /// Values of at most [`MAX_INLINE_BYTES`] live in the index.
    pub inline: bool,
    /// How values are read.
    pub read_policy: ReadPolicy,
    /// What a read may show.
    pub visibility: Visibility,
    /// Who makes shards.
    pub sharding: Sharding,
    /// A shard that holds more bytes of live records is due for a split. Alone, the engine splits
    /// it; managed, it names it in [`split_candidates`](crate::Engine::split_candidates).
    pub shard_max_bytes: u64,
    /// The same for entries of its index.
    pub shard_max_entries: u64,
    /// Two neighbours that hold less than a quarter of both limits together are merged (alone
    /// only), when neither has been made within this time.
    pub shard_merge_after: Duration,
    /// Make the directory when it is missing.
    pub create: bool,
    /// Size of a WAL segment in bytes.
    pub wal_segment_bytes: u64,
    /// Size of the ring between writers and the log, in bytes; a power of two.
    pub wal_ring_bytes: usize,
    /// Size of a value-log segment in bytes.
    pub value_segment_bytes: u64,
    /// Address space reserved for the value log, in bytes.
    pub value_log_max_bytes: u64,
    /// The directory behaves as a disk of this size, in bytes; `None`: the disk that it is on.
    /// Segments, and the log between two checkpoints, get smaller with a small disk.
    pub capacity_bytes: Option<u64>,
    /// Most entries of one append region before writers of that shard wait.
    pub append_capacity: usize,
    /// Most memory of all indexes in bytes; beyond it inserts of new keys are refused. `None`: what
    /// the control groups of the process, or the machine, leave for it.
    pub memory_budget_bytes: Option<u64>,
    /// A checkpoint begins when the log since the last one is longer than this, in bytes.
    pub checkpoint_wal_bytes: u64,
    /// Most bytes of log that are kept behind the checkpoint, for readers of
    /// [changes](crate::Engine::changes_since) that lag, over restarts too. Given up, oldest
    /// first, when the log needs room on a full disk.
    pub wal_keep_bytes: u64,
    /// Values of at least this many bytes are written once, to the value log, and the log refers to
    /// them: half of the bytes, and one more sync for each group of writes meanwhile. On a disk that is
    /// almost full, smaller ones too. `usize::MAX`: none, ever.
    pub write_once_bytes: usize,
    /// Reorganize, checkpoint and defragment by themselves. Off: only by call.
    pub background: bool,
    /// Threads for reorganize and checkpoint.
    pub job_threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bloom: true,
            inline: true,
            read_policy: ReadPolicy::Adaptive,
            visibility: Visibility::Durable,
            sharding: Sharding::default(),
            // Small enough that a merge of one touches little and many checkpoints skip most of
            // them; large enough that a terabyte of values needs no more than some ten thousand.
            shard_max_bytes: 64 << 20,
            shard_max_entries: 256 << 10,
            shard_merge_after: Duration::from_secs(600),
            create: true,
            wal_segment_bytes: 64 << 20,
            wal_ring_bytes: 32 << 20,
            value_segment_bytes: 64 << 20,
            value_log_max_bytes: 4 << 40,
            capacity_bytes: None,
            append_capacity: 1 << 20,
            memory_budget_bytes: None,
            checkpoint_wal_bytes: 512 << 20,
            wal_keep_bytes: 256 << 20,
            write_once_bytes: 64 << 10,
            background: true,
            job_threads: 1,
        }
    }
}

impl Options {
    /// Small limits, no background jobs: every boundary is met within a few hundred operations.
    pub fn for_tests() -> Self {
        Self {
            wal_segment_bytes: 64 << 10,
            wal_ring_bytes: 32 << 20,
            value_segment_bytes: 16 << 20,
            value_log_max_bytes: 4 << 30,
            append_capacity: 1 << 13,
            checkpoint_wal_bytes: 1 << 20,
            wal_keep_bytes: 256 << 10,
            write_once_bytes: 600,
            background: false,
            ..Self::default()
        }
    }

    /// No bloom filter, no inline values: the seeds' baseline.
    pub fn baseline() -> Self {
        Self { bloom: false, inline: false, ..Self::default() }
    }

    /// Checks the options against each other; the error names the option and the limit.
    pub fn validate(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(what));
        // With the header page of a segment and the header of a record.
        let largest = (MAX_KEY_BYTES + MAX_VALUE_BYTES + 8192) as u64;
        if self.wal_segment_bytes < 16 << 10 {
            return wrong("wal_segment_bytes must be at least 16 KiB".into());
        }
        if !self.wal_ring_bytes.is_power_of_two() || (self.wal_ring_bytes as u64) < 2 * largest {
            return wrong(format!(
                "wal_ring_bytes must be a power of two of at least {}",
                2 * largest
            ));
        }
        if self.value_segment_bytes < largest || !self.value_segment_bytes.is_multiple_of(4096) {
            return wrong(format!(
                "value_segment_bytes must be whole pages and at least {largest}"
            ));
        }
        if self.value_log_max_bytes < 4 * self.value_segment_bytes {
            return wrong("value_log_max_bytes must hold at least four value segments".into());
        }
        if self.capacity_bytes.is_some_and(|bytes| bytes < MIN_CAPACITY_BYTES) {
            return wrong(format!("capacity_bytes must be at least {MIN_CAPACITY_BYTES}"));
        }
        if self.append_capacity < 2 * MAX_BATCH_OPERATIONS {
            return wrong(format!("append_capacity must be at least {}", 2 * MAX_BATCH_OPERATIONS));
        }
        if self.shard_max_bytes < 4096 {
            return wrong("shard_max_bytes must be at least 4096".into());
        }
        if self.shard_max_entries < 16 {
            return wrong("shard_max_entries must be at least 16".into());
        }
        if self.memory_budget_bytes == Some(0) {
            return wrong(
                "memory_budget_bytes must be at least 1; leave it out for all there is".into(),
            );
        }
        if self.write_once_bytes < MIN_WRITE_ONCE_BYTES {
            return wrong(format!("write_once_bytes must be at least {MIN_WRITE_ONCE_BYTES}"));
        }
        if self.job_threads == 0 {
            return wrong("job_threads must be at least 1".into());
        }
        if let Sharding::Alone { boundaries } = &self.sharding {
            let empty = boundaries.iter().any(Vec::is_empty);
            if empty || boundaries.windows(2).any(|pair| pair[0] >= pair[1]) {
                return wrong(
                    "sharding boundaries must be non-empty and strictly ascending".into(),
                );
            }
        }
        Ok(())
    }

    /// The ranges that a new directory's shards get.
    pub(crate) fn initial_ranges(&self) -> Vec<KeyRange> {
        let Sharding::Alone { boundaries } = &self.sharding else { return Vec::new() };
        let mut start = Vec::new();
        let mut ranges = Vec::with_capacity(boundaries.len() + 1);
        for boundary in boundaries {
            ranges.push(KeyRange::new(
                std::mem::replace(&mut start, boundary.clone()),
                boundary.clone(),
            ));
        }
        ranges.push(KeyRange::new(start, Vec::new()));
        ranges
    }
}
