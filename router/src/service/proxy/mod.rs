//! The same `Kv` service that servers have, for clients that do not route.
//!
//! Placeholder: every call but `GetInfo` answers UNAVAILABLE until the proxy is built.
//!
//! What the router relies on: [`Proxy::new`] is called once, inside the runtime; the service is
//! shared by all connections; [`Proxy::shutdown`] is called once the router begins to stop, before
//! the grace period, so that long streams end by themselves.

use futures::stream::BoxStream;
use tonic::{Request, Response, Status, Streaming};
use vmemkv_proto::{ApiError, limits, v1};

use crate::map_view::MapView;

/// The proxy.
pub(crate) struct Proxy {
    map: MapView,
}

impl Proxy {
    /// A proxy over the committed map of this router.
    pub(crate) fn new(map: MapView) -> Self {
        Self { map }
    }

    /// Ends long streams.
    #[allow(clippy::unused_self)]
    pub(crate) fn shutdown(&self) {}
}

type Answers<T> = BoxStream<'static, Result<T, Status>>;

fn not_built<T>() -> Result<T, Status> {
    Err(ApiError::unavailable("this router does not pass requests on", 1_000).into())
}

#[tonic::async_trait]
impl v1::kv_server::Kv for Proxy {
    type BatchGetStream = Answers<v1::BatchGetResponse>;
    type BatchPutStream = Answers<v1::BatchPutResponse>;
    type ScanStream = Answers<v1::ScanResponse>;
    type BatchScanStream = Answers<v1::BatchScanResponse>;
    type WatchStream = Answers<v1::WatchResponse>;

    async fn get(&self, _: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        not_built()
    }

    async fn put(&self, _: Request<v1::PutRequest>) -> Result<Response<v1::PutResponse>, Status> {
        not_built()
    }

    async fn delete(
        &self,
        _: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        not_built()
    }

    async fn delete_range(
        &self,
        _: Request<v1::DeleteRangeRequest>,
    ) -> Result<Response<v1::DeleteRangeResponse>, Status> {
        not_built()
    }

    async fn batch_get(
        &self,
        _: Request<Streaming<v1::BatchGetRequest>>,
    ) -> Result<Response<Self::BatchGetStream>, Status> {
        not_built()
    }

    async fn batch_put(
        &self,
        _: Request<Streaming<v1::BatchPutRequest>>,
    ) -> Result<Response<Self::BatchPutStream>, Status> {
        not_built()
    }

    async fn scan(
        &self,
        _: Request<v1::ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        not_built()
    }

    async fn batch_scan(
        &self,
        _: Request<Streaming<v1::BatchScanRequest>>,
    ) -> Result<Response<Self::BatchScanStream>, Status> {
        not_built()
    }

    async fn watch(
        &self,
        _: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        not_built()
    }

    async fn increment(
        &self,
        _: Request<v1::IncrementRequest>,
    ) -> Result<Response<v1::IncrementResponse>, Status> {
        not_built()
    }

    async fn checksum(
        &self,
        _: Request<v1::ChecksumRequest>,
    ) -> Result<Response<v1::ChecksumResponse>, Status> {
        not_built()
    }

    async fn get_info(
        &self,
        _: Request<v1::GetInfoRequest>,
    ) -> Result<Response<v1::GetInfoResponse>, Status> {
        Ok(Response::new(v1::GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: "router".to_owned(),
            cluster_id: self.map.cluster_id(),
            node_id: self.map.router_id(),
            max_key_bytes: limits::MAX_KEY_BYTES as u64,
            max_value_bytes: limits::MAX_VALUE_BYTES as u64,
            max_message_bytes: limits::MAX_MESSAGE_BYTES as u64,
            max_batch_operations: limits::MAX_BATCH_OPERATIONS as u64,
            durability: "by the servers".to_owned(),
        }))
    }
}
