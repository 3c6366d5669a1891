//! The cluster's administration: what there is, and splits. What else changes the cluster comes with
//! moves, and is UNIMPLEMENTED until then.
//!
//! Invariants: lists come in pages, from this router's committed state; loads are as last reported
//! to it.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use vmemkv_proto::check::unimplemented;
use vmemkv_proto::v1;
use vmemkv_proto::v1::admin_server::Admin;

use super::method_counts::MethodCounts;
use super::paging::Page;
use super::status::StatusView;
use crate::splits::Splits;
use crate::state::Operation;

/// The service.
pub(crate) struct AdminService {
    view: StatusView,
    splits: Splits,
    counts: Arc<MethodCounts>,
}

impl AdminService {
    pub(crate) fn new(view: StatusView, splits: Splits, counts: Arc<MethodCounts>) -> Self {
        Self { view, splits, counts }
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let request = request.into_inner();
        let page = Page::new('n', &request.page_token, request.page_size);
        let after = page.after_id()?.unwrap_or(0);
        let (nodes, next_page_token) = self.view.state.read(|state| {
            let left = state.nodes.after(after);
            page.take(
                left,
                |node| self.view.node(state, node),
                |node| node.node_id.to_le_bytes().to_vec(),
            )
        });
        Ok(Response::new(v1::ListNodesResponse { nodes, next_page_token }))
    }

    async fn list_shards(
        &self,
        request: Request<v1::ListShardsRequest>,
    ) -> Result<Response<v1::ListShardsResponse>, Status> {
        let request = request.into_inner();
        let page = Page::new('s', &request.page_token, request.page_size);
        let after = page.after_bytes()?;
        let node_id = request.node_id;
        let response = self.view.state.read(|state| {
            let message = |shard: &&Arc<_>| self.view.shard(state, shard);
            let position = |shard: &&Arc<crate::state::Shard>| shard.start.to_vec();
            let (shards, next_page_token) = if node_id == 0 {
                page.take(state.shards.after(after.as_deref()), message, position)
            } else {
                let owned = state.shards.of_owner(node_id).filter_map(|id| state.shards.get(id));
                let mut owned: Vec<_> = owned
                    .filter(|shard| after.as_ref().is_none_or(|after| shard.start > *after))
                    .collect();
                owned.sort_by(|a, b| a.start.cmp(&b.start));
                page.take(owned.into_iter(), message, position)
            };
            let map_version = state.cluster.map_version;
            v1::ListShardsResponse { shards, next_page_token, map_version }
        });
        Ok(Response::new(response))
    }

    async fn list_operations(
        &self,
        request: Request<v1::ListOperationsRequest>,
    ) -> Result<Response<v1::ListOperationsResponse>, Status> {
        let request = request.into_inner();
        let page = Page::new('o', &request.page_token, request.page_size);
        let before = page.after_id()?.unwrap_or(u64::MAX);
        let (operations, next_page_token) = self.view.state.read(|state| {
            let wanted =
                |operation: &&Arc<Operation>| !request.active_only || !operation.is_finished();
            let left = state.operations.before(before).filter(wanted);
            page.take(
                left,
                |operation| self.view.operation(operation),
                |operation| operation.operation_id.to_le_bytes().to_vec(),
            )
        });
        Ok(Response::new(v1::ListOperationsResponse { operations, next_page_token }))
    }

    async fn list_routers(
        &self,
        request: Request<v1::ListRoutersRequest>,
    ) -> Result<Response<v1::ListRoutersResponse>, Status> {
        let request = request.into_inner();
        let page = Page::new('r', &request.page_token, request.page_size);
        let after = page.after_id()?.unwrap_or(0);
        let routers = self.view.routers();
        let left = routers.into_iter().filter(|router| router.router_id > after);
        let (routers, next_page_token) =
            page.take(left, Clone::clone, |router| router.router_id.to_le_bytes().to_vec());
        Ok(Response::new(v1::ListRoutersResponse { routers, next_page_token }))
    }

    async fn get_cluster_status(
        &self,
        _: Request<v1::GetClusterStatusRequest>,
    ) -> Result<Response<v1::GetClusterStatusResponse>, Status> {
        let methods = self.counts.list();
        Ok(Response::new(v1::GetClusterStatusResponse { methods, ..self.view.cluster() }))
    }

    async fn split_shard(
        &self,
        request: Request<v1::SplitShardRequest>,
    ) -> Result<Response<v1::SplitShardResponse>, Status> {
        let v1::SplitShardRequest { shard_id, key } = request.into_inner();
        let operation_id = self.splits.begin(shard_id, key).await?;
        Ok(Response::new(v1::SplitShardResponse { operation_id }))
    }

    async fn merge_shards(
        &self,
        _: Request<v1::MergeShardsRequest>,
    ) -> Result<Response<v1::MergeShardsResponse>, Status> {
        Err(unimplemented("MergeShards").into())
    }

    async fn move_shard(
        &self,
        _: Request<v1::MoveShardRequest>,
    ) -> Result<Response<v1::MoveShardResponse>, Status> {
        Err(unimplemented("MoveShard").into())
    }

    async fn drain_node(
        &self,
        _: Request<v1::DrainNodeRequest>,
    ) -> Result<Response<v1::DrainNodeResponse>, Status> {
        Err(unimplemented("DrainNode").into())
    }

    async fn undrain_node(
        &self,
        _: Request<v1::UndrainNodeRequest>,
    ) -> Result<Response<v1::UndrainNodeResponse>, Status> {
        Err(unimplemented("UndrainNode").into())
    }

    async fn remove_node(
        &self,
        _: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::RemoveNodeResponse>, Status> {
        Err(unimplemented("RemoveNode").into())
    }

    async fn cancel_operation(
        &self,
        _: Request<v1::CancelOperationRequest>,
    ) -> Result<Response<v1::CancelOperationResponse>, Status> {
        Err(unimplemented("CancelOperation").into())
    }

    async fn add_router(
        &self,
        _: Request<v1::AddRouterRequest>,
    ) -> Result<Response<v1::AddRouterResponse>, Status> {
        Err(unimplemented("AddRouter").into())
    }

    async fn remove_router(
        &self,
        _: Request<v1::RemoveRouterRequest>,
    ) -> Result<Response<v1::RemoveRouterResponse>, Status> {
        Err(unimplemented("RemoveRouter").into())
    }
}
