//! Shards above their size limit, and where they would be cut.
//!
//! Invariants: a search goes over the keys of large shards, so it runs apart from what keeps the
//! lease, and rests [`REST_FACTOR`] times as long as it took; only shards that are in the map and
//! whole are named, the largest first and at most [`MAX_NAMED`].

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use vmemkv_engine::{ShardInfo, SplitCandidate as Found};
use vmemkv_proto::internal::v1::SplitCandidate;

use crate::config::EngineConfig;
use crate::io_pool::Class;
use crate::node::Node;
use crate::ownership::{ShardState, ShardTable};

/// How many are named.
const MAX_NAMED: usize = 8;
/// Least time between two searches.
const REST: Duration = Duration::from_millis(250);
/// A search may take one part of this many of the time.
const REST_FACTOR: u32 = 20;

/// Searches until it is dropped.
pub(crate) async fn run(node: Arc<Node>) {
    loop {
        let began = Instant::now();
        if node.ownership.has_lease()
            && let Ok(engine) = node.engine()
        {
            let limits = Limits::of(&node.config.engine);
            let look = move || {
                let large = engine.shards().into_iter().filter(|info| limits.are_passed_by(info));
                (engine.split_candidates(), large.collect())
            };
            if let Ok((found, large)) = node.pool.run(Class::Structure, look).await {
                let named = named(&node.ownership.table(), found, large);
                *node.split_candidates.lock().unwrap_or_else(PoisonError::into_inner) = named;
            }
        }
        tokio::time::sleep(REST.max(began.elapsed() * REST_FACTOR)).await;
    }
}

/// The configured limits of a shard.
#[derive(Clone, Copy)]
struct Limits {
    bytes: u64,
    entries: u64,
}

impl Limits {
    fn of(config: &EngineConfig) -> Self {
        Self { bytes: config.shard_max_bytes, entries: config.shard_max_entries }
    }

    /// By far, so that a shard that the engine is about to name, or has just named, is none.
    fn are_passed_by(&self, info: &ShardInfo) -> bool {
        info.live_bytes / 2 > self.bytes || info.keys / 2 > self.entries
    }
}

/// The candidates as a router is told: what the engine has found, and, without a key, what is large
/// and has none.
fn named(table: &ShardTable, found: Vec<Found>, large: Vec<ShardInfo>) -> Vec<SplitCandidate> {
    let candidate = |shard_id, bytes, entries| SplitCandidate {
        shard_id,
        bytes,
        entries,
        ..SplitCandidate::default()
    };
    let mut all: Vec<_> = found
        .into_iter()
        .map(|found| SplitCandidate {
            key: Some(found.key.into()),
            ..candidate(found.shard.0, found.bytes, found.entries)
        })
        .collect();
    let has_key: HashSet<u64> = all.iter().map(|known| known.shard_id).collect();
    let without = large.into_iter().filter(|info| !has_key.contains(&info.id.0));
    all.extend(without.map(|info| candidate(info.id.0, info.live_bytes, info.keys)));
    // Those with a key first: the others must not keep them from being named.
    all.sort_by_key(|candidate| (candidate.key.is_none(), std::cmp::Reverse(candidate.bytes)));
    let known = all.into_iter().filter_map(|candidate| {
        let owned = table.get(candidate.shard_id)?;
        let whole = owned.state == ShardState::Serving && owned.halves.is_empty();
        whole.then(|| SplitCandidate { epoch: owned.shard.epoch, ..candidate })
    });
    known.take(MAX_NAMED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::OwnedShard;
    use vmemkv_engine::{InstanceId, KeyRange, Revision, ShardId};
    use vmemkv_proto::v1::Shard;

    #[test]
    fn whole_shards_of_the_map_are_named_the_largest_first() {
        let owned = |shard_id: u64, state| {
            let start = vec![u8::try_from(shard_id).unwrap()].into();
            let shard = Shard { shard_id, epoch: 6, start, ..Shard::default() };
            OwnedShard { shard, state, requests: Arc::default(), halves: Vec::new() }
        };
        let mut shards: Vec<_> = (1..=20).map(|id| owned(id, ShardState::Serving)).collect();
        shards[18].halves = vec![Shard::default(), Shard::default()];
        shards[19].state = ShardState::Unconfirmed;
        let table = ShardTable::new(7, 5, shards);
        let found = |id: u64| Found { shard: ShardId(id), bytes: id, entries: 1, key: vec![1] };
        let large = |id: u64| ShardInfo {
            id: ShardId(id),
            instance: InstanceId(id),
            range: KeyRange::new(Vec::new(), Vec::new()),
            epoch: 6,
            revision: Revision(0),
            keys: 1,
            append_entries: 0,
            live_bytes: 1000 + id,
        };
        let all = named(&table, (11..=30).map(found).collect(), vec![large(1), large(12)]);
        let ids: Vec<_> = all.iter().map(|named| (named.shard_id, named.epoch)).collect();
        assert_eq!(ids, [18, 17, 16, 15, 14, 13, 12, 11].map(|id| (id, 6)));
        let all = named(&table, vec![found(11)], vec![large(1), large(11), large(2)]);
        let ids: Vec<_> = all.iter().map(|each| (each.shard_id, each.key.is_some())).collect();
        assert_eq!(ids, [(11, true), (2, false), (1, false)]);
        let limits = Limits { bytes: 500, entries: 9 };
        assert!(
            limits.are_passed_by(&large(2))
                && !limits.are_passed_by(&ShardInfo { live_bytes: 900, ..large(2) })
        );
    }
}
