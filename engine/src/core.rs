//! The parts of an open engine, and what all operations share.
//!
//! Lock order, outermost first: `defragmenting`, `checkpointing`, `table_lock`, a shard's
//! `structural` (in key order), room in the log's ring, stripes (ascending), a shard's `revision` (in
//! key order), the value log's tail. Nobody waits for the log while holding one of the last four;
//! readers take none. The feed's own locks are leaves, but that its readers look at the log's
//! list of segments, and its waiters at the end of the log, under them.
//!
//! Invariants:
//! - the shard table changes only under `table_lock`, together with the log record that says so; a
//!   checkpoint holds it from its log position to its shard list, so that both belong together;
//! - after a failed sync nothing is written any more: the log is poisoned.

use std::sync::Arc;

use crate::sync::primitives::Mutex;
use crate::sync::primitives::atomic::{AtomicU64, Ordering};

use crate::api::{CheckpointReport, Identity, ShardInfo};
use crate::checkpoint::Committed;
use crate::error::{Error, ErrorKind, Result};
use crate::feed::Feed;
use crate::index::Shard;
use crate::io::{Disk, LockFile};
use crate::jobs::Requests;
use crate::memory::Memory;
use crate::ops::defragment::Defragmenting;
use crate::options::Visibility;
use crate::space::Space;
use crate::stats::{Counters, IndexStats, State, Stats};
use crate::store::{Plan, Store};
use crate::sync::{Held, Stripes, WordIndex};
use crate::table_state::TableState;
use crate::types::{Lsn, ValueAt};
use crate::wal::Wal;

/// The parts of an open engine.
pub(crate) struct Core {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) store: Store,
    pub(crate) stripes: Stripes,
    pub(crate) wal: Wal,
    /// Held by a checkpoint.
    pub(crate) checkpointing: Mutex<Committed>,
    /// Held by a defragment, and while a slice of records is put in order.
    pub(crate) defragmenting: Mutex<Defragmenting>,
    /// Held by whatever changes the shard table or the outcomes of operations.
    pub(crate) table_lock: Mutex<TableState>,
    pub(crate) identity: Mutex<Identity>,
    /// The last committed checkpoint.
    pub(crate) last_checkpoint: Mutex<CheckpointReport>,
    /// How long records were last put in order, in microseconds. Relaxed: for show.
    pub(crate) last_order_us: AtomicU64,
    pub(crate) requests: Requests,
    pub(crate) space: Space,
    pub(crate) memory: Memory,
    pub(crate) feed: Feed,
    /// Released last.
    pub(crate) _lock: LockFile,
}

impl Core {
    /// Refuses a write while the engine is read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.wal.poisoned() {
            Some(reason) => Err(Error::new(ErrorKind::ReadOnly, reason)),
            None => Ok(()),
        }
    }

    /// Waits until what was copied under `word` is durable, if the options ask for it.
    pub(crate) fn settle(&self, word: WordIndex) -> Result<()> {
        if self.store.options.visibility == Visibility::Applied {
            return Ok(());
        }
        self.wait_visible(self.stripes.settle(word))
    }

    /// Waits for an LSN on behalf of a reader.
    pub(crate) fn wait_visible(&self, lsn: Lsn) -> Result<()> {
        if lsn > self.wal.durable_lsn() {
            Counters::add(&self.store.counters.reads_waited, 1);
            self.wal.wait(lsn)?;
        }
        Ok(())
    }

    /// Marks the held words as in flight.
    pub(crate) fn in_flight<'a>(&'a self, mut held: Held<'a>) -> InFlight<'a> {
        held.begin();
        InFlight { held: Some(held), core: self }
    }

    /// Whether writes are taken.
    pub(crate) fn state(&self) -> State {
        match self.wal.poisoned() {
            Some(reason) => State::ReadOnly { reason },
            None if self.space.is_full() || self.store.value_log.is_full() => State::DiskFull,
            None if self.memory.is_full() => State::MemoryFull,
            None => State::Healthy,
        }
    }

    /// The shards, in key order.
    pub(crate) fn shard_infos(&self) -> Vec<ShardInfo> {
        let info = |shard: &Arc<Shard>| {
            let bundle = shard.load();
            let append_entries = bundle.append_entries() as u64;
            ShardInfo {
                id: shard.id,
                instance: shard.instance,
                range: shard.range.clone(),
                epoch: shard.epoch,
                revision: shard.revision.last(),
                keys: bundle.sorted.live() as u64 + append_entries,
                append_entries,
                live_bytes: shard.live_bytes(),
            }
        };
        self.store.table.load().shards().iter().map(info).collect()
    }

    /// Counts the memory of all indexes anew.
    pub(crate) fn recount_memory(&self) -> IndexStats {
        let stats = self.store.table.load().stats();
        self.memory.set_used(stats.memory_bytes);
        stats
    }

    /// Statistics.
    pub(crate) fn stats(&self) -> Stats {
        let index = self.recount_memory();
        Stats {
            state: self.state(),
            counters: self.store.counters.snapshot(),
            wal: self.wal.stats(),
            value_log: self.store.value_log.stats(),
            disk: self.look_at_disk(),
            index: IndexStats { budget_bytes: self.memory.budget_bytes(), ..index },
            last_checkpoint: self.last_checkpoint.lock().clone(),
            last_order_us: self.last_order_us.load(Ordering::Relaxed),
        }
    }
}

/// A write between its first visible byte and its LSN. Dropped without
/// [`commit`](Self::commit), which only a panic does, it poisons the log: what was applied will
/// never be logged.
pub(crate) struct InFlight<'a> {
    held: Option<Held<'a>>,
    core: &'a Core,
}

impl InFlight<'_> {
    /// Makes a change visible; where its value is, if the log is to refer to it. Here, so that no operation can do it before the words say so.
    pub(crate) fn apply(&self, plan: Plan<'_>) -> Option<ValueAt> {
        self.core.store.apply(plan)
    }

    /// The write is in the log up to `lsn`: publish that and unlock.
    pub(crate) fn commit(mut self, lsn: Lsn) {
        if let Some(held) = self.held.take() {
            held.commit(lsn);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.core.wal.poison("a write stopped between applying and logging; reopen the engine");
        }
    }
}
