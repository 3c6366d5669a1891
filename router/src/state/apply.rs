//! The one function that changes the state.
//!
//! Invariants: a refused command changes nothing but the proposer's session; the events name every
//! record that has changed, so that storing those and no others stores the state.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::command::{Action, Command, Confirmed, Outcome, Refusal, Registration};
use super::{ClusterState, Node, Shard, split};

/// The epoch of a shard in the first generation of its data. The high bits are that generation.
const FIRST_EPOCH: u64 = 1;

/// What a command has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The cluster's record.
    Cluster,
    /// A node's record.
    Node(u64),
    /// The map: what it says of these shards is new with this version.
    Map {
        /// The version of the map.
        version: u64,
        /// Shards that are new or changed, those of a node with a new address too.
        changed: Vec<u64>,
        /// Shards that are gone.
        removed: Vec<u64>,
    },
    /// An operation's record.
    Operation(u64),
    /// A session's record.
    Session(u64),
    /// A session is gone.
    SessionDropped(u64),
}

/// Applies one command: what to answer, and what has changed.
pub fn apply(state: &mut ClusterState, command: &Command) -> (Outcome, Vec<Event>) {
    if command.client != 0
        && let Some(outcome) = state.sessions.answered(command)
    {
        return (outcome, Vec::new());
    }
    let mut events = Vec::new();
    let outcome = run(state, &command.action, &mut events).unwrap_or_else(|refusal| {
        events.clear();
        Outcome::Refused(refusal)
    });
    state.cluster.commands += 1;
    events.push(Event::Cluster);
    if command.client != 0 {
        let now = state.cluster.commands;
        let dropped = state.sessions.record(command, &outcome, now);
        events.push(Event::Session(command.client));
        events.extend(dropped.map(Event::SessionDropped));
    }
    (outcome, events)
}

/// Checks everything before it changes anything.
fn run(
    state: &mut ClusterState,
    action: &Action,
    events: &mut Vec<Event>,
) -> Result<Outcome, Refusal> {
    if let Action::CreateCluster { cluster_id, lease_ms, boundaries } = action {
        create_cluster(state, *cluster_id, *lease_ms, boundaries)?;
        return Ok(done(state));
    }
    if state.cluster.cluster_id == 0 {
        return Err(Refusal::NoCluster);
    }
    match action {
        Action::CreateCluster { .. } => {}
        Action::SetLease { expected_ms, lease_ms } => set_lease(state, *expected_ms, *lease_ms)?,
        Action::RegisterNode(registration) => {
            let incarnation = register(state, registration, events)?;
            let map_version = state.cluster.map_version;
            return Ok(Outcome::Registered { incarnation, map_version });
        }
        Action::ConfirmShards { node_id, incarnation, shards } => {
            confirm(state, *node_id, *incarnation, shards, events)?;
        }
        Action::BeginSplit(begin) => {
            let operation_id = split::begin(state, begin, events)?;
            return Ok(Outcome::Begun { operation_id });
        }
        Action::FinishSplit { operation_id, attempt } => {
            split::finish(state, *operation_id, *attempt, events)?;
        }
        Action::AbortSplit { operation_id, attempt, reason } => {
            split::abort(state, *operation_id, *attempt, reason, events)?;
        }
    }
    Ok(done(state))
}

fn done(state: &ClusterState) -> Outcome {
    Outcome::Done { map_version: state.cluster.map_version }
}

fn create_cluster(
    state: &mut ClusterState,
    cluster_id: u64,
    lease_ms: u64,
    boundaries: &[Bytes],
) -> Result<(), Refusal> {
    if state.cluster.cluster_id != 0 {
        return Err(Refusal::ClusterExists(state.cluster.cluster_id));
    }
    let ascending = boundaries.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || boundaries.first().is_some_and(Bytes::is_empty) {
        return Err(Refusal::Invalid("boundaries: not ascending keys".to_owned()));
    }
    if cluster_id == 0 || lease_ms == 0 {
        return Err(Refusal::Invalid("cluster_id and lease_ms must not be 0".to_owned()));
    }
    state.cluster.cluster_id = cluster_id;
    state.cluster.generation = 1;
    state.cluster.map_version = 1;
    state.cluster.next_id = 1;
    state.cluster.lease_ms = lease_ms;
    state.cluster.longest_lease_ms = lease_ms;
    state.cluster.boundaries = boundaries.to_vec();
    Ok(())
}

fn set_lease(state: &mut ClusterState, expected_ms: u64, lease_ms: u64) -> Result<(), Refusal> {
    let cluster = &mut state.cluster;
    if cluster.lease_ms != expected_ms {
        let found = cluster.lease_ms;
        return Err(Refusal::Precondition(format!("lease_ms is {found}, not {expected_ms}")));
    }
    if lease_ms == 0 {
        return Err(Refusal::Invalid("lease_ms must not be 0".to_owned()));
    }
    cluster.lease_ms = lease_ms;
    cluster.longest_lease_ms = cluster.longest_lease_ms.max(lease_ms);
    Ok(())
}

fn register(
    state: &mut ClusterState,
    registration: &Registration,
    events: &mut Vec<Event>,
) -> Result<u64, Refusal> {
    let known = check_registration(state, registration)?;
    let retried = known.as_ref().is_some_and(|node| {
        node.boot_number == registration.boot_number && node.nonce == registration.nonce
    });
    let mut node = known.clone().unwrap_or_default();
    node.node_id = registration.node_id;
    node.address.clone_from(&registration.address);
    node.http_address.clone_from(&registration.http_address);
    node.labels.clone_from(&registration.labels);
    node.version.clone_from(&registration.version);
    node.capacity_bytes = registration.capacity_bytes;
    if !retried {
        node.boot_number = registration.boot_number;
        node.nonce = registration.nonce;
        node.incarnation = state.cluster.allocate();
    }
    let incarnation = node.incarnation;
    let moved = known.is_some_and(|known| known.address != node.address);
    state.nodes.put(node);
    events.push(Event::Node(registration.node_id));
    let changed = if state.shards.is_empty() {
        first_shards(state, registration.node_id)?
    } else if moved {
        state.shards.of_owner(registration.node_id).collect()
    } else {
        Vec::new()
    };
    publish(state, changed, Vec::new(), events);
    Ok(incarnation)
}

/// Whether a registration would be accepted now; the node as it is known, if it is.
pub fn check_registration(
    state: &ClusterState,
    registration: &Registration,
) -> Result<Option<Node>, Refusal> {
    let Registration { node_id, cluster_id, generation, .. } = *registration;
    let cluster = &state.cluster;
    if node_id == 0 || registration.nonce == 0 || registration.address.is_empty() {
        let what = "node_id, nonce and address must be set";
        return Err(Refusal::Invalid(what.to_owned()));
    }
    let refuse = |what: String| Err(Refusal::Precondition(format!("node {node_id} {what}")));
    if cluster_id != 0 && cluster_id != cluster.cluster_id {
        return refuse(format!(
            "belongs to cluster {cluster_id}, this is cluster {}",
            cluster.cluster_id
        ));
    }
    if generation > cluster.generation {
        return refuse(format!(
            "has seen generation {generation}, this router is at {}",
            cluster.generation
        ));
    }
    let Some(node) = state.nodes.get(node_id) else {
        if cluster_id != 0 {
            return refuse("says that it belongs to this cluster, which does not know it".into());
        }
        return Ok(None);
    };
    if !node.state.may_have_lease() {
        return refuse("has been removed; start it with an empty data directory".into());
    }
    let same = registration.nonce == node.nonce;
    let retried = same && registration.boot_number == node.boot_number;
    let later = registration.boot_number > node.boot_number;
    // A start that registers again, its answer lost or its lease ended, has the same nonce and boot
    // number. The next start has a new nonce and names the one that the router knows.
    let chained = same || registration.previous_nonce == node.nonce;
    if retried || (later && chained) {
        return Ok(Some(Node::clone(node)));
    }
    refuse(format!(
        "has started elsewhere since (start {} is known, this is start {}): \
         its data directory is a copy or an old backup",
        node.boot_number, registration.boot_number
    ))
}

/// The first server owns everything, cut at the boundaries.
fn first_shards(state: &mut ClusterState, owner: u64) -> Result<Vec<u64>, Refusal> {
    let cuts = std::mem::take(&mut state.cluster.boundaries);
    let starts = std::iter::once(Bytes::new()).chain(cuts.iter().cloned());
    let ends = cuts.iter().cloned().chain(std::iter::once(Bytes::new()));
    let mut shards = Vec::with_capacity(cuts.len() + 1);
    for (start, end) in starts.zip(ends) {
        shards.push(Shard {
            shard_id: state.cluster.allocate(),
            start,
            end,
            epoch: FIRST_EPOCH,
            owner,
            replicas: vec![owner],
            born: true,
        });
    }
    let ids = shards.iter().map(|shard| shard.shard_id).collect();
    // Ascending cuts and fresh ids are always accepted.
    state.shards.replace(&[], shards).map_err(|error| Refusal::Invalid(error.to_string()))?;
    Ok(ids)
}

fn confirm(
    state: &mut ClusterState,
    node_id: u64,
    incarnation: u64,
    shards: &[Confirmed],
    events: &mut Vec<Event>,
) -> Result<(), Refusal> {
    let Some(node) = state.nodes.get(node_id) else {
        return Err(Refusal::NotFound(format!("no node {node_id}")));
    };
    if node.incarnation != incarnation {
        let what = format!("node {node_id} has registered anew since");
        return Err(Refusal::Precondition(what));
    }
    let mut changed = BTreeSet::new();
    for Confirmed { shard_id, epoch } in shards {
        let Some(shard) = state.shards.get(*shard_id) else {
            return Err(Refusal::NotFound(format!("no shard {shard_id}")));
        };
        if shard.owner != node_id || shard.epoch != *epoch {
            return Err(Refusal::Precondition(format!(
                "shard {shard_id} is at epoch {} on node {}, not at {epoch} on {node_id}",
                shard.epoch, shard.owner
            )));
        }
        if shard.born {
            changed.insert(*shard_id);
        }
    }
    for shard_id in &changed {
        state.shards.confirm(*shard_id);
    }
    publish(state, changed.into_iter().collect(), Vec::new(), events);
    Ok(())
}

/// Gives a change of the map its version.
pub(super) fn publish(
    state: &mut ClusterState,
    changed: Vec<u64>,
    removed: Vec<u64>,
    events: &mut Vec<Event>,
) {
    if changed.is_empty() && removed.is_empty() {
        return;
    }
    state.cluster.map_version += 1;
    events.push(Event::Map { version: state.cluster.map_version, changed, removed });
}
