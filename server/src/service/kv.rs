//! The data service: one file per group of methods.
//!
//! Invariants: a request is checked, then admitted, then done; a field that this release does not
//! know how to honour is refused, never ignored; a write is acknowledged once it is durable and the
//! lease still lasts.

mod batch_get;
mod batch_put;
mod batch_scan;
mod caller;
mod checksum;
mod delete_range;
mod frame_writer;
mod info;
mod pipeline;
mod point;
mod read;
mod scan;
mod write;

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::Empty;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use vmemkv_proto::check::unimplemented;
use vmemkv_proto::v1::kv_server::{Kv, KvServer};
use vmemkv_proto::v1::routing_error::Kind;
use vmemkv_proto::{ApiError, v1};

use self::caller::Caller;
use self::pipeline::Ordered;
use super::TRANSPORT_MESSAGE_BYTES;
use crate::metrics::Metrics;
use crate::node::Node;

/// The `Kv` service of a server.
pub(crate) struct KvService {
    node: Arc<Node>,
}

impl KvService {
    /// The service, with the limits of the API on its messages.
    pub(crate) fn server(node: Arc<Node>) -> KvServer<Self> {
        KvServer::new(Self { node })
            .max_decoding_message_size(TRANSPORT_MESSAGE_BYTES)
            .max_encoding_message_size(TRANSPORT_MESSAGE_BYTES)
    }

    fn answer<T>(&self, result: Result<T, ApiError>) -> Result<Response<T>, Status> {
        result.map(Response::new).map_err(|error| refused(&self.node, &error))
    }
}

/// The status of an error, counted.
fn refused(node: &Node, error: &ApiError) -> Status {
    match error.routing.as_ref().map(v1::RoutingError::kind) {
        Some(Kind::NotServing) => Metrics::count(&node.metrics.refused_no_lease),
        Some(_) => Metrics::count(&node.metrics.misrouted),
        None => {}
    }
    error.to_status()
}

/// Refuses a request id: results are not kept yet, so a retry could apply twice.
fn refuse_request_id(request_id: Option<&v1::RequestId>) -> Result<(), ApiError> {
    request_id.map_or(Ok(()), |_| Err(unimplemented("request_id")))
}

/// Refuses an expiry, also one of 0.
fn refuse_ttl(ttl_ms: Option<u64>) -> Result<(), ApiError> {
    ttl_ms.map_or(Ok(()), |_| Err(unimplemented("ttl_ms")))
}

#[tonic::async_trait]
impl Kv for KvService {
    async fn get(
        &self,
        request: Request<v1::GetRequest>,
    ) -> Result<Response<v1::GetResponse>, Status> {
        self.answer(point::get(&self.node, request.into_inner()).await)
    }

    async fn put(
        &self,
        request: Request<v1::PutRequest>,
    ) -> Result<Response<v1::PutResponse>, Status> {
        self.answer(point::put(&self.node, request.into_inner()).await)
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        self.answer(point::delete(&self.node, request.into_inner()).await)
    }

    async fn delete_range(
        &self,
        request: Request<v1::DeleteRangeRequest>,
    ) -> Result<Response<v1::DeleteRangeResponse>, Status> {
        self.answer(delete_range::delete_range(&self.node, request.into_inner()).await)
    }

    type BatchGetStream = Ordered<v1::BatchGetResponse>;

    async fn batch_get(
        &self,
        request: Request<Streaming<v1::BatchGetRequest>>,
    ) -> Result<Response<Self::BatchGetStream>, Status> {
        let caller = Caller::of(&self.node, &request);
        Ok(Response::new(batch_get::serve(caller, request.into_inner())))
    }

    type BatchPutStream = Ordered<v1::BatchPutResponse>;

    async fn batch_put(
        &self,
        request: Request<Streaming<v1::BatchPutRequest>>,
    ) -> Result<Response<Self::BatchPutStream>, Status> {
        let caller = Caller::of(&self.node, &request);
        Ok(Response::new(batch_put::serve(caller, request.into_inner())))
    }

    type ScanStream = ReceiverStream<Result<v1::ScanResponse, Status>>;

    async fn scan(
        &self,
        request: Request<v1::ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let caller = Caller::of(&self.node, &request);
        self.answer(scan::serve(caller, request.into_inner()))
    }

    type BatchScanStream = ReceiverStream<Result<v1::BatchScanResponse, Status>>;

    async fn batch_scan(
        &self,
        request: Request<Streaming<v1::BatchScanRequest>>,
    ) -> Result<Response<Self::BatchScanStream>, Status> {
        let caller = Caller::of(&self.node, &request);
        Ok(Response::new(batch_scan::serve(caller, request.into_inner())))
    }

    type WatchStream = Pin<Box<Empty<Result<v1::WatchResponse, Status>>>>;

    async fn watch(
        &self,
        _: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(unimplemented("Watch").to_status())
    }

    async fn increment(
        &self,
        _: Request<v1::IncrementRequest>,
    ) -> Result<Response<v1::IncrementResponse>, Status> {
        Err(unimplemented("Increment").to_status())
    }

    async fn checksum(
        &self,
        request: Request<v1::ChecksumRequest>,
    ) -> Result<Response<v1::ChecksumResponse>, Status> {
        let caller = Caller::of(&self.node, &request);
        self.answer(checksum::checksum(&caller, request.into_inner()).await)
    }

    async fn get_info(
        &self,
        _: Request<v1::GetInfoRequest>,
    ) -> Result<Response<v1::GetInfoResponse>, Status> {
        self.answer(info::get_info(&self.node))
    }
}
