//! The part of the configuration that is about the storage engine.
//!
//! Invariants: what is not named here keeps the engine's own default; shards are made only when a
//! router says so ([`vmemkv_engine::Sharding::Managed`]).

use serde::{Deserialize, Serialize};
use vmemkv_engine::{Options, Sharding};

/// How values are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Only what a crash cannot take back.
    #[default]
    Durable,
    /// Whatever has been applied.
    Applied,
}

/// The storage engine's options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// A filter in front of the sorted region: makes reads of missing keys cheap.
    pub bloom: bool,
    /// Values of at most 8 bytes live in the index.
    pub inline: bool,
    /// How values are read: adaptive, random or sequential.
    pub read_policy: ReadPolicy,
    /// What a read may show: durable or applied.
    pub visibility: Visibility,
    /// Size of a segment of the write-ahead log, bytes.
    pub wal_segment_bytes: u64,
    /// Size of the ring between writers and the log, bytes; a power of two.
    pub wal_ring_bytes: usize,
    /// Size of a segment of the value log, bytes.
    pub value_segment_bytes: u64,
    /// Address space reserved for the value log, bytes.
    pub value_log_max_bytes: u64,
    /// The data directory behaves as a disk of this size, bytes. Unset: the disk that it is on.
    pub capacity_bytes: Option<u64>,
    /// Most entries of a shard's append region before its writers wait.
    pub append_capacity: usize,
    /// A shard with more bytes of live records is due for a split.
    pub shard_max_bytes: u64,
    /// A shard with more entries is due for a split.
    pub shard_max_entries: u64,
    /// Most memory of the index, bytes; beyond it new keys are refused. Left out: what the control
    /// group of the process, or the machine, leaves for it.
    pub memory_budget_bytes: Option<u64>,
    /// A checkpoint begins when the log since the last one is longer than this, bytes.
    pub checkpoint_wal_bytes: u64,
    /// Most bytes of log that are kept behind the checkpoint for readers of changes that lag.
    pub wal_keep_bytes: u64,
    /// Values of at least this many bytes are written once, to the value log, and the log refers to
    /// them; on a disk that is almost full, smaller ones too. 0: none, ever.
    pub write_once_bytes: usize,
    /// Reorganize, checkpoint and defragment by themselves. Off: only by call.
    pub background: bool,
    /// Threads for reorganize and checkpoint.
    pub job_threads: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let options = Options::default();
        Self {
            bloom: options.bloom,
            inline: options.inline,
            read_policy: ReadPolicy::default(),
            visibility: Visibility::default(),
            wal_segment_bytes: options.wal_segment_bytes,
            wal_ring_bytes: options.wal_ring_bytes,
            value_segment_bytes: options.value_segment_bytes,
            value_log_max_bytes: options.value_log_max_bytes,
            capacity_bytes: options.capacity_bytes,
            append_capacity: options.append_capacity,
            shard_max_bytes: options.shard_max_bytes,
            shard_max_entries: options.shard_max_entries,
            memory_budget_bytes: options.memory_budget_bytes,
            checkpoint_wal_bytes: options.checkpoint_wal_bytes,
            wal_keep_bytes: options.wal_keep_bytes,
            write_once_bytes: options.write_once_bytes,
            background: options.background,
            job_threads: options.job_threads,
        }
    }
}

impl EngineConfig {
    /// The engine's own form.
    pub fn to_options(&self) -> Options {
        Options {
            bloom: self.bloom,
            inline: self.inline,
            read_policy: match self.read_policy {
                ReadPolicy::Adaptive => vmemkv_engine::ReadPolicy::Adaptive,
                ReadPolicy::Random => vmemkv_engine::ReadPolicy::Random,
                ReadPolicy::Sequential => vmemkv_engine::ReadPolicy::Sequential,
            },
            visibility: match self.visibility {
                Visibility::Durable => vmemkv_engine::Visibility::Durable,
                Visibility::Applied => vmemkv_engine::Visibility::Applied,
            },
            sharding: Sharding::Managed,
            create: true,
            wal_segment_bytes: self.wal_segment_bytes,
            wal_ring_bytes: self.wal_ring_bytes,
            value_segment_bytes: self.value_segment_bytes,
            value_log_max_bytes: self.value_log_max_bytes,
            capacity_bytes: self.capacity_bytes,
            append_capacity: self.append_capacity,
            shard_max_bytes: self.shard_max_bytes,
            shard_max_entries: self.shard_max_entries,
            memory_budget_bytes: self.memory_budget_bytes,
            checkpoint_wal_bytes: self.checkpoint_wal_bytes,
            wal_keep_bytes: self.wal_keep_bytes,
            write_once_bytes: match self.write_once_bytes {
                0 => usize::MAX,
                bytes => bytes,
            },
            background: self.background,
            job_threads: self.job_threads,
            ..Options::default()
        }
    }
}
