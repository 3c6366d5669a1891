//! Merging a shard's append region into its sorted region, and what makes that happen.
//!
//! Invariants: the freeze is the only pause that a writer sees; a merge is published only when the
//! log is durable up to the freeze, else a dropped tombstone could come undone (and a tombstone that
//! an index file still lacks stays; many of them bring a checkpoint); if that wait
//! fails the shard stays frozen, which is readable, and the engine is read-only anyway.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::index::{Bundle, Shard};
use crate::jobs::pace::Pace;
use crate::jobs::triggers::{self, Reorganize, ShardSizes};
use crate::stats::Counters;
use crate::store::Plan;
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

    /// Merges a shard whose append region has at least `min_entries`, or that was left frozen. A
    /// shard whose place others have taken is left alone.
    pub(crate) fn reorganize_shard(&self, shard: &Shard, min_entries: usize) -> Result<()> {
        let _structural = shard.structural.lock();
        if shard.is_retired() {
            return Ok(());
        }
        self.check_writable()?;
        self.settle_frozen(shard)?;
        if shard.load().active.len() < min_entries {
            return Ok(());
        }
        let started = Instant::now();
        shard.freeze()?;
        self.stripes.pass();
        let freeze_lsn = self.wal.appended_lsn();
        self.wal.wait(freeze_lsn)?;
        // What was frozen is in no file yet: the shard stays dirty.
        let merging = self.memory.begin_merge(shard.load().merge_bytes());
        let duty = || self.merge_duty(shard);
        let pace = Pace::new(self, &duty);
        let merged = shard.merge_frozen(self.store.options.bloom, &|| pace.step());
        shard.publish_merged(merged, true)?;
        self.recount_memory();
        drop(merging);
        let sorted = Arc::clone(&shard.load().sorted);
        let (waiting, entries) = (sorted.tombstones(), sorted.len());
        if self.store.options.background
            && triggers::deletes_want_checkpoint(waiting, entries, self.memory.is_full())
        {
            self.requests.checkpoint();
        }
        let counters = &self.store.counters;
        Counters::add(&counters.reorganizes, 1);
        Counters::add(&counters.reorganize_us, started.elapsed().as_micros() as u64);
        Ok(())
    }

    /// The part of the time that a merge of this shard, which is frozen, may take beside others.
    pub(crate) fn merge_duty(&self, shard: &Shard) -> f64 {
        let bundle = shard.load();
        let (entries, capacity) = (bundle.active.len(), bundle.active.capacity());
        let others_wait = self.requests.any_waits();
        let short = self.memory.is_full() || self.space.holds_up_writers();
        triggers::merge_duty(entries, capacity, short, others_wait)
    }

    /// Waits until a full append region has room. The caller holds no stripe and no room in the
    /// log.
    pub(crate) fn make_room(&self, shard: &Shard) -> Result<()> {
        let started = Instant::now();
        // Also over its own merge.
        let _hurry = self.requests.hurry();
        let full = shard.load().active.capacity();
        // Whoever comes first merges; the others wait for the lock and find room.
        let result = self.reorganize_shard(shard, full / 2);
        let counters = &self.store.counters;
        Counters::add(&counters.stalls_append, 1);
        Counters::add(&counters.stalls_append_us, started.elapsed().as_micros() as u64);
        result
    }

    /// Whether a shard's append region should be merged now.
    pub(crate) fn reorganize_is_due(&self, bundle: &Bundle) -> Option<Reorganize> {
        triggers::reorganize_is_due(&sizes(bundle), self.memory.is_full())
    }

    /// Refuses the insert of a new key for want of memory, and asks for what frees some.
    pub(crate) fn refuse_insert(&self, plan: Plan<'_>) -> Error {
        let shard = Arc::clone(&plan.shard);
        self.store.abandon(plan);
        Counters::add(&self.store.counters.memory_refusals, 1);
        if self.store.options.background && self.reorganize_is_due(&shard.load()).is_some() {
            self.requests.reorganize(&shard);
        }
        self.memory.refusal()
    }

    /// A scan goes over these regions: it is cheaper when the recent keys are few.
    pub(crate) fn note_scan(&self, shard: &Arc<Shard>, bundle: &Bundle) {
        if bundle.active.len() == 0 {
            return;
        }
        bundle.active.mark_scanned();
        if self.store.options.background && self.reorganize_is_due(bundle).is_some() {
            self.requests.reorganize(shard);
        }
    }

    /// Asks for the jobs that a write has made due, and slows its caller when they do not keep up.
    /// The write made its append region grow by `grown` entries.
    pub(crate) fn trigger(&self, shard: &Arc<Shard>, grown: usize) {
        let options = &self.store.options;
        let bundle = shard.load();
        if grown > 0 {
            let shards = self.store.table.load().shards().len();
            if triggers::recount_is_due(bundle.active.len(), grown, shards) {
                self.recount_memory();
            }
        }
        if !options.background {
            return;
        }
        if self.reorganize_is_due(&bundle).is_some() {
            self.requests.reorganize(shard);
        }
        if self.split_is_due(shard) {
            self.requests.split(shard);
        }
        let log_bytes = self.wal.bytes_since_checkpoint();
        let tail_bytes = self.store.value_log.tail_bytes_since_base();
        if triggers::checkpoint_is_due(log_bytes, tail_bytes, self.space.checkpoint_bytes()) {
            self.requests.checkpoint();
        }
        let pause_us = if grown == 0 { 0 } else { triggers::writer_pause_us(&sizes(&bundle)) };
        drop(bundle);
        if pause_us > 0 {
            crate::sync::primitives::thread::sleep(Duration::from_micros(pause_us));
            Counters::add(&self.store.counters.slowed_append, 1);
            Counters::add(&self.store.counters.slowed_append_us, pause_us);
        }
    }
}

fn sizes(bundle: &Bundle) -> ShardSizes {
    ShardSizes {
        append_entries: bundle.active.len(),
        append_capacity: bundle.active.capacity(),
        sorted_entries: bundle.sorted.len(),
        sorted_tombstones: bundle.sorted.len() - bundle.sorted.live(),
        scanned: bundle.active.was_scanned(),
        frozen: bundle.frozen.is_some(),
    }
}
