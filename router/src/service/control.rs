//! Registration and leases of servers.
//!
//! Invariants: a lease is granted only after a quorum has confirmed, after the call arrived, that
//! this router leads (a heartbeat by a read index, a registration by its own commit), and only to
//! the incarnation that registered last; while a run of a node is heard, no other run with its id is
//! let in, so that a copied data directory beside a running server gets no lease.

use std::sync::Arc;
use std::time::Duration;

use tonic::{Request, Response, Status};
use vmemkv_proto::internal::v1::{self as internal, control_server::Control};
use vmemkv_proto::{ApiError, ErrorKind};

use super::{outcome_or_error, refused};
use crate::monitor::Monitor;
use crate::raft::RaftNode;
use crate::state::{
    Action, ClusterState, Confirmed, Node, Outcome, Registration, check_registration,
};

/// How long a call waits for the other routers.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a newcomer looks whether the earlier run is still heard.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The most shards that one call confirms.
const MAX_CONFIRMED: usize = 100_000;
/// The most labels of a node, and the most bytes of a text that it reports.
const MAX_LABELS: usize = 64;
const MAX_TEXT_BYTES: usize = 1024;

/// The service; cheap to clone.
#[derive(Clone)]
pub(crate) struct ControlService {
    raft: RaftNode,
    monitor: Arc<Monitor>,
    heartbeat_ms: u64,
}

impl ControlService {
    pub(crate) fn new(raft: RaftNode, monitor: Arc<Monitor>, heartbeat_ms: u64) -> Self {
        Self { raft, monitor, heartbeat_ms }
    }

    /// Waits until an earlier run of the node is silent. An earlier run that goes on is the
    /// original, and the newcomer a copy of its data directory.
    async fn await_silence(&self, registration: &Registration) -> Result<(), ApiError> {
        let node_id = registration.node_id;
        let state = self.raft.state();
        let known = state
            .read(|state| check_registration(state, registration))
            .map_err(|refusal| refused(&refusal))?;
        let newcomer = |known: &Node| known.boot_number != registration.boot_number;
        let Some(known) = known.filter(newcomer) else { return Ok(()) };
        let heard = || self.monitor.seen(node_id).map(|seen| seen.at);
        let first = heard();
        // A router that has just begun to serve has heard nobody: an earlier run has its time to
        // beat from then on.
        while self.monitor.silence(node_id) < self.monitor.takeover_silence() {
            if heard() > first {
                let message = format!(
                    "node {node_id} runs at {}; the data directory of the server at {} is a copy",
                    known.address, registration.address
                );
                return Err(ApiError::new(ErrorKind::FailedPrecondition, message));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Control for ControlService {
    async fn register(
        &self,
        request: Request<internal::RegisterRequest>,
    ) -> Result<Response<internal::RegisterResponse>, Status> {
        let request = request.into_inner();
        let seen_version = request.map_version;
        let registration = registration(request)?;
        let node_id = registration.node_id;
        self.raft.linearizable(PATIENCE).await?;
        self.monitor.serves();
        self.await_silence(&registration).await?;
        let outcome = self.raft.propose(Action::RegisterNode(registration), PATIENCE).await?;
        let Outcome::Registered { incarnation, .. } = outcome_or_error(outcome)? else {
            return Err(ApiError::internal("a registration had no incarnation").into());
        };
        self.monitor.registered(node_id, incarnation, seen_version);
        let heartbeat_ms = self.heartbeat_ms;
        let response = self.raft.state().read(|state| {
            let node = state.nodes.get(node_id);
            // Another run may have registered meanwhile; it has the lease then.
            if node.is_none_or(|node| node.incarnation != incarnation) {
                return Err(registered_anew(node_id));
            }
            Ok(internal::RegisterResponse {
                cluster_id: state.cluster.cluster_id,
                generation: state.cluster.generation,
                lease_ms: state.cluster.lease_ms,
                map_version: state.cluster.map_version,
                shards: assigned(state, node_id),
                incarnation,
                heartbeat_ms,
                operations_ended_below: ended_below(state),
            })
        })?;
        tracing::info!(node_id, incarnation, shards = response.shards.len(), "server registered");
        Ok(Response::new(response))
    }

    async fn heartbeat(
        &self,
        request: Request<internal::HeartbeatRequest>,
    ) -> Result<Response<internal::HeartbeatResponse>, Status> {
        let request = request.into_inner();
        self.raft.linearizable(PATIENCE).await?;
        self.monitor.serves();
        let response = self.raft.state().read(|state| {
            check_run(state, &request)?;
            self.monitor.heard(&request, state);
            let news = state.cluster.map_version > request.map_version;
            Ok::<_, ApiError>(internal::HeartbeatResponse {
                lease_ms: state.cluster.lease_ms,
                map_version: state.cluster.map_version,
                shards: if news { assigned(state, request.node_id) } else { Vec::new() },
                shards_included: news,
                operations_ended_below: ended_below(state),
            })
        })?;
        Ok(Response::new(response))
    }

    async fn confirm_shards(
        &self,
        request: Request<internal::ConfirmShardsRequest>,
    ) -> Result<Response<internal::ConfirmShardsResponse>, Status> {
        let internal::ConfirmShardsRequest { node_id, incarnation, shards } = request.into_inner();
        if shards.len() > MAX_CONFIRMED {
            let message = format!("shards: {} is above {MAX_CONFIRMED}", shards.len());
            return Err(ApiError::new(ErrorKind::InvalidArgument, message).into());
        }
        let shards = shards
            .into_iter()
            .map(|shard| Confirmed { shard_id: shard.shard_id, epoch: shard.epoch })
            .collect();
        let action = Action::ConfirmShards { node_id, incarnation, shards };
        match outcome_or_error(self.raft.propose(action, PATIENCE).await?)? {
            Outcome::Done { map_version } => {
                Ok(Response::new(internal::ConfirmShardsResponse { map_version }))
            }
            _ => Err(ApiError::internal("a confirmation had no version").into()),
        }
    }
}

fn registration(request: internal::RegisterRequest) -> Result<Registration, ApiError> {
    let texts = [&request.address, &request.http_address, &request.version];
    let labels = request.labels.iter().flat_map(|(name, value)| [name, value]);
    if request.labels.len() > MAX_LABELS
        || texts.into_iter().chain(labels).any(|text| text.len() > MAX_TEXT_BYTES)
    {
        let message = format!(
            "labels: at most {MAX_LABELS}; labels and addresses: at most {MAX_TEXT_BYTES} bytes"
        );
        return Err(ApiError::new(ErrorKind::InvalidArgument, message));
    }
    Ok(Registration {
        node_id: request.node_id,
        cluster_id: request.cluster_id,
        generation: request.generation,
        boot_number: request.boot_number,
        nonce: request.nonce,
        previous_nonce: request.previous_nonce,
        address: request.address,
        http_address: request.http_address,
        labels: request.labels.into_iter().collect(),
        version: request.version,
        capacity_bytes: request.capacity_bytes,
    })
}

/// Whether the sender is the run of a node that may have a lease.
fn check_run(state: &ClusterState, request: &internal::HeartbeatRequest) -> Result<(), ApiError> {
    let refuse = |message| Err(ApiError::new(ErrorKind::FailedPrecondition, message));
    let internal::HeartbeatRequest { node_id, cluster_id, generation, .. } = *request;
    let cluster = &state.cluster;
    if cluster_id != cluster.cluster_id {
        return refuse(format!(
            "node {node_id} belongs to cluster {cluster_id}, this is cluster {}",
            cluster.cluster_id
        ));
    }
    if generation != cluster.generation {
        return refuse(format!(
            "node {node_id} is at generation {generation}, the cluster at {}: register again",
            cluster.generation
        ));
    }
    let Some(node) = state.nodes.get(node_id) else {
        return refuse(format!("no node {node_id}: register first"));
    };
    if !node.state.may_have_lease() {
        return refuse(format!("node {node_id} has been removed"));
    }
    if node.incarnation != request.incarnation {
        return Err(registered_anew(node_id));
    }
    Ok(())
}

fn registered_anew(node_id: u64) -> ApiError {
    let message = format!("another run of node {node_id} has registered since: register again");
    ApiError::new(ErrorKind::FailedPrecondition, message)
}

/// Every operation with a smaller id has ended.
fn ended_below(state: &ClusterState) -> u64 {
    state.operations.oldest_active().unwrap_or(state.cluster.next_id)
}

/// The shards of a node, as it is told.
fn assigned(state: &ClusterState, node_id: u64) -> Vec<internal::AssignedShard> {
    let shards = state.shards.of_owner(node_id).filter_map(|id| state.shards.get(id));
    shards
        .map(|shard| internal::AssignedShard {
            shard: Some(shard.to_wire(&state.nodes)),
            born: shard.born,
        })
        .collect()
}
