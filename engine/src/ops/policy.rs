//! Which shards to split and merge, as the rules in [`jobs::sharding`](crate::jobs::sharding) say.
//!
//! Invariants: a write costs no more than a look at two numbers; a shard that cannot be split is
//! left alone until it has grown.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::api::SplitCandidate;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::index::Shard;
use crate::jobs::sharding::{self, Size};
use crate::ops::merge::MergePlan;
use crate::ops::split::SplitPlan;
use crate::ops::split_key::find_cut;
use crate::options::Sharding;
use crate::types::ShardId;

impl Core {
    /// See [`Engine::split_key`](crate::Engine::split_key).
    pub(crate) fn split_key(&self, id: ShardId) -> Result<Option<Vec<u8>>> {
        let shard = self.store.table.load().get(id).cloned();
        let missing = || Error::invalid(format!("shard_id {id} is not on this node"));
        Ok(find_cut(&*shard.ok_or_else(missing)?).map(|cut| cut.key))
    }

    /// See [`Engine::split_candidates`](crate::Engine::split_candidates).
    pub(crate) fn split_candidates(&self) -> Vec<SplitCandidate> {
        let due = |shard: &&Arc<Shard>| self.is_too_large(shard);
        let candidate = |shard: &Arc<Shard>| {
            let Size { bytes, entries } = size_of(shard);
            let key = find_cut(shard).map(|cut| cut.key);
            SplitCandidate { shard: shard.id, bytes, entries, key }
        };
        let table = self.store.table.load_full();
        table.shards().iter().filter(due).map(candidate).collect()
    }

    /// Whether a shard has outgrown the limits, and what is known of its size is its own.
    pub(crate) fn is_too_large(&self, shard: &Shard) -> bool {
        // What is frozen may be shared with the other half of a split: counted too high.
        sharding::is_too_large(size_of(shard), self.max_size()) && shard.load().frozen.is_none()
    }

    /// Whether the engine itself should split a shard now.
    pub(crate) fn split_is_due(&self, shard: &Shard) -> bool {
        let quiet = Size {
            bytes: shard.quiet_bytes.load(Ordering::Relaxed),
            entries: shard.quiet_entries.load(Ordering::Relaxed),
        };
        matches!(self.store.options.sharding, Sharding::Alone { .. })
            && sharding::split_is_due(size_of(shard), self.max_size(), quiet)
            && shard.load().frozen.is_none()
    }

    /// Asks for the splits that are due. A write asks only while nothing of its shard is frozen, and it may
    /// have been the last one.
    pub(crate) fn ask_for_splits(&self) {
        for shard in self.store.table.load_full().shards() {
            if self.split_is_due(shard) {
                self.requests.split(shard);
            }
        }
    }

    /// Splits a shard, if that is still due.
    pub(crate) fn split_if_due(&self, shard: &Arc<Shard>) -> Result<()> {
        {
            let hurry = self.requests.hurry();
            let _structural = shard.structural.lock();
            drop(hurry);
            if shard.is_retired() {
                return Ok(());
            }
            self.settle_frozen(shard)?;
        }
        if !self.split_is_due(shard) {
            return Ok(());
        }
        let Some(cut) = find_cut(shard) else {
            let quiet = sharding::quiet_after_refusal(size_of(shard));
            shard.quiet_bytes.store(quiet.bytes, Ordering::Relaxed);
            shard.quiet_entries.store(quiet.entries, Ordering::Relaxed);
            return Ok(());
        };
        let plan =
            SplitPlan { operation: 0, key: &cut.key, given: None, left_bytes: cut.bytes_before };
        match self.split_at(shard.id, &plan) {
            // Somebody else has split it meanwhile.
            Err(_) if self.store.table.load().get(shard.id).is_none() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Merges the first two neighbours that are small and old enough; whether there were such.
    pub(crate) fn merge_if_due(&self) -> Result<bool> {
        let options = &self.store.options;
        if !matches!(options.sharding, Sharding::Alone { .. }) {
            return Ok(false);
        }
        let table = self.store.table.load_full();
        for shard in table.shards().iter().filter(|shard| hides_deletes(shard)) {
            self.reorganize_shard(shard, 1)?;
        }
        let due = table.shards().windows(2).find(|pair| {
            let age = pair[0].made.elapsed().min(pair[1].made.elapsed());
            let settled = pair.iter().all(|shard| shard.load().frozen.is_none());
            settled
                && pair[0].range.end == pair[1].range.start
                && age >= options.shard_merge_after
                && sharding::are_small(size_of(&pair[0]), size_of(&pair[1]), self.max_size())
        });
        let Some(pair) = due else { return Ok(false) };
        let plan = MergePlan { operation: 0, given: None };
        self.merge_neighbours(pair[0].id, pair[1].id, &plan)?;
        Ok(true)
    }

    /// Asks for the merge that gives a shard regions of its own.
    pub(super) fn settle_soon(&self, shard: &Arc<Shard>) {
        if self.store.options.background {
            self.requests.reorganize(shard);
        }
    }

    fn max_size(&self) -> Size {
        let options = &self.store.options;
        Size { bytes: options.shard_max_bytes, entries: options.shard_max_entries }
    }
}

/// What a shard holds, about.
fn size_of(shard: &Shard) -> Size {
    let bundle = shard.load();
    let entries = (bundle.sorted.live() + bundle.append_entries()) as u64;
    Size { bytes: shard.live_bytes(), entries }
}

/// Whether deletes that no merge has seen make a shard look much larger than it is. Without writes
/// nothing else would make it small.
fn hides_deletes(shard: &Shard) -> bool {
    let bundle = shard.load();
    let deletes = bundle.active.tombstones() as u64;
    deletes > 0 && deletes * 2 >= size_of(shard).entries
}
