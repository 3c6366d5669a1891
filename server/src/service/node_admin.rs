//! The administration of the engine.
//!
//! Invariants: answered also by a server that is not registered; one job of a kind at a time, a
//! second one gets ABORTED; a job that cannot be cancelled goes on when its caller leaves.

mod jobs;
mod stats;

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::Empty;
use tonic::{Request, Response, Status};
use vmemkv_proto::check::{invalid, unimplemented};
use vmemkv_proto::v1;
use vmemkv_proto::v1::node_admin_server::{NodeAdmin, NodeAdminServer};

use self::jobs::Jobs;
pub(crate) use self::stats::state_name;
use super::TRANSPORT_MESSAGE_BYTES;
use crate::node::Node;

/// The `NodeAdmin` service of a server.
pub(crate) struct NodeAdminService {
    node: Arc<Node>,
    jobs: Jobs,
}

impl NodeAdminService {
    /// The service.
    pub(crate) fn server(node: Arc<Node>) -> NodeAdminServer<Self> {
        let jobs = Jobs::new(Arc::clone(&node));
        NodeAdminServer::new(Self { node, jobs })
            .max_decoding_message_size(TRANSPORT_MESSAGE_BYTES)
            .max_encoding_message_size(TRANSPORT_MESSAGE_BYTES)
    }
}

#[tonic::async_trait]
impl NodeAdmin for NodeAdminService {
    async fn get_stats(
        &self,
        request: Request<v1::GetStatsRequest>,
    ) -> Result<Response<v1::GetStatsResponse>, Status> {
        let with_shards = !request.into_inner().omit_shards;
        Ok(Response::new(stats::get_stats(&self.node, with_shards).await?))
    }

    async fn checkpoint(
        &self,
        _: Request<v1::CheckpointRequest>,
    ) -> Result<Response<v1::CheckpointResponse>, Status> {
        Ok(Response::new(self.jobs.checkpoint().await?))
    }

    async fn reorganize(
        &self,
        request: Request<v1::ReorganizeRequest>,
    ) -> Result<Response<v1::ReorganizeResponse>, Status> {
        Ok(Response::new(self.jobs.reorganize(request.into_inner().shard_id).await?))
    }

    async fn defragment(
        &self,
        request: Request<v1::DefragmentRequest>,
    ) -> Result<Response<v1::DefragmentResponse>, Status> {
        Ok(Response::new(self.jobs.defragment(&request.into_inner()).await?))
    }

    async fn verify(
        &self,
        request: Request<v1::VerifyRequest>,
    ) -> Result<Response<v1::VerifyResponse>, Status> {
        if request.into_inner().bytes_per_second != 0 {
            return Err(unimplemented("bytes_per_second").to_status());
        }
        Ok(Response::new(self.jobs.verify().await?))
    }

    type BackupStream = Pin<Box<Empty<Result<v1::BackupResponse, Status>>>>;

    async fn backup(
        &self,
        _: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        Err(unimplemented("Backup").to_status())
    }

    async fn set_log_level(
        &self,
        request: Request<v1::SetLogLevelRequest>,
    ) -> Result<Response<v1::SetLogLevelResponse>, Status> {
        let Some(set) = &self.node.set_log_filter else {
            return Err(unimplemented("SetLogLevel").to_status());
        };
        let filter = request.into_inner().filter;
        let previous = set(&filter).map_err(|wrong| invalid("filter", &wrong).to_status())?;
        tracing::info!(filter, previous, "the log filter has been changed");
        Ok(Response::new(v1::SetLogLevelResponse { previous }))
    }
}
