//! From the shards that a router assigns to the shards that are served.
//!
//! Invariants: a shard whose data is not here is made only if it is `born`, otherwise it is never
//! served and an error says so; data of another range or epoch is not that shard's data; what is
//! not assigned is not served, and kept.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use vmemkv_engine::{Engine, KeyRange, ShardId, ShardInfo, Stats};
use vmemkv_proto::internal::v1::{AssignedShard, InstanceState, ShardInstance, ShardLoad};
use vmemkv_proto::v1::Shard;

use super::routers::Failure;
use crate::node::Node;
use crate::ownership::{OwnedShard, Ownership, ShardState, ShardTable};

/// Makes what has to be made and replaces the table. May block.
pub(super) fn apply(
    node: &Node,
    assigned: Vec<AssignedShard>,
    map_version: u64,
) -> Result<(), Failure> {
    let engine = node.engine().map_err(Failure::here)?;
    let node_id = engine.identity().node_id;
    let before = node.ownership.table();
    let here: HashMap<u64, ShardInfo> =
        engine.shards().into_iter().map(|info| (info.id.0, info)).collect();
    let counters: HashMap<u64, &Arc<AtomicU64>> =
        before.shards().iter().map(|old| (old.shard.shard_id, &old.requests)).collect();
    let mut owned = Vec::with_capacity(assigned.len());
    for AssignedShard { shard, born } in assigned {
        let Some(mut shard) = shard else { continue };
        if shard.node_id != node_id {
            continue;
        }
        if shard.address.is_empty() {
            shard.address.clone_from(&node.address);
        }
        let state = settle(&engine, here.get(&shard.shard_id), &shard, born)?;
        let known = counters.get(&shard.shard_id);
        let requests = known.map_or_else(Arc::default, |requests| Arc::clone(requests));
        owned.push(OwnedShard { shard, state, requests });
    }
    node.ownership.set_table(ShardTable::new(node_id, map_version, owned));
    Ok(())
}

/// Whether an assigned shard can be served; makes it if it is new.
fn settle(
    engine: &Engine,
    here: Option<&ShardInfo>,
    shard: &Shard,
    born: bool,
) -> Result<ShardState, Failure> {
    let (id, epoch) = (shard.shard_id, shard.epoch);
    let range = KeyRange::new(shard.start.to_vec(), shard.end.to_vec());
    match here {
        Some(info) if info.range == range && info.epoch == epoch => {
            Ok(if born { ShardState::Unconfirmed } else { ShardState::Serving })
        }
        Some(info) => {
            tracing::error!(
                shard_id = id,
                epoch,
                local_epoch = info.epoch,
                "the data of this shard here is of another epoch or range: it is not served"
            );
            Ok(ShardState::WithoutData)
        }
        None if born => {
            engine
                .create_shard(ShardId(id), &range, epoch)
                .map_err(|error| Failure::disk(&error))?;
            tracing::info!(shard_id = id, epoch, "shard made");
            Ok(ShardState::Unconfirmed)
        }
        None => {
            tracing::error!(
                shard_id = id,
                epoch,
                "this node owns the shard and has no data for it: it is not served; restore the \
                 data directory, or remove the node with consent to the loss"
            );
            Ok(ShardState::WithoutData)
        }
    }
}

/// The shards, with their epochs, that the routers do not know to be here.
pub(super) fn unconfirmed(table: &ShardTable) -> Vec<(u64, u64)> {
    let waiting = table.shards().iter().filter(|owned| owned.state == ShardState::Unconfirmed);
    waiting.map(|owned| (owned.shard.shard_id, owned.shard.epoch)).collect()
}

/// The routers know that these are here: serve them.
pub(super) fn mark_confirmed(ownership: &Ownership, confirmed: &[(u64, u64)]) {
    let confirmed: HashSet<(u64, u64)> = confirmed.iter().copied().collect();
    let table = ownership.table();
    let mut shards = table.shards().to_vec();
    for owned in &mut shards {
        let name = (owned.shard.shard_id, owned.shard.epoch);
        if owned.state == ShardState::Unconfirmed && confirmed.contains(&name) {
            owned.state = ShardState::Serving;
        }
    }
    ownership.set_table(ShardTable::new(table.node_id(), table.map_version(), shards));
}

/// The data of a shard as registration reports it.
pub(super) fn instance(info: &ShardInfo) -> ShardInstance {
    ShardInstance {
        shard_id: info.id.0,
        epoch: info.epoch,
        start: info.range.start.clone().into(),
        end: info.range.end.clone().into(),
        state: InstanceState::Own as i32,
        operation_id: 0,
        attempt: 0,
    }
}

/// The loads that a router has been told.
#[derive(Clone, Default)]
pub(super) struct Loads {
    told: HashMap<u64, ShardLoad>,
    requests: HashMap<u64, u64>,
    measured: Option<Instant>,
}

impl Loads {
    /// The loads that differ from what was told before. Bytes of a shard are its part of the
    /// node's live bytes by keys: the engine counts them for the node only.
    pub(super) fn changed(
        &mut self,
        table: &ShardTable,
        infos: &[ShardInfo],
        stats: &Stats,
    ) -> Vec<ShardLoad> {
        let keys_of: HashMap<u64, u64> = infos.iter().map(|info| (info.id.0, info.keys)).collect();
        let all_keys = infos.iter().map(|info| info.keys).sum::<u64>().max(1);
        let now = Instant::now();
        let seconds = self.measured.map(|before| (now - before).as_secs_f64().max(0.001));
        self.measured = Some(now);
        let mut changed = Vec::new();
        for owned in table.shards() {
            let shard_id = owned.shard.shard_id;
            let requests = owned.requests.load(Ordering::Relaxed);
            let before = self.requests.insert(shard_id, requests).unwrap_or(requests);
            let keys = keys_of.get(&shard_id).copied().unwrap_or(0);
            let share = u128::from(stats.value_log.live_bytes) * u128::from(keys);
            let load = ShardLoad {
                shard_id,
                keys,
                live_bytes: u64::try_from(share / u128::from(all_keys)).unwrap_or(u64::MAX),
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
