//! Merging a shard's append region into its sorted region, and what makes that happen.
//!
//! Invariants: the freeze is the only pause that a writer sees; a merge is published only when the
//! log is durable up to the freeze, else a dropped tombstone could come undone; if that wait
//! fails the shard stays frozen, which is readable, and the engine is read-only anyway.

use std::sync::Arc;
use std::time::Instant;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::index::Shard;
use crate::jobs::triggers;
use crate::stats::Counters;
use crate::types::ShardId;

impl Core {
    /// Merges the append regions of one shard, or of all.
    pub(crate) fn reorganize(&self, only: Option<ShardId>) -> Result<()> {
        let table = self.store.table.load_full();
        let mut found = false;
        for shard in table.shards().iter().filter(|shard| only.is_none_or(|id| id == shard.id)) {
            found = true;
            // Without recent entries it is still worth it for tombstones.
            let bundle = shard.load();
            let least = usize::from(bundle.sorted.live() == bundle.sorted.len());
            drop(bundle);
            self.reorganize_shard(shard, least)?;
        }
        match only {
            Some(id) if !found => Err(Error::invalid(format!("shard_id {id} is not on this node"))),
            _ => Ok(()),
        }
    }

    /// Merges a shard whose append region has at least `min_entries`.
    pub(crate) fn reorganize_shard(&self, shard: &Shard, min_entries: usize) -> Result<()> {
        let _structural = shard.structural.lock();
        self.check_writable()?;
        if shard.load().active.len() < min_entries {
            return Ok(());
        }
        let started = Instant::now();
        shard.freeze()?;
        self.stripes.pass();
        let freeze_lsn = self.wal.appended_lsn();
        self.wal.wait(freeze_lsn)?;
        // What was frozen is in no file yet: the shard stays dirty.
        shard.publish_merged(shard.merge_frozen(self.store.options.bloom), true)?;
        let counters = &self.store.counters;
        Counters::add(&counters.reorganizes, 1);
        Counters::add(&counters.reorganize_us, started.elapsed().as_micros() as u64);
        Ok(())
    }

    /// Waits until a full append region has room. The caller holds no stripe and no room in the
    /// log.
    pub(crate) fn make_room(&self, shard: &Shard) -> Result<()> {
        let started = Instant::now();
        let full = shard.load().active.capacity();
        // Whoever comes first merges; the others wait for the lock and find room.
        let result = self.reorganize_shard(shard, full / 2);
        let counters = &self.store.counters;
        Counters::add(&counters.stalls_append, 1);
        Counters::add(&counters.stalls_append_us, started.elapsed().as_micros() as u64);
        result
    }

    /// Asks for the jobs that a write has made due.
    pub(crate) fn trigger(&self, shard: &Arc<Shard>) {
        let options = &self.store.options;
        if !options.background {
            return;
        }
        let bundle = shard.load();
        if triggers::reorganize_is_due(bundle.active.len(), bundle.active.capacity()) {
            self.requests.reorganize(shard);
        }
        let log_bytes = self.wal.bytes_since_checkpoint();
        let tail_bytes = self.store.value_log.tail_bytes_since_base();
        if triggers::checkpoint_is_due(log_bytes, tail_bytes, options.checkpoint_wal_bytes) {
            self.requests.checkpoint();
        }
    }
}
