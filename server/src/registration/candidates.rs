//! Shards above their size limit, and where they would be cut.
//!
//! Invariants: a search goes over the keys of large shards, so it runs apart from what keeps the
//! lease, and rests [`REST_FACTOR`] times as long as it took; only shards that are in the map and
//! whole are named, the largest first and at most [`MAX_NAMED`].

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use vmemkv_engine::SplitCandidate as Found;
use vmemkv_proto::internal::v1::SplitCandidate;

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
            let look = move || engine.split_candidates();
            if let Ok(found) = node.pool.run(Class::Structure, look).await {
                let named = named(&node.ownership.table(), found);
                *node.split_candidates.lock().unwrap_or_else(PoisonError::into_inner) = named;
            }
        }
        tokio::time::sleep(REST.max(began.elapsed() * REST_FACTOR)).await;
    }
}

/// The candidates as a router is told.
fn named(table: &ShardTable, found: Vec<Found>) -> Vec<SplitCandidate> {
    let mut all: Vec<_> = found
        .into_iter()
        .map(|found| SplitCandidate {
            shard_id: found.shard.0,
            epoch: 0,
            bytes: found.bytes,
            entries: found.entries,
            key: found.key.map(Into::into),
        })
        .collect();
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
    use vmemkv_engine::ShardId;
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
        let found = |id: u64| Found {
            shard: ShardId(id),
            bytes: id,
            entries: 1,
            key: (id > 10).then(|| vec![1]),
        };
        let all = named(&table, (1..=30).map(found).collect());
        let ids: Vec<_> = all.iter().map(|named| (named.shard_id, named.epoch)).collect();
        assert_eq!(ids, [18, 17, 16, 15, 14, 13, 12, 11].map(|id| (id, 6)));
        let all = named(&table, [1, 11, 2].map(found).to_vec());
        let ids: Vec<_> = all.iter().map(|each| (each.shard_id, each.key.is_some())).collect();
        assert_eq!(ids, [(11, true), (2, false), (1, false)]);
    }
}
