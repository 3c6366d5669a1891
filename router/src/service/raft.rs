//! Raft among routers, on the Raft port only.
//!
//! Invariants: a call that is meant for another router, or comes from another cluster, is refused
//! before Raft sees it.

use tonic::{Request, Response, Status};
use vmemkv_proto::internal::v1::{self as internal, raft_server::Raft};
use vmemkv_proto::{ApiError, ErrorKind};

use crate::raft::RaftNode;

/// The service.
pub(crate) struct RaftService {
    raft: RaftNode,
}

impl RaftService {
    pub(crate) fn new(raft: RaftNode) -> Self {
        Self { raft }
    }

    fn cluster_id(&self) -> u64 {
        self.raft.state().read(|state| state.cluster.cluster_id)
    }

    fn check(&self, sender: u64, target: u64, cluster: u64) -> Result<(), ApiError> {
        let refuse = |message| Err(ApiError::new(ErrorKind::FailedPrecondition, message));
        let own = self.raft.id();
        if target != own {
            return refuse(format!("this is router {own}, not {target}"));
        }
        if sender == own || sender == 0 {
            return refuse(format!("router {sender} cannot call router {own}"));
        }
        let mine = self.cluster_id();
        if cluster != 0 && mine != 0 && cluster != mine {
            return refuse(format!("router {own} is of cluster {mine}, not {cluster}"));
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Raft for RaftService {
    async fn append_entries(
        &self,
        request: Request<internal::AppendEntriesRequest>,
    ) -> Result<Response<internal::AppendEntriesResponse>, Status> {
        let request = request.into_inner();
        self.check(request.sender_id, request.target_id, request.cluster_id)?;
        let payload = self.raft.append_entries(&request.payload).await?.into();
        Ok(Response::new(internal::AppendEntriesResponse { payload }))
    }

    async fn vote(
        &self,
        request: Request<internal::VoteRequest>,
    ) -> Result<Response<internal::VoteResponse>, Status> {
        let request = request.into_inner();
        self.check(request.sender_id, request.target_id, request.cluster_id)?;
        let payload = self.raft.vote(&request.payload).await?.into();
        Ok(Response::new(internal::VoteResponse { payload }))
    }

    async fn install_snapshot(
        &self,
        request: Request<internal::InstallSnapshotRequest>,
    ) -> Result<Response<internal::InstallSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.check(request.sender_id, request.target_id, request.cluster_id)?;
        let answer = self.raft.install_snapshot(&request.payload, &request.data).await?;
        Ok(Response::new(internal::InstallSnapshotResponse { payload: answer.into() }))
    }

    async fn probe(
        &self,
        _: Request<internal::ProbeRequest>,
    ) -> Result<Response<internal::ProbeResponse>, Status> {
        let (cluster_id, generation) =
            self.raft.state().read(|state| (state.cluster.cluster_id, state.cluster.generation));
        Ok(Response::new(internal::ProbeResponse {
            router_id: self.raft.id(),
            empty: self.raft.members().is_empty() && cluster_id == 0,
            cluster_id,
            generation,
            leader_id: self.raft.leader().unwrap_or(0),
        }))
    }
}
