//! [`Dispatcher`]: sends messages of the API to whom they belong.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, Stream, StreamExt as _};
use vmemkv_proto::{ErrorKind, v1};

use crate::config::Config;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::operation::{Operation, Written};
use crate::remote_routers::RemoteRouters;

/// Sends messages of the API to whom they belong.
#[derive(Clone, Debug)]
pub struct Dispatcher {}

fn later() -> Error {
    Error::refused(ErrorKind::Unimplemented, "not built yet")
}

#[allow(missing_docs)]
impl Dispatcher {
    pub(crate) fn for_client(_config: &Config, _routers: Arc<RemoteRouters>) -> Self {
        Self {}
    }
    pub async fn get(&self, _request: v1::GetRequest, _d: Deadline) -> Result<v1::GetResponse> {
        Err(later())
    }
    pub async fn put(&self, _request: v1::PutRequest, _d: Deadline) -> Result<v1::PutResponse> {
        Err(later())
    }
    pub async fn delete(&self, _r: v1::DeleteRequest, _d: Deadline) -> Result<v1::DeleteResponse> {
        Err(later())
    }
    pub async fn delete_range(
        &self,
        _r: v1::DeleteRangeRequest,
        _d: Deadline,
    ) -> Result<v1::DeleteRangeResponse> {
        Err(later())
    }
    pub async fn checksum(
        &self,
        _r: v1::ChecksumRequest,
        _d: Deadline,
        _step: Duration,
    ) -> Result<v1::ChecksumResponse> {
        Err(later())
    }
    pub fn scan(&self, _r: v1::ScanRequest, _d: Deadline, _step: Duration) -> ScanChunks {
        ScanChunks {}
    }
    pub(crate) fn get_stream(
        &self,
        keys: BoxStream<'static, Bytes>,
        _step: Duration,
    ) -> BoxStream<'static, Result<Option<Bytes>>> {
        keys.map(|_| Err(later())).boxed()
    }
    pub(crate) fn put_stream(
        &self,
        operations: BoxStream<'static, Operation>,
        _step: Duration,
    ) -> BoxStream<'static, Result<Written>> {
        operations.map(|_| Err(later())).boxed()
    }
}

/// The parts of a running scan.
#[derive(Debug)]
pub struct ScanChunks {}

impl Stream for ScanChunks {
    type Item = Result<v1::ScanResponse>;

    fn poll_next(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(Some(Err(later())))
    }
}
