//! What must hold after every command: named predicates, for tests and for checks of stored state.
//!
//! Invariants: a predicate only reads; it says what is wrong, with the ids.

use std::collections::BTreeSet;

use super::{ClusterState, OperationKind, Phase};

/// What a rule says: nothing, or what is wrong.
pub type Finding = Result<(), String>;

/// A rule about one state.
pub type StateRule = (&'static str, fn(&ClusterState) -> Finding);

/// A rule about a state and the one before it.
pub type StepRule = (&'static str, fn(&ClusterState, &ClusterState) -> Finding);

/// The rules about one state.
pub const STATE_RULES: [StateRule; 7] = [
    ("shards partition the key space", shards_partition_the_key_space),
    ("owners are known nodes", owners_are_known),
    ("ids are below the allocator", ids_are_below_the_allocator),
    ("at most one active operation per shard", one_operation_per_shard),
    ("active splits can still finish", active_splits_can_finish),
    ("what is kept of operations is bounded", operations_are_bounded),
    ("leases are at most the longest", leases_are_at_most_the_longest),
];

/// The rules about a step.
pub const STEP_RULES: [StepRule; 5] = [
    ("epochs strictly grow", epochs_strictly_grow),
    ("ids are never reused", ids_are_never_reused),
    ("versions never go back", versions_never_go_back),
    ("nodes never go back", nodes_never_go_back),
    ("operations never come back", operations_never_come_back),
];

/// Checks every rule; the first finding, with the name of its rule.
pub fn check(before: &ClusterState, after: &ClusterState) -> Finding {
    for (name, rule) in STATE_RULES {
        rule(after).map_err(|what| format!("{name}: {what}"))?;
    }
    for (name, rule) in STEP_RULES {
        rule(before, after).map_err(|what| format!("{name}: {what}"))?;
    }
    Ok(())
}

fn shards_partition_the_key_space(state: &ClusterState) -> Finding {
    let mut shards = state.shards.iter();
    let Some(first) = shards.next() else { return Ok(()) };
    require(first.start.is_empty(), || format!("shard {} is first", first.shard_id))?;
    let mut end = &first.end;
    for shard in shards {
        let adjacent = !end.is_empty() && *end == shard.start;
        require(adjacent, || format!("shard {} leaves a gap or overlaps", shard.shard_id))?;
        let ordered = shard.end.is_empty() || shard.start < shard.end;
        require(ordered, || format!("shard {} is empty", shard.shard_id))?;
        end = &shard.end;
    }
    require(end.is_empty(), || "the last shard has an end".to_owned())
}

fn owners_are_known(state: &ClusterState) -> Finding {
    for shard in state.shards.iter() {
        let known = state.nodes.get(shard.owner).is_some();
        require(known, || format!("shard {} has no owner", shard.shard_id))?;
        let replica = shard.replicas.contains(&shard.owner);
        require(replica, || format!("the owner of shard {} is no replica", shard.shard_id))?;
        let listed = state.shards.of_owner(shard.owner).any(|id| id == shard.shard_id);
        require(listed, || format!("shard {} is not listed under its owner", shard.shard_id))?;
    }
    let listed: usize = state.nodes.iter().map(|n| state.shards.count_of_owner(n.node_id)).sum();
    require(listed == state.shards.len(), || "shards are listed under several owners".to_owned())
}

fn ids_are_below_the_allocator(state: &ClusterState) -> Finding {
    let next = state.cluster.next_id;
    let shards = state.shards.iter().map(|shard| shard.shard_id);
    let operations = state.operations.iter().map(|operation| operation.operation_id);
    let incarnations = state.nodes.iter().map(|node| node.incarnation);
    let active = state.operations.active().filter_map(|id| state.operations.get(id));
    let reserved = active.flat_map(|operation| operation.new_shards.iter().copied());
    let mut seen = BTreeSet::new();
    for id in shards.chain(operations).chain(incarnations).chain(reserved) {
        require(id != 0 && id < next, || format!("{id} is not below {next}"))?;
        require(seen.insert(id), || format!("{id} is used twice"))?;
    }
    Ok(())
}

fn one_operation_per_shard(state: &ClusterState) -> Finding {
    let mut held = BTreeSet::new();
    for operation in state.operations.iter().filter(|operation| !operation.is_finished()) {
        for shard in &operation.shards {
            require(held.insert(*shard), || format!("shard {shard} is held twice"))?;
        }
    }
    Ok(())
}

/// The shard of a split that runs is as it was when the split began, so that the halves that the
/// server may have made by now fit.
fn active_splits_can_finish(state: &ClusterState) -> Finding {
    for id in state.operations.active() {
        let operation = state.operations.get(id).ok_or(format!("no operation {id}"))?;
        if operation.kind != OperationKind::Split {
            continue;
        }
        let shard = operation.shards.first().and_then(|shard| state.shards.get(*shard));
        let fits = shard.is_some_and(|shard| {
            let within =
                shard.start < operation.key && (shard.end.is_empty() || operation.key < shard.end);
            let same = shard.owner == operation.source && !shard.born;
            within && same && shard.epoch + 1 == operation.epoch
        });
        require(fits && operation.new_shards.len() == 2, || format!("operation {id}"))?;
    }
    Ok(())
}

fn operations_are_bounded(state: &ClusterState) -> Finding {
    let active = state.operations.active().len();
    let ended = state.operations.iter().filter(|operation| operation.is_finished()).count();
    let counted = state.operations.iter().count() == active + ended;
    let bounded =
        active <= super::operations::MAX_ACTIVE && ended <= super::operations::MAX_FINISHED;
    require(counted && bounded, || format!("{active} run, {ended} have ended"))
}

fn leases_are_at_most_the_longest(state: &ClusterState) -> Finding {
    let cluster = &state.cluster;
    require(cluster.lease_ms <= cluster.longest_lease_ms, || format!("{}", cluster.lease_ms))
}

fn epochs_strictly_grow(before: &ClusterState, after: &ClusterState) -> Finding {
    for shard in after.shards.iter() {
        let range = shard.range();
        for old in before.shards.range(&range) {
            let same = old.shard_id == shard.shard_id && old.epoch == shard.epoch;
            let kept = same && old.owner == shard.owner && old.range() == range;
            require(kept || old.epoch < shard.epoch, || {
                format!("shard {} at {} follows {}", shard.shard_id, shard.epoch, old.epoch)
            })?;
        }
    }
    require(after.shards.len() >= usize::from(!before.shards.is_empty()), || "no shards".to_owned())
}

fn ids_are_never_reused(before: &ClusterState, after: &ClusterState) -> Finding {
    let active = before.operations.active().filter_map(|id| before.operations.get(id));
    let reserved: BTreeSet<u64> = active.flat_map(|each| each.new_shards.clone()).collect();
    for shard in after.shards.iter() {
        let fresh = shard.shard_id >= before.cluster.next_id || reserved.contains(&shard.shard_id);
        let same = before.shards.get(shard.shard_id).is_some_and(|b| b.range() == shard.range());
        require(fresh || same, || format!("shard {}", shard.shard_id))?;
    }
    Ok(())
}

fn versions_never_go_back(before: &ClusterState, after: &ClusterState) -> Finding {
    let (old, new) = (&before.cluster, &after.cluster);
    let grows = old.map_version <= new.map_version
        && old.map_version + 1 >= new.map_version
        && old.generation <= new.generation
        && old.next_id <= new.next_id
        && old.longest_lease_ms <= new.longest_lease_ms;
    require(grows, || format!("{old:?} to {new:?}"))?;
    let identity = old.cluster_id == 0 || old.cluster_id == new.cluster_id;
    require(identity, || "another cluster".to_owned())?;
    let told = before.shards == after.shards || old.map_version < new.map_version;
    require(told, || "the map changed, its version did not".to_owned())
}

fn nodes_never_go_back(before: &ClusterState, after: &ClusterState) -> Finding {
    for old in before.nodes.iter() {
        let new = after.nodes.get(old.node_id).ok_or(format!("node {} is gone", old.node_id))?;
        let grows = old.boot_number <= new.boot_number && old.incarnation <= new.incarnation;
        require(grows, || format!("node {}", old.node_id))?;
        let fenced = old.nonce == new.nonce || old.incarnation < new.incarnation;
        require(fenced, || format!("node {} has two runs in one incarnation", old.node_id))?;
    }
    Ok(())
}

/// An end is an end, and the halves of a split are in the map from its end on and not before (M11,
/// M12).
fn operations_never_come_back(before: &ClusterState, after: &ClusterState) -> Finding {
    for old in before.operations.iter() {
        let id = old.operation_id;
        let Some(new) = after.operations.get(id) else {
            require(old.is_finished(), || format!("operation {id} is gone, and had not ended"))?;
            continue;
        };
        require(!old.is_finished() || old == new, || format!("operation {id} came back"))?;
        let ends = !old.is_finished() && new.is_finished();
        for shard in &new.new_shards {
            let there = after.shards.get(*shard).is_some();
            let expected = ends && new.phase == Phase::Done;
            require(!expected || there, || format!("shard {shard} of operation {id} is missing"))?;
            let early = !old.is_finished() && there && !expected;
            require(!early, || format!("shard {shard} of operation {id}"))?;
        }
    }
    Ok(())
}

fn require(holds: bool, what: impl FnOnce() -> String) -> Finding {
    if holds { Ok(()) } else { Err(what()) }
}
