//! From a key to its shard.
//!
//! Invariants: a table never changes, a change is a new table; shards are in key order and do not
//! overlap; there may be gaps between them.

use std::sync::Arc;

use arc_swap::Guard;

use super::bundle::Bundle;
use super::shard::Shard;
use crate::error::{Error, Result};
use crate::stats::IndexStats;
use crate::types::{InstanceId, KeyRange, ShardId};

/// The shards of an engine.
#[derive(Clone, Default)]
pub(crate) struct ShardTable {
    shards: Vec<Arc<Shard>>,
}

impl ShardTable {
    /// A table of these shards, which must not overlap.
    pub(crate) fn new(mut shards: Vec<Arc<Shard>>) -> Result<Self> {
        shards.sort_by(|a, b| a.range.start.cmp(&b.range.start));
        if let Some(shard) = shards.iter().find(|shard| shard.range.is_empty()) {
            return Err(Error::invalid(format!("range {:?} is empty", shard.range)));
        }
        for pair in shards.windows(2) {
            if pair[0].range.is_before_end(&pair[1].range.start) {
                return Err(Error::invalid(format!(
                    "range {:?} of shard {} overlaps {:?} of shard {}",
                    pair[1].range, pair[1].id, pair[0].range, pair[0].id
                )));
            }
        }
        Ok(Self { shards })
    }

    /// The shard that holds a key.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<&Arc<Shard>> {
        let behind = self.shards.partition_point(|shard| shard.range.start.as_slice() <= key);
        let shard = &self.shards[behind.checked_sub(1)?];
        shard.range.is_before_end(key).then_some(shard)
    }

    /// The shards that have keys in common with `range`, in key order.
    pub(crate) fn covering(&self, range: &KeyRange) -> &[Arc<Shard>] {
        if range.is_empty() {
            return &[];
        }
        let start = self
            .shards
            .partition_point(|shard| !shard.range.end.is_empty() && shard.range.end <= range.start);
        let end =
            self.shards.partition_point(|shard| range.is_before_end(&shard.range.start)).max(start);
        &self.shards[start..end]
    }

    /// The shard with this id.
    pub(crate) fn get(&self, id: ShardId) -> Option<&Arc<Shard>> {
        self.shards.iter().find(|shard| shard.id == id)
    }

    /// All shards, in key order.
    pub(crate) fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    /// The table with one more shard.
    pub(crate) fn insert(&self, shard: Arc<Shard>) -> Result<Self> {
        self.replace(&[], [shard])
    }

    /// The table without the instances `gone` and with the shards `come`: one swap for a split.
    pub(crate) fn replace(
        &self,
        gone: &[InstanceId],
        come: impl IntoIterator<Item = Arc<Shard>>,
    ) -> Result<Self> {
        let stay = self.shards.iter().filter(|shard| !gone.contains(&shard.instance)).cloned();
        Self::new(stay.chain(come).collect())
    }

    /// The statistics of all indexes.
    pub(crate) fn stats(&self) -> IndexStats {
        let mut stats = IndexStats { shards: self.shards.len() as u64, ..IndexStats::default() };
        let mut before: Option<Guard<Arc<Bundle>>> = None;
        for shard in &self.shards {
            let bundle = shard.load();
            stats.sorted_entries += bundle.sorted.live() as u64;
            stats.append_entries += bundle.append_entries() as u64;
            // The halves of a split are neighbours and share regions until each is merged.
            let shared = before.as_ref().map_or(0, |before| bundle.shared_bytes(before));
            stats.memory_bytes += bundle.memory_bytes().saturating_sub(shared) as u64;
            before = Some(bundle);
        }
        stats
    }
}
