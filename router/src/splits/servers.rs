//! Calls of servers: the orders of a router.
//!
//! Invariants: every call has a deadline; an answer is durable at the server, and a call without an
//! answer says nothing about what the server has done; connections are kept for at most
//! [`MAX_CLIENTS`] addresses.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tonic::Status;
use tonic::transport::Channel;
use vmemkv_proto::internal::v1::exec_split_response::Outcome;
use vmemkv_proto::internal::v1::node_client::NodeClient;
use vmemkv_proto::internal::v1::{
    Addressee, ExecSplitRequest, MapChangedRequest, ProposeSplitKeyRequest,
};
use vmemkv_proto::peer::{self, endpoint};
use vmemkv_proto::{ApiError, ErrorKind};

use crate::state::{ClusterState, Shard};

/// How long a server may take to split: it may have to wait for a merge of the shard.
const EXEC_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a server may take to propose a key.
const PROPOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a hint may take to arrive.
const HINT_TIMEOUT: Duration = Duration::from_secs(1);
/// How many connections are kept.
const MAX_CLIENTS: usize = 1_024;
/// When to ask again for a key.
const RETRY_AFTER_MS: u64 = 500;

/// Where an order goes, and whom it is for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Target {
    pub(super) address: String,
    pub(super) to: Addressee,
}

impl Target {
    /// The owner of a shard, as the state knows it.
    pub(super) fn owner_of(state: &ClusterState, shard: &Shard) -> Self {
        let node = state.nodes.get(shard.owner);
        Self {
            address: state.nodes.address(shard.owner).to_owned(),
            to: Addressee {
                node_id: shard.owner,
                incarnation: node.map_or(0, |node| node.incarnation),
                cluster_id: state.cluster.cluster_id,
                generation: state.cluster.generation,
            },
        }
    }
}

/// What a server durably says of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Executed {
    /// The shard is split.
    Done,
    /// It is not, and this operation will never split it.
    Refused(String),
}

/// Clients of servers, by address.
#[derive(Default)]
pub(super) struct Servers {
    clients: Mutex<HashMap<String, NodeClient<Channel>>>,
}

impl Servers {
    /// Orders a split. An error says why nobody knows what became of it.
    pub(super) async fn exec_split(
        &self,
        address: &str,
        order: ExecSplitRequest,
    ) -> Result<Executed, String> {
        let mut client = self.client(address).map_err(|status| told(address, &status))?;
        let answer = within(EXEC_TIMEOUT, client.exec_split(order)).await;
        match answer.map_err(|status| told(address, &status))?.into_inner().outcome {
            Some(Outcome::Done(_)) => Ok(Executed::Done),
            Some(Outcome::Refused(refused)) => Ok(Executed::Refused(refused.reason)),
            None => Err(format!("the server at {address} has answered nothing")),
        }
    }

    /// Asks for a key that halves a shard; none: there is no such key.
    pub(super) async fn propose_key(
        &self,
        target: &Target,
        shard_id: u64,
        epoch: u64,
    ) -> Result<Option<Bytes>, ApiError> {
        let address = &target.address;
        let request = ProposeSplitKeyRequest { to: Some(target.to), shard_id, epoch };
        let answer = match self.client(address) {
            Ok(mut client) => within(PROPOSE_TIMEOUT, client.propose_split_key(request)).await,
            Err(status) => Err(status),
        };
        match answer {
            Ok(answer) => Ok(answer.into_inner().key),
            Err(status) => Err(not_proposed(address, &status)),
        }
    }

    /// Tells a server that the map has changed. A hint that is lost does no harm: the next heartbeat
    /// brings the change as well.
    pub(super) async fn map_changed(&self, address: &str, map_version: u64) {
        let Ok(mut client) = self.client(address) else { return };
        let told =
            within(HINT_TIMEOUT, client.map_changed(MapChangedRequest { map_version })).await;
        if let Err(status) = told {
            tracing::debug!(address, %status, "a hint was lost");
        }
    }

    fn client(&self, address: &str) -> Result<NodeClient<Channel>, Status> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(address) {
            return Ok(client.clone());
        }
        let channel = endpoint(address)?.connect_lazy();
        let client = NodeClient::new(channel);
        if clients.len() >= MAX_CLIENTS {
            clients.clear();
        }
        clients.insert(address.to_owned(), client.clone());
        Ok(client)
    }
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let answered = tokio::time::timeout(limit, call).await;
    answered.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")))
}

/// Why there is no key: as the server says it, or else that it has not answered.
fn not_proposed(address: &str, status: &Status) -> ApiError {
    let message = format!("no key was proposed: {}", told(address, status));
    let said = ApiError::from(status);
    match said.kind {
        // A server that knows neither shard nor sender yet (it has just started, or the map has just
        // changed) answers FAILED_PRECONDITION; one that hangs nothing in time.
        ErrorKind::Unavailable
        | ErrorKind::Internal
        | ErrorKind::FailedPrecondition
        | ErrorKind::DeadlineExceeded => ApiError::unavailable(message, RETRY_AFTER_MS),
        _ => ApiError { message, ..said }.with_not_applied(),
    }
}

fn told(address: &str, status: &Status) -> String {
    format!("the server at {address}: {}", peer::told(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_keeps_its_kind() {
        for (kind, kept) in [
            (ErrorKind::FailedPrecondition, ErrorKind::Unavailable),
            (ErrorKind::Unimplemented, ErrorKind::Unimplemented),
            (ErrorKind::DeadlineExceeded, ErrorKind::Unavailable),
            (ErrorKind::ResourceExhausted, ErrorKind::ResourceExhausted),
            (ErrorKind::Unavailable, ErrorKind::Unavailable),
        ] {
            let status = ApiError::new(kind, "so it is").to_status();
            let error = not_proposed("h:1", &status);
            assert_eq!(error.kind, kept);
            assert!(error.not_applied && error.message.contains("the server at h:1: so it is"));
        }
    }
}
