//! The handle.
use std::path::Path;
use std::sync::Arc;

use crate::api::*;
use crate::error::Result;
use crate::io::Disk;
use crate::options::Options;
use crate::stats::Stats;
use crate::types::*;

/// An open engine. Cheap to share behind an `Arc`; closing is dropping the last one.
pub struct Engine {}

impl Engine {
    /// Opens a directory (makes it with `options.create`) and recovers what the last process left.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Engine> {
        unreachable!("skeleton")
    }
    /// The same on any [`Disk`].
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Engine> {
        unreachable!("skeleton")
    }
    /// Flushes the log, makes a checkpoint and closes. Dropping instead is as safe, only the next open replays.
    pub fn close(self) -> Result<()> {
        unreachable!("skeleton")
    }

    /// The directory's identity.
    pub fn identity(&self) -> Identity {
        unreachable!("skeleton")
    }
    /// Stores cluster id, generation and map version, durably. node_id and boot are kept.
    pub fn set_identity(&self, identity: Identity) -> Result<()> {
        unreachable!("skeleton")
    }

    /// The shards, in key order.
    pub fn shards(&self) -> Vec<ShardInfo> {
        unreachable!("skeleton")
    }
    /// Makes an empty shard (Sharding::Managed), durably. The same id, range and epoch again is a no-op.
    pub fn create_shard(&self, id: ShardId, range: KeyRange, epoch: u64) -> Result<()> {
        unreachable!("skeleton")
    }

    /// The value of a key, durable. Blocks for disk and log.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        unreachable!("skeleton")
    }
    /// The same without ever blocking.
    pub fn try_get(&self, key: &[u8]) -> Result<TryGet> {
        unreachable!("skeleton")
    }
    /// Sets a key.
    pub fn put(&self, key: &[u8], value: &[u8], condition: &Condition) -> Result<Written> {
        unreachable!("skeleton")
    }
    /// Removes a key.
    pub fn delete(&self, key: &[u8], condition: &Condition) -> Result<Written> {
        unreachable!("skeleton")
    }
    /// All or nothing, one log record; in order, the last operation on a key wins.
    pub fn write_batch(&self, operations: &[Operation]) -> Result<Lsn> {
        unreachable!("skeleton")
    }
    /// Removes at most `max_keys` keys from the front of the range.
    pub fn delete_range(&self, range: &KeyRange, max_keys: usize) -> Result<RangeDeleted> {
        unreachable!("skeleton")
    }
    /// The next part of a scan; blocks for disk and log.
    pub fn scan(&self, options: &ScanOptions) -> Result<ScanChunk> {
        unreachable!("skeleton")
    }
    /// Checksum of a range; `cancelled` is asked between chunks, true ends with Unavailable.
    pub fn checksum(&self, range: &KeyRange, cancelled: &dyn Fn() -> bool) -> Result<Checksum> {
        unreachable!("skeleton")
    }

    /// Blocks until the log is durable up to `lsn`; ReadOnly if it never will be.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<()> {
        unreachable!("skeleton")
    }
    /// Calls `done` once, from any thread (perhaps before this returns), when `wait_durable(lsn)` would return. Must not block.
    pub fn on_durable(&self, lsn: Lsn, done: Box<dyn FnOnce(Result<()>) + Send>) {
        unreachable!("skeleton")
    }
    /// The log is durable up to here.
    pub fn durable_lsn(&self) -> Lsn {
        unreachable!("skeleton")
    }

    /// Merges the append regions of all shards (or one) into sorted ones.
    pub fn reorganize(&self, shard: Option<ShardId>) -> Result<()> {
        unreachable!("skeleton")
    }
    /// Makes a checkpoint.
    pub fn checkpoint(&self) -> Result<()> {
        unreachable!("skeleton")
    }
    /// Reads every record and checks it; see VerifyReport.
    pub fn verify(&self, cancelled: &dyn Fn() -> bool) -> Result<VerifyReport> {
        unreachable!("skeleton")
    }
    /// Statistics.
    pub fn stats(&self) -> Stats {
        unreachable!("skeleton")
    }
}
