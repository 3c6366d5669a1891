//! Calls from this member to another one, over the Raft service.
//!
//! Invariants: a call names the sender, the member that is meant and the cluster, and the other
//! side refuses it if it is not that; a peer that cannot be reached is reported as unreachable, so
//! that openraft waits before it tries again; a call ends with its deadline.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, RemoteError, ReplicationClosed, StreamingError,
    Timeout, Unreachable,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RPCTypes};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::Status;
use tonic::transport::Channel;
use vmemkv_proto::internal::v1 as internal;
use vmemkv_proto::limits::MAX_MESSAGE_BYTES;
use vmemkv_proto::peer;

use super::rpc::SnapshotPart;
use super::types::{RouterAddress, Snapshot, TypeConfig, Vote};
use crate::local_state::LocalState;

type Client = internal::raft_client::RaftClient<Channel>;
type CallError = RPCError<u64, RouterAddress, RaftError<u64>>;
type SendError = StreamingError<TypeConfig, Fatal<u64>>;

/// Bytes of a snapshot in one message.
const PART_BYTES: usize = 1 << 20;

/// Makes [`Peer`]s.
pub(super) struct Network {
    pub(super) router_id: u64,
    pub(super) state: LocalState,
}

/// Another member.
pub(super) struct Peer {
    router_id: u64,
    target: u64,
    state: LocalState,
    /// `Err`: its address is not one.
    client: Result<Client, String>,
}

#[derive(Debug, thiserror::Error)]
enum PeerError {
    #[error("the address of the router is not one: {0}")]
    Address(String),
    #[error("{0}")]
    Call(#[from] Status),
    #[error("a message cannot be read: {0}")]
    Message(#[from] serde_json::Error),
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &RouterAddress) -> Peer {
        let endpoint = peer::endpoint(&node.raft).map_err(|status| peer::told(&status));
        let client = endpoint.map(|endpoint| {
            let channel = endpoint.connect_lazy();
            Client::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES)
        });
        Peer { router_id: self.router_id, target, state: self.state.clone(), client }
    }
}

impl Peer {
    fn client(&self) -> Result<Client, PeerError> {
        self.client.clone().map_err(PeerError::Address)
    }

    fn cluster_id(&self) -> u64 {
        self.state.read(|state| state.cluster.cluster_id)
    }

    /// Waits for an answer within the deadline, and reads it.
    async fn answer<T, E>(
        &self,
        action: RPCTypes,
        ttl: Duration,
        call: impl Future<Output = Result<Bytes, PeerError>>,
    ) -> Result<Result<T, E>, RPCError<u64, RouterAddress, RaftError<u64>>>
    where
        Result<T, E>: DeserializeOwned,
    {
        let Ok(answer) = tokio::time::timeout(ttl, call).await else {
            let (id, target) = (self.router_id, self.target);
            return Err(Timeout { action, id, target, timeout: ttl }.into());
        };
        let payload = answer.map_err(|error| Unreachable::new(&error))?;
        serde_json::from_slice(&payload).map_err(|error| NetworkError::new(&error).into())
    }

    async fn send_part(&self, payload: Vec<u8>, data: Bytes) -> Result<Bytes, PeerError> {
        let request = internal::InstallSnapshotRequest {
            sender_id: self.router_id,
            target_id: self.target,
            cluster_id: self.cluster_id(),
            payload: payload.into(),
            data,
        };
        Ok(self.client()?.install_snapshot(request).await?.into_inner().payload)
    }
}

fn encode(value: &impl Serialize) -> Result<Bytes, PeerError> {
    Ok(serde_json::to_vec(value)?.into())
}

impl RaftNetwork<TypeConfig> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, CallError> {
        let call = async {
            let request = internal::AppendEntriesRequest {
                sender_id: self.router_id,
                target_id: self.target,
                cluster_id: self.cluster_id(),
                payload: encode(&request)?,
            };
            Ok(self.client()?.append_entries(request).await?.into_inner().payload)
        };
        let answer: Result<_, RaftError<u64>> =
            self.answer(RPCTypes::AppendEntries, option.hard_ttl(), call).await?;
        answer.map_err(|error| RemoteError::new(self.target, error).into())
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, CallError> {
        let call = async {
            let request = internal::VoteRequest {
                sender_id: self.router_id,
                target_id: self.target,
                cluster_id: self.cluster_id(),
                payload: encode(&request)?,
            };
            Ok(self.client()?.vote(request).await?.into_inner().payload)
        };
        let answer: Result<_, RaftError<u64>> =
            self.answer(RPCTypes::Vote, option.hard_ttl(), call).await?;
        answer.map_err(|error| RemoteError::new(self.target, error).into())
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, SendError> {
        let send = async {
            let bytes = Bytes::from(*snapshot.snapshot);
            let mut offset = 0;
            loop {
                let end = bytes.len().min(offset + PART_BYTES);
                let done = end == bytes.len();
                let part =
                    SnapshotPart { vote, meta: snapshot.meta.clone(), offset: offset as u64, done };
                let payload = serde_json::to_vec(&part).map_err(|e| NetworkError::new(&e))?;
                let call = self.send_part(payload, bytes.slice(offset..end));
                let answer: Result<SnapshotResponse<u64>, Fatal<u64>> = self
                    .answer(RPCTypes::InstallSnapshot, option.hard_ttl(), call)
                    .await
                    .map_err(to_streaming)?;
                let answer = answer
                    .map_err(|error| SendError::from(RemoteError::new(self.target, error)))?;
                if done || answer.vote > vote {
                    return Ok(answer);
                }
                offset = end;
            }
        };
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = send => sent,
        }
    }
}

fn to_streaming(error: CallError) -> SendError {
    match error {
        RPCError::Timeout(error) => error.into(),
        RPCError::Unreachable(error) => error.into(),
        RPCError::Network(error) => error.into(),
        error @ (RPCError::PayloadTooLarge(_) | RPCError::RemoteError(_)) => {
            NetworkError::new(&error).into()
        }
    }
}
