//! From the shards that a router assigns to the shards that are served.
//!
//! Invariants: a shard whose data is not here is made only if it is `born`, otherwise it is never
//! served and an error says so; data of another range or epoch is not that shard's data, but for
//! the two halves that a split has made of it before the routers committed that (M11: the routers
//! go on with it, so the halves are the shard); what is not assigned is not served, and kept.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use vmemkv_engine::{Engine, KeyRange, ShardId, ShardInfo};
use vmemkv_proto::internal::v1::{AssignedShard, InstanceState, ShardInstance};
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
    let _change = node.ownership.change();
    let before = node.ownership.table();
    let here = Here::new(engine.shards());
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
        let (state, halves) = settle(&engine, &here, &shard, born)?;
        let known = counters.get(&shard.shard_id);
        let requests = known.map_or_else(Arc::default, |requests| Arc::clone(requests));
        owned.push(OwnedShard { shard, state, requests, halves });
    }
    node.ownership.set_table(ShardTable::new(node_id, map_version, owned));
    Ok(())
}

/// Serves no more what a map does not give to this node any more, for a map that cannot be stored or
/// applied. What is left stays as it is, of the old version.
pub(super) fn withdraw(node: &Node, assigned: &[AssignedShard]) {
    let _change = node.ownership.change();
    let before = node.ownership.table();
    let given = |old: &Shard| {
        assigned.iter().filter_map(|assigned| assigned.shard.as_ref()).any(|new| {
            (new.node_id, new.shard_id, new.epoch) == (before.node_id(), old.shard_id, old.epoch)
                && (&new.start, &new.end) == (&old.start, &old.end)
        })
    };
    // A shard that was split here lives on in its halves.
    let stays = |owned: &&OwnedShard| {
        given(&owned.shard) || !owned.halves.is_empty() && owned.halves.iter().all(given)
    };
    let left: Vec<_> = before.shards().iter().filter(stays).cloned().collect();
    if left.len() < before.shards().len() {
        tracing::info!(from = before.shards().len(), to = left.len(), "fewer shards are served");
        node.ownership.set_table(ShardTable::new(before.node_id(), before.map_version(), left));
    }
}

/// The data that is here, by the start of its range.
struct Here(BTreeMap<Vec<u8>, ShardInfo>);

impl Here {
    fn new(infos: Vec<ShardInfo>) -> Self {
        Self(infos.into_iter().map(|info| (info.range.start.clone(), info)).collect())
    }

    /// What a split has made of a shard that is not here any more: two parts that cover it exactly,
    /// of the next epoch.
    fn halves_of(&self, shard: &Shard) -> Option<[Shard; 2]> {
        let left = self.0.get(&shard.start[..])?;
        let right = self.0.get(&left.range.end).filter(|_| !left.range.end.is_empty())?;
        let fits = right.range.end == shard.end[..]
            && left.epoch == shard.epoch + 1
            && right.epoch == shard.epoch + 1;
        let half = |info: &ShardInfo| Shard {
            shard_id: info.id.0,
            start: info.range.start.clone().into(),
            end: info.range.end.clone().into(),
            epoch: info.epoch,
            ..shard.clone()
        };
        fits.then(|| [half(left), half(right)])
    }
}

/// Whether an assigned shard can be served, and the halves that it has here if it has been split;
/// makes it if it is new.
fn settle(
    engine: &Engine,
    here: &Here,
    shard: &Shard,
    born: bool,
) -> Result<(ShardState, Vec<Shard>), Failure> {
    let (id, epoch) = (shard.shard_id, shard.epoch);
    let range = KeyRange::new(shard.start.to_vec(), shard.end.to_vec());
    if let Some(halves) = here.halves_of(shard).filter(|_| !born) {
        tracing::debug!(shard_id = id, epoch, "split here, and not yet in the map");
        return Ok((ShardState::Serving, halves.into()));
    }
    let state = match here.0.get(&range.start) {
        Some(info) if info.id.0 == id && info.range == range && info.epoch == epoch => {
            if born {
                ShardState::Unconfirmed
            } else {
                ShardState::Serving
            }
        }
        Some(info) => {
            tracing::error!(
                shard_id = id,
                epoch,
                local_shard_id = info.id.0,
                local_epoch = info.epoch,
                "the data here is of another shard, epoch or range: it is not served"
            );
            ShardState::WithoutData
        }
        None if born => {
            engine
                .create_shard(ShardId(id), &range, epoch)
                .map_err(|error| Failure::disk(&error))?;
            tracing::info!(shard_id = id, epoch, "shard made");
            ShardState::Unconfirmed
        }
        None => {
            tracing::error!(
                shard_id = id,
                epoch,
                "this node owns the shard and has no data for it: it is not served; restore the \
                 data directory, or remove the node with consent to the loss"
            );
            ShardState::WithoutData
        }
    };
    Ok((state, Vec::new()))
}

/// The shards, with their epochs, that the routers do not know to be here.
pub(super) fn unconfirmed(table: &ShardTable) -> Vec<(u64, u64)> {
    let waiting = table.shards().iter().filter(|owned| owned.state == ShardState::Unconfirmed);
    waiting.map(|owned| (owned.shard.shard_id, owned.shard.epoch)).collect()
}

/// The routers know that these are here: serve them.
pub(super) fn mark_confirmed(ownership: &Ownership, confirmed: &[(u64, u64)]) {
    let confirmed: HashSet<(u64, u64)> = confirmed.iter().copied().collect();
    let _change = ownership.change();
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
