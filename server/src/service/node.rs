//! Orders of routers over gRPC.
//!
//! Invariant: it translates, and decides nothing.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use vmemkv_proto::internal::v1 as internal;
use vmemkv_proto::internal::v1::exec_split_response::{Done, Outcome, Refused};
use vmemkv_proto::internal::v1::node_server::{self, NodeServer};

use crate::node::Node;
use crate::orders::{self, Answer};

/// The `Node` service of a server.
pub(crate) struct NodeService {
    node: Arc<Node>,
}

impl NodeService {
    /// The service.
    pub(crate) fn server(node: Arc<Node>) -> NodeServer<Self> {
        NodeServer::new(Self { node })
    }
}

#[tonic::async_trait]
impl node_server::Node for NodeService {
    async fn propose_split_key(
        &self,
        request: Request<internal::ProposeSplitKeyRequest>,
    ) -> Result<Response<internal::ProposeSplitKeyResponse>, Status> {
        let key = orders::propose_key(&self.node, request.into_inner()).await?;
        Ok(Response::new(internal::ProposeSplitKeyResponse { key }))
    }

    async fn exec_split(
        &self,
        request: Request<internal::ExecSplitRequest>,
    ) -> Result<Response<internal::ExecSplitResponse>, Status> {
        let outcome = match orders::exec_split(&self.node, request.into_inner()).await? {
            Answer::Done => Outcome::Done(Done {}),
            Answer::Refused(reason) => Outcome::Refused(Refused { reason }),
        };
        Ok(Response::new(internal::ExecSplitResponse { outcome: Some(outcome) }))
    }

    async fn map_changed(
        &self,
        request: Request<internal::MapChangedRequest>,
    ) -> Result<Response<internal::MapChangedResponse>, Status> {
        if request.into_inner().map_version > self.node.ownership.table().map_version() {
            self.node.orders.map_has_changed();
        }
        Ok(Response::new(internal::MapChangedResponse {}))
    }
}
