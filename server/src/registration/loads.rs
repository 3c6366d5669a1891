//! The loads of shards, as heartbeats report them.
//!
//! Invariants: what a router has been told is not told again until it changes; a shard that has been
//! split here, and is whole in the map, has the sum of its halves.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Instant;

use vmemkv_engine::ShardInfo;
use vmemkv_proto::internal::v1::ShardLoad;

use crate::ownership::{OwnedShard, ShardTable};

/// The loads that a router has been told.
#[derive(Clone, Default)]
pub(super) struct Loads {
    told: HashMap<u64, ShardLoad>,
    requests: HashMap<u64, u64>,
    measured: Option<Instant>,
}

impl Loads {
    /// The loads that differ from what was told before.
    pub(super) fn changed(&mut self, table: &ShardTable, infos: &[ShardInfo]) -> Vec<ShardLoad> {
        let by_start: BTreeMap<&[u8], &ShardInfo> =
            infos.iter().map(|info| (&info.range.start[..], info)).collect();
        let now = Instant::now();
        let seconds = self.measured.map(|before| (now - before).as_secs_f64().max(0.001));
        self.measured = Some(now);
        let mut changed = Vec::new();
        for owned in table.shards() {
            let shard_id = owned.shard.shard_id;
            let requests = owned.requests.load(Ordering::Relaxed);
            let before = self.requests.insert(shard_id, requests).unwrap_or(requests);
            let (keys, live_bytes) = size_of(owned, &by_start);
            let load = ShardLoad {
                shard_id,
                keys,
                live_bytes,
                requests_per_second: seconds
                    .map_or(0.0, |seconds| ((requests - before) as f64 / seconds).round()),
                balance_key: bytes::Bytes::new(),
            };
            if self.told.get(&shard_id) != Some(&load) {
                self.told.insert(shard_id, load.clone());
                changed.push(load);
            }
        }
        if self.told.len() > table.shards().len() {
            let owned: HashSet<u64> =
                table.shards().iter().map(|owned| owned.shard.shard_id).collect();
            self.told.retain(|id, _| owned.contains(id));
            self.requests.retain(|id, _| owned.contains(id));
        }
        changed
    }
}

/// Keys and bytes of all data here that begins within a shard.
fn size_of(owned: &OwnedShard, by_start: &BTreeMap<&[u8], &ShardInfo>) -> (u64, u64) {
    let from = by_start.range(&owned.shard.start[..]..);
    let within = from.take_while(|(start, _)| owned.shard.contains(start));
    within.fold((0, 0), |(keys, bytes), (_, info)| (keys + info.keys, bytes + info.live_bytes))
}
