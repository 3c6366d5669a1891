//! The cluster as people see it: the committed state together with what servers have reported.
//!
//! Invariants: it only reads; a node's DOWN is this router's view (no heartbeat for a while), not a
//! decision.

use std::sync::Arc;

use vmemkv_proto::v1;

use crate::local_state::LocalState;
use crate::monitor::Monitor;
use crate::raft::{RaftNode, RouterAddress};
use crate::splits::{Splits, unix_ms};
use crate::state::{ClusterState, Node, NodeState, Operation, OperationKind, Shard};

/// What an engine in order says of itself.
const HEALTHY: &str = "healthy";

/// The cluster as people see it; cheap to clone.
#[derive(Clone)]
pub(crate) struct StatusView {
    pub(super) state: LocalState,
    raft: RaftNode,
    monitor: Arc<Monitor>,
    splits: Splits,
    /// Where this router is now; the group may remember an older place.
    own: RouterAddress,
}

impl StatusView {
    pub(crate) fn new(
        raft: RaftNode,
        monitor: Arc<Monitor>,
        splits: Splits,
        own: RouterAddress,
    ) -> Self {
        Self { state: raft.state().clone(), raft, monitor, splits, own }
    }

    /// A node with what it has reported.
    pub(super) fn node(&self, state: &ClusterState, node: &Node) -> v1::Node {
        let seen = self.monitor.seen(node.node_id);
        let load = self.monitor.sum(state.shards.of_owner(node.node_id));
        let silence = self.monitor.silence(node.node_id);
        let seen_or_default = seen.clone().unwrap_or_default();
        v1::Node {
            node_id: node.node_id,
            address: node.address.clone(),
            http_address: node.http_address.clone(),
            state: self.node_state(node) as i32,
            labels: node.labels.clone().into_iter().collect(),
            boot_number: node.boot_number,
            last_heartbeat_ms_ago: seen.map(|_| millis(silence)),
            shards: state.shards.count_of_owner(node.node_id) as u64,
            keys: load.keys,
            live_bytes: load.live_bytes,
            disk_used_bytes: seen_or_default.disk_used_bytes,
            capacity_bytes: match seen_or_default.capacity_bytes {
                0 => node.capacity_bytes,
                reported => reported,
            },
            requests_per_second: load.requests_per_second,
            version: node.version.clone(),
            map_version: seen_or_default.map_version,
            engine_state: seen_or_default.engine_state,
        }
    }

    /// A shard with its load.
    pub(super) fn shard(&self, state: &ClusterState, shard: &Shard) -> v1::ShardStatus {
        let load = self.monitor.load(shard.shard_id);
        v1::ShardStatus {
            shard_id: shard.shard_id,
            start: shard.start.clone(),
            end: shard.end.clone(),
            epoch: shard.epoch,
            node_id: shard.owner,
            address: state.nodes.address(shard.owner).to_owned(),
            born: shard.born,
            keys: load.keys,
            live_bytes: load.live_bytes,
            requests_per_second: load.requests_per_second,
            operation_id: state.operations.holder(shard.shard_id),
            note: self.splits.note(shard.shard_id),
        }
    }

    /// An operation, with what the router that drives it knows.
    pub(super) fn operation(&self, operation: &Operation) -> v1::Operation {
        let kind = match operation.kind {
            OperationKind::Split => v1::OperationKind::Split,
            OperationKind::Merge => v1::OperationKind::Merge,
            OperationKind::Move => v1::OperationKind::Move,
        };
        let progress = self.splits.progress(operation);
        let reason = if operation.is_finished() { &operation.reason } else { &progress.reason };
        v1::Operation {
            operation_id: operation.operation_id,
            kind: kind as i32,
            phase: progress.phase(operation.phase).to_owned(),
            shard_id: operation.shards.first().copied().unwrap_or(0),
            progress: progress.fraction(operation.phase),
            reason: reason.clone(),
            other_shard_id: operation.shards.get(1).copied().unwrap_or(0),
            source_node_id: operation.source,
            target_node_id: operation.target,
            attempt: operation.attempt,
            age_ms: unix_ms().saturating_sub(operation.started_unix_ms),
            finished: operation.is_finished(),
            key: operation.key.clone(),
            new_shard_ids: operation.new_shards.clone(),
        }
    }

    /// The routers, by id.
    pub(super) fn routers(&self) -> Vec<v1::RouterNode> {
        let members = self.raft.members().into_iter().map(|member| {
            let own = member.id == self.raft.id();
            let address = if own { self.own.clone() } else { member.address };
            v1::RouterNode {
                router_id: member.id,
                address: address.grpc,
                http_address: address.http,
                raft_address: address.raft,
                leader: member.leader,
                voter: member.voter,
                reachable: member.reachable,
                log_index: member.log_index,
            }
        });
        members.collect()
    }

    /// All at a glance, without the counts per method.
    pub(crate) fn cluster(&self) -> v1::GetClusterStatusResponse {
        let leader = self.raft.leader();
        let mut problems = Vec::new();
        if let Some(error) = self.raft.fatal() {
            problems.push(format!("this router has failed: {error}"));
        }
        if leader.is_none() {
            problems.push("the routers have no leader".to_owned());
        }
        let mut response = self.state.read(|state| {
            let mut nodes = v1::NodeCounts::default();
            for node in state.nodes.iter() {
                match self.node_state(node) {
                    v1::NodeState::Draining => nodes.draining += 1,
                    v1::NodeState::Down => nodes.down += 1,
                    v1::NodeState::Removing => nodes.removing += 1,
                    v1::NodeState::Removed => nodes.removed += 1,
                    v1::NodeState::Up | v1::NodeState::Unspecified => nodes.up += 1,
                }
                problems.extend(self.node_problem(state, node));
            }
            if state.shards.is_empty() {
                problems.push("no server has registered yet: no key is served".to_owned());
            }
            let load = self.monitor.sum(state.shards.iter().map(|shard| shard.shard_id));
            v1::GetClusterStatusResponse {
                cluster_id: state.cluster.cluster_id,
                generation: state.cluster.generation,
                map_version: state.cluster.map_version,
                leader_router_id: leader.unwrap_or(0),
                nodes: Some(nodes),
                shards: state.shards.len() as u64,
                active_operations: state.operations.active().len() as u64,
                keys: load.keys,
                live_bytes: load.live_bytes,
                ..Default::default()
            }
        });
        response.routers = self.routers();
        for router in response.routers.iter().filter(|router| !router.reachable) {
            // Only a leader knows whom it reaches.
            if self.raft.leads() {
                problems.push(format!("router {} is not reached", router.router_id));
            }
        }
        response.healthy = problems.is_empty();
        response.problems = problems;
        response
    }

    fn node_problem(&self, state: &ClusterState, node: &Node) -> Option<String> {
        let node_id = node.node_id;
        let shards = state.shards.count_of_owner(node_id);
        match self.node_state(node) {
            v1::NodeState::Removed => None,
            v1::NodeState::Down => Some(format!(
                "node {node_id} at {} has sent no heartbeat for {} ms; it owns {shards} shards",
                node.address,
                millis(self.monitor.silence(node_id))
            )),
            _ => {
                let engine = self.monitor.seen(node_id)?.engine_state;
                let ill = !engine.is_empty() && engine != HEALTHY;
                ill.then(|| format!("node {node_id} at {} is {engine}", node.address))
            }
        }
    }

    fn node_state(&self, node: &Node) -> v1::NodeState {
        let down = self.monitor.is_down(node.node_id);
        match node.state {
            NodeState::Up | NodeState::Draining if down => v1::NodeState::Down,
            NodeState::Up => v1::NodeState::Up,
            NodeState::Draining => v1::NodeState::Draining,
            NodeState::Down => v1::NodeState::Down,
            NodeState::Removing => v1::NodeState::Removing,
            NodeState::Removed => v1::NodeState::Removed,
        }
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
