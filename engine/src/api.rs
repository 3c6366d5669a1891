//! What operations take and answer: plain values without behaviour.
//!
//! Invariant: an answer that carries an `lsn` must not be passed on before that LSN is durable
//! (see [`Engine::wait_durable`](crate::Engine::wait_durable)).

use crate::types::{CheckpointId, InstanceId, KeyRange, Lsn, Revision, ShardId};

/// When a write applies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Condition {
    /// Always.
    #[default]
    None,
    /// Only if the key is missing.
    IfAbsent,
    /// Only if the key is there.
    IfPresent,
    /// Only if the key is there with this value.
    IfValueEquals(Vec<u8>),
}

/// What a put or delete did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Whether the condition held. True without a condition.
    pub applied: bool,
    /// Whether the key was there before.
    pub existed: bool,
    /// The value that made the condition fail; `None` also when the key is missing.
    pub current: Option<Vec<u8>>,
    /// Durable once the log is durable up to here. Do not pass the answer on before.
    pub lsn: Lsn,
}

/// One operation of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Sets a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Removes a key; a missing one is fine.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
}

/// The answer of a read that does not block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TryGet {
    /// The value, or `None` for a missing key.
    Ready(Option<Vec<u8>>),
    /// The value is on disk only: ask again from a thread that may block.
    Cold,
    /// The newest value is not durable yet: await this LSN, then ask again.
    Pending(Lsn),
}

/// What to scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanOptions {
    /// The keys.
    pub range: KeyRange,
    /// From the end down.
    pub reverse: bool,
    /// Most entries; 0 = no limit.
    pub limit: usize,
    /// Without values.
    pub keys_only: bool,
    /// The chunk ends after the entry that reaches this many bytes of keys and values; 0 = 1 MiB.
    pub max_bytes: usize,
}

/// A part of a scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanChunk {
    /// In key order, or in reverse. With `keys_only` the values are empty.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Forward: `[start, covered_to)` has been delivered (empty = to the end). Reverse:
    /// `[covered_to, end)` has been delivered.
    pub covered_to: Vec<u8>,
    /// Whether the whole range, or `limit`, has been delivered.
    pub done: bool,
}

/// What a bounded delete of a range did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeDeleted {
    /// Keys removed by this call.
    pub deleted: u64,
    /// `[start, covered_to)` holds none of the keys that it held at the call (empty = to the end).
    pub covered_to: Vec<u8>,
    /// Whether the whole range is covered.
    pub done: bool,
    /// See [`Written::lsn`].
    pub lsn: Lsn,
}

/// A checksum that does not depend on order or on how the data is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checksum {
    /// Exclusive or of `xxh3_64(u32le key length ++ key ++ value)`, seed 0, of every entry.
    pub checksum: u64,
    /// Entries.
    pub count: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// A shard of this engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardInfo {
    /// The cluster's id of the range.
    pub id: ShardId,
    /// The local copy.
    pub instance: InstanceId,
    /// The keys.
    pub range: KeyRange,
    /// The epoch under which it was given to this engine.
    pub epoch: u64,
    /// The last revision handed out.
    pub revision: Revision,
    /// Live keys in the sorted region (tombstones that await a reorganize not counted), plus
    /// entries of the append region: an estimate of the number of keys.
    pub keys: u64,
    /// Entries of the append region.
    pub append_entries: u64,
    /// Allocated bytes of the value log that its entries point to; an estimate after a split,
    /// until the next open.
    pub live_bytes: u64,
}

/// Cuts a shard in two at a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SplitShard {
    /// Who asks, so that asking again is harmless: never used for anything else. 0 = nobody will
    /// ask about the outcome, and none is kept.
    pub operation: u64,
    /// The shard.
    pub shard: ShardId,
    /// The first key of the right part; strictly inside the shard's range.
    pub key: Vec<u8>,
    /// The id of the part before `key`: a new one.
    pub left: ShardId,
    /// The id of the part from `key` on: a new one.
    pub right: ShardId,
    /// The epoch of both parts; above the shard's.
    pub epoch: u64,
}

/// Makes one shard of two neighbours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MergeShards {
    /// As in [`SplitShard::operation`].
    pub operation: u64,
    /// The shard with the lesser keys.
    pub left: ShardId,
    /// The shard whose range begins where the left one's ends.
    pub right: ShardId,
    /// The id of the result: a new one.
    pub merged: ShardId,
    /// Its epoch; above both shards'.
    pub epoch: u64,
}

/// How an operation on shards has ended here, for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperationOutcome {
    /// It was executed, durably.
    Done,
    /// It was refused, durably: it can never be executed here.
    Refused {
        /// Why, as whoever refused it said.
        reason: String,
    },
}

/// A shard that has outgrown the limits of the options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SplitCandidate {
    /// The shard.
    pub shard: ShardId,
    /// Bytes of its live records, an estimate.
    pub bytes: u64,
    /// Its entries, an estimate.
    pub entries: u64,
    /// A key that halves its bytes; `None`: no key splits it.
    pub key: Option<Vec<u8>>,
}

/// Who a data directory belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// Made once for the directory; never 0.
    pub node_id: u64,
    /// 0 until the directory has joined a cluster.
    pub cluster_id: u64,
    /// The cluster's generation that the directory follows.
    pub generation: u64,
    /// How often the directory has been opened.
    pub boot: u64,
    /// The highest map version that the node has applied.
    pub map_version: u64,
}

/// What a checkpoint did, and how long each phase took, in microseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckpointReport {
    /// Its number; 0 = none yet.
    pub id: CheckpointId,
    /// Replay begins here now.
    pub lsn: Lsn,
    /// All of it.
    pub duration_us: u64,
    /// Freezing the dirty shards.
    pub freeze_us: u64,
    /// Ending the value log's tail.
    pub base_us: u64,
    /// Waiting for the log.
    pub wait_durable_us: u64,
    /// Syncing the value log.
    pub sync_values_us: u64,
    /// Merging, and writing index files.
    pub write_index_us: u64,
    /// Committing the manifest.
    pub manifest_us: u64,
    /// Recycling log and value segments.
    pub recycle_us: u64,
    /// Bytes of index files written: what changed since the last checkpoint, and whole shards now
    /// and then.
    pub index_bytes: u64,
}

/// What a verification found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerifyReport {
    /// Records (and inline entries) examined.
    pub records: u64,
    /// Bytes of keys and values examined.
    pub bytes: u64,
    /// One line for each fault, naming file and offset.
    pub problems: Vec<String>,
}

/// What to defragment. The default suits a call by hand: the engine's own threshold, no limit.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DefragmentOptions {
    /// Empty segments of which at least this part is dead, from 0 to 1; 0 = the engine's own.
    pub min_dead_ratio: f64,
    /// Copy at most about this many bytes; 0 = no limit.
    pub max_bytes: u64,
}

/// What a defragment is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DefragmentStep {
    /// Looking for what is live in the chosen segments.
    #[default]
    Walk,
    /// Reading it.
    Read,
    /// Writing and syncing the copies.
    Write,
    /// Letting the index point to the copies, which are durable.
    Repoint,
    /// A batch is done.
    Done,
}

/// How far a defragment has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DefragmentProgress {
    /// What it is at.
    pub step: DefragmentStep,
    /// Segments dealt with.
    pub segments_done: u64,
    /// Segments chosen so far, those dealt with included.
    pub segments_chosen: u64,
    /// Bytes read from segments.
    pub bytes_read: u64,
    /// Bytes of records moved.
    pub bytes_moved: u64,
    /// Bytes read, written and examined since the last call: what a throttle counts.
    pub step_bytes: u64,
}

/// Whether a job goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Continue {
    /// It does.
    Yes,
    /// It ends as soon as it can, with what it has done so far.
    No,
}

/// What a defragment did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DefragmentReport {
    /// Segments emptied: free with the next checkpoint.
    pub segments: u64,
    /// Records moved.
    pub records_moved: u64,
    /// Bytes of those.
    pub bytes_moved: u64,
    /// Bytes read from segments.
    pub bytes_read: u64,
    /// Bytes that were dead in the segments emptied.
    pub bytes_freed: u64,
    /// Records that changed meanwhile, or had to stay for the time being.
    pub records_skipped: u64,
    /// One line for each record that could not be read, naming file and offset; at most 100.
    pub problems: Vec<String>,
    /// Whether the caller ended it.
    pub cancelled: bool,
    /// Whether it ended early because its copies would take space that is kept for others, or more
    /// than dead records may take. Of putting records in order only.
    pub short_of_space: bool,
    /// How long it took, in microseconds.
    pub duration_us: u64,
}
