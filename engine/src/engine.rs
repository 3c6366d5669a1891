//! The handle: what callers may do, and nothing of how.
//!
//! Invariants: everything acknowledged is durable; closing is dropping, only slower to open again
//! than [`Engine::close`]; when either has returned, no thread of the engine is left and the directory
//! is free (a drop in a callback of the log frees it after the callback).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::api::{
    CheckpointReport, Checksum, Condition, Continue, DefragmentOptions, DefragmentProgress,
    DefragmentReport, Identity, MergeShards, Operation, OperationOutcome, RangeDeleted, ScanChunk,
    ScanOptions, ShardInfo, SplitCandidate, SplitShard, TryGet, VerifyReport, Written,
};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::feed::{Changes, ChangesWait};
use crate::identity;
use crate::io::{Disk, OsDisk};
use crate::jobs::pace::{POLITE, Pace};
use crate::jobs::{Scheduler, close_elsewhere};
use crate::options::Options;
use crate::recovery;
use crate::stats::Stats;
use crate::sync::primitives::thread;
use crate::types::{KeyRange, Lsn, Revision, ShardId};
use crate::value_log::install_bus_error_handler;

/// An open data directory. Share it behind an [`Arc`]; every method takes `&self`.
///
/// A write returns the [`Lsn`] that it waits for: it is applied, but nobody sees it and it may
/// still be lost, until [`wait_durable`](Self::wait_durable) has returned for that LSN.
///
/// ```
/// # fn main() -> vmemkv_engine::Result<()> {
/// use vmemkv_engine::{Condition, Engine, Options};
///
/// let dir = tempfile::tempdir().expect("a temporary folder");
/// let engine = Engine::open(dir.path().join("data"), Options::default())?;
/// let written = engine.put(b"planet/mars", b"red", &Condition::None)?;
/// engine.wait_durable(written.lsn)?;
/// assert_eq!(engine.get(b"planet/mars")?, Some(b"red".to_vec()));
/// engine.close()
/// # }
/// ```
pub struct Engine {
    // Dropped first: its threads use the core.
    scheduler: Scheduler,
    pub(crate) core: Arc<Core>,
}

impl Engine {
    /// Opens a directory (makes it with `options.create`) and recovers what the last process
    /// left.
    ///
    /// # Errors
    /// `InUse` when a process has it open, `Foreign` when it is not ours or of a newer format,
    /// `Corrupt` when something that was durable is damaged; nothing is changed then.
    ///
    /// # Signals
    /// The first call in a process installs a handler of SIGBUS: when the drive cannot give a
    /// mapped page of the value log, it names file and offset on standard error and ends the process
    /// with [`EXIT_BUS_ERROR`](crate::EXIT_BUS_ERROR). Every other SIGBUS goes to the handler of
    /// before.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Engine> {
        let dir = dir.as_ref();
        install_bus_error_handler();
        let engine = Self::open_on(Arc::new(OsDisk::new(dir)), options)?;
        // The directory's own name is durable only with its parent.
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        std::fs::File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(|error| Error::io("sync", parent, &error))?;
        Ok(engine)
    }

    /// The same on any [`Disk`].
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Engine> {
        let core = Arc::new(recovery::open(disk, options)?);
        Ok(Engine { scheduler: Scheduler::start(&core)?, core })
    }

    /// Makes a checkpoint and closes. Dropping instead is as safe; only the next open replays.
    ///
    /// # Errors
    /// `Unavailable` in a callback, which must not wait for the log: the engine is dropped.
    pub fn close(mut self) -> Result<()> {
        if self.core.wal.is_flusher() {
            let what = "closing waits for the log, so a callback cannot: the engine was dropped, \
                        without a checkpoint";
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        self.scheduler.stop();
        self.core.checkpoint().map(drop)
    }

    /// Whose directory it is.
    pub fn identity(&self) -> Identity {
        *self.core.identity.lock()
    }

    /// Stores cluster id, generation and map version, durably. Node id and boot number are kept
    /// as they are. A failure after which nobody knows what a crash would leave makes the engine
    /// read-only.
    pub fn set_identity(&self, identity: Identity) -> Result<()> {
        let mut current = self.core.identity.lock();
        let identity = Identity { node_id: current.node_id, boot: current.boot, ..identity };
        if identity != *current {
            self.core.check_writable()?;
            identity::store(&*self.core.disk, &identity).inspect_err(|error| {
                // A full disk fails before the rename: nothing has changed.
                if error.kind() != ErrorKind::DiskFull {
                    let why =
                        format!("the identity could not be stored: {error}; reopen the engine");
                    self.core.wal.poison(&why);
                }
            })?;
            *current = identity;
        }
        Ok(())
    }

    /// The shards, in key order.
    pub fn shards(&self) -> Vec<ShardInfo> {
        self.core.shard_infos()
    }

    /// Makes an empty shard, durably (for [`Sharding::Managed`](crate::Sharding)). The same id,
    /// range and epoch again is a no-op; an overlap is `InvalidArgument`.
    pub fn create_shard(&self, id: ShardId, range: &KeyRange, epoch: u64) -> Result<()> {
        self.core.create_shard(id, range, epoch)
    }

    /// Cuts a shard in two, online and durably; writers see a freeze, never a copy. The same
    /// operation again is a no-op.
    ///
    /// # Errors
    /// `InvalidArgument` when the shard is not here, `key` does not cut its range in two, an id is
    /// taken or the epoch is not above the shard's; `Refused` after
    /// [`refuse_operation`](Self::refuse_operation).
    pub fn split_shard(&self, split: &SplitShard) -> Result<Lsn> {
        self.core.split_shard(split)
    }

    /// Makes one shard of two neighbours, online and durably. Otherwise as
    /// [`split_shard`](Self::split_shard).
    pub fn merge_shards(&self, merge: &MergeShards) -> Result<Lsn> {
        self.core.merge_shards(merge)
    }

    /// A key that halves a shard's bytes, strictly inside its range; `None` when there is none (a
    /// shard of one key). Looks at samples of a large shard; goes over all of it where they show no
    /// two live keys.
    pub fn split_key(&self, shard: ShardId) -> Result<Option<Vec<u8>>> {
        self.core.split_key(shard)
    }

    /// The shards that have outgrown `shard_max_bytes` or `shard_max_entries`, each with the key to
    /// split it at, if there is one. One whose regions are being merged at the moment is left out: its
    /// size is not known. Looks at samples of large ones.
    pub fn split_candidates(&self) -> Vec<SplitCandidate> {
        self.core.split_candidates()
    }

    /// Refuses an operation on shards, durably: afterwards it can never be executed here. Again is
    /// a no-op; `AlreadyDone` when it was executed.
    pub fn refuse_operation(&self, operation: u64, reason: &str) -> Result<()> {
        self.core.refuse_operation(operation, reason)
    }

    /// How an operation on shards has ended here; `None` while it has not, or not durably, or when
    /// the outcome is forgotten. Kept over restarts: refusals until
    /// [`forget_operation`](Self::forget_operation), executions also no longer than 1,024 later
    /// ones.
    pub fn operation_outcome(&self, operation: u64) -> Option<OperationOutcome> {
        self.core.operation_outcome(operation)
    }

    /// The operations whose outcome is kept, ascending.
    pub fn ended_operations(&self) -> Vec<u64> {
        self.core.ended_operations()
    }

    /// Forgets an outcome, durably: nobody will ask for this operation again.
    pub fn forget_operation(&self, operation: u64) -> Result<()> {
        self.core.forget_operation(operation)
    }

    /// The value of a key, durable. May wait for disk and log.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.core.get(key)
    }

    /// The same without waiting: answers, or says what it would wait for.
    pub fn try_get(&self, key: &[u8]) -> Result<TryGet> {
        self.core.try_get(key)
    }

    /// Sets a key. A condition that does not hold is an answer, not an error.
    pub fn put(&self, key: &[u8], value: &[u8], condition: &Condition) -> Result<Written> {
        self.core.put(key, value, condition)
    }

    /// Removes a key.
    pub fn delete(&self, key: &[u8], condition: &Condition) -> Result<Written> {
        self.core.delete(key, condition)
    }

    /// Applies all operations or none, also over a crash; the last operation on a key wins.
    pub fn write_batch(&self, operations: &[Operation]) -> Result<Lsn> {
        self.core.write_batch(operations)
    }

    /// Removes at most `max_keys` keys (at least one is tried) from the front of the range.
    pub fn delete_range(&self, range: &KeyRange, max_keys: usize) -> Result<RangeDeleted> {
        self.core.delete_range(range, max_keys)
    }

    /// The next part of a scan; keys that no shard of this engine holds are passed over. May wait
    /// for disk and log.
    pub fn scan(&self, options: &ScanOptions) -> Result<ScanChunk> {
        self.core.scan(options)
    }

    /// Checksum of a range; `cancelled` is asked between chunks and ends it with `Unavailable`.
    pub fn checksum(&self, range: &KeyRange, cancelled: &dyn Fn() -> bool) -> Result<Checksum> {
        self.core.checksum(range, cancelled)
    }

    /// Waits until the log is durable up to `lsn`; `ReadOnly` if it never will be,
    /// `InvalidArgument` if it is no LSN of this log.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<()> {
        self.core.wal.wait(lsn)
    }

    /// Calls `done` once, from any thread and perhaps before this returns, when
    /// [`wait_durable`](Self::wait_durable) would return. It must not block.
    pub fn on_durable(&self, lsn: Lsn, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.core.wal.on_durable(lsn, done);
    }

    /// The log is durable up to here.
    pub fn durable_lsn(&self) -> Lsn {
        self.core.wal.durable_lsn()
    }

    /// The log is kept from here: what lies below has been recycled.
    pub fn oldest_lsn(&self) -> Lsn {
        self.core.wal.oldest_lsn()
    }

    /// The changes of a range that lies within one shard, durable ones only, after a position: in
    /// order, complete, each key as often as it changed. The answer ends with the log record that
    /// reaches `max_bytes` of keys and values (0 = 1 MiB), so a batch is never cut in two; it has
    /// at least one record if there is one. Position 0 is before everything; ask with
    /// [`Changes::next`] for more.
    ///
    /// A position belongs to a range. After a split it goes on for the parts of the range that the
    /// children hold; after a merge, for the range that it was of. It survives restarts.
    ///
    /// # Errors
    /// `TooOld` names the oldest position that is served: what comes after an older one is not in
    /// the log any more (see [`Options::wal_keep_bytes`]), or it is from before the shard was made
    /// or merged. `NotServed` if no shard holds all of the range: ask for the part in each.
    /// `InvalidArgument` for a position that the shard has not reached.
    pub fn changes_since(
        &self,
        range: &KeyRange,
        after: Revision,
        max_bytes: usize,
    ) -> Result<Changes> {
        self.core.changes_since(range, after, max_bytes)
    }

    /// Waits until [`changes_since`](Self::changes_since) may have something for this position
    /// (seldom, it is called for nothing), or for `timeout`: whether it may.
    ///
    /// # Errors
    /// `ReadOnly` and `Unavailable` when nothing will become durable any more.
    pub fn wait_changes(
        &self,
        range: &KeyRange,
        after: Revision,
        timeout: Duration,
    ) -> Result<bool> {
        self.core.wait_changes(range, after, timeout)
    }

    /// Calls `done` once, from any thread and perhaps before this returns, when
    /// [`wait_changes`](Self::wait_changes) would return. Dropping the answer cancels
    /// it, unless the call is under way already. It must not block: it may be on the log's own
    /// thread.
    ///
    /// # Errors
    /// `Unavailable` when too many wait.
    pub fn on_changes(
        &self,
        range: &KeyRange,
        after: Revision,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) -> Result<ChangesWait> {
        self.core.on_changes(range, after, done)
    }

    /// Merges the append regions of one shard, or of all.
    pub fn reorganize(&self, shard: Option<ShardId>) -> Result<()> {
        self.core.reorganize(shard)
    }

    /// Makes a checkpoint.
    pub fn checkpoint(&self) -> Result<CheckpointReport> {
        self.core.checkpoint()
    }

    /// Moves what is live out of value segments that are mostly dead, most dead bytes first. They
    /// are freed by the next checkpoint. `control` is asked between steps, and may sleep.
    ///
    /// # Errors
    /// `DiskFull` when there is no room for the copies of a single segment, `ReadOnly` when the
    /// engine takes no writes. A record that cannot be read is no error: see
    /// [`problems`](DefragmentReport::problems).
    pub fn defragment(
        &self,
        options: &DefragmentOptions,
        control: &dyn Fn(DefragmentProgress) -> Continue,
    ) -> Result<DefragmentReport> {
        self.at_a_pace(control, |control| self.core.defragment(options, control))
    }

    /// Rewrites records in key order where they lie so far apart that scans pay for it, as after a
    /// load in random order. Of `options`, `max_bytes` counts. What a checkpoint has not yet made
    /// immutable stays where it is. `control` is asked between steps, and may sleep. With
    /// `background` the engine does this by itself where scans wait for the disk.
    ///
    /// It ends early when space gets short, and says so in
    /// [`short_of_space`](DefragmentReport::short_of_space): call again once dead space was
    /// reclaimed.
    ///
    /// # Errors
    /// `ReadOnly` when the engine takes no writes.
    pub fn put_in_order(
        &self,
        options: &DefragmentOptions,
        control: &dyn Fn(DefragmentProgress) -> Continue,
    ) -> Result<DefragmentReport> {
        self.at_a_pace(control, |control| {
            self.core.put_in_order(options, &KeyRange::all(), control)
        })
    }

    /// Runs a job that moves records: it rests while others work, and a checkpoint frees what it
    /// has emptied.
    fn at_a_pace(
        &self,
        control: &dyn Fn(DefragmentProgress) -> Continue,
        job: impl FnOnce(&dyn Fn(DefragmentProgress) -> Continue) -> Result<DefragmentReport>,
    ) -> Result<DefragmentReport> {
        let duty = || if self.core.space.holds_up_writers() { 1.0 } else { POLITE };
        let pace = Pace::new(&self.core, &duty);
        let report = job(&|progress| {
            pace.step();
            control(progress)
        })?;
        if report.segments > 0 && self.core.store.options.background {
            self.core.requests.checkpoint();
        }
        Ok(report)
    }

    /// Where the running counts of live bytes differ from what the index points to, a line each:
    /// for tests. Only right while nobody writes.
    #[doc(hidden)]
    pub fn recount_live(&self) -> Vec<String> {
        self.core.recount_live()
    }

    /// Reads every record and index file and checks it; `cancelled` ends it with `Unavailable`.
    pub fn verify(&self, cancelled: &dyn Fn() -> bool) -> Result<VerifyReport> {
        self.core.verify(cancelled)
    }

    /// Statistics.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.core.wal.is_flusher() {
            self.scheduler.stop();
            // Joins the flusher, so that no callback has the core when it goes, and with it the
            // lock of the directory. A failure is told when the log is dropped.
            let _ = self.core.wal.close();
            return;
        }
        // In a callback: jobs may wait for the log, which waits for us. Another thread waits for
        // the flusher's end, and so for the callback's, before it lets go of the last of it.
        let builder = thread::Builder::new().name("vmemkv-close".into());
        close_elsewhere(&self.core, self.scheduler.take(), builder);
    }
}
