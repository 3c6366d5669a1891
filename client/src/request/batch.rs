//! Batches: many keys in few messages, answered in their order.
//!
//! Invariants: the answer has one result per key or operation, in order; a failure is that of its own
//! key. What is read ahead of the results, and what is under way, is bounded.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{BoxStream, Stream, StreamExt as _};
use vmemkv_proto::ApiError;
use vmemkv_proto::v1;
use vmemkv_proto::v1::{batch_get_result, batch_put_result};

use crate::client::Client;
use crate::dispatch::Failure;
use crate::error::{Error, Result};
use crate::operation::{Operation, Written};

impl Client {
    /// Reads many keys; one result per key, in order.
    pub async fn batch_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Option<Bytes>>> {
        let keys: Vec<_> =
            keys.into_iter().map(|key| Bytes::copy_from_slice(key.as_ref())).collect();
        self.batch_get_stream(futures::stream::iter(keys)).collect().await
    }

    /// Writes and removes many keys; one result per operation, in order. Operations on one key are
    /// applied in their order; there is no order, and no atomicity, across keys.
    pub async fn batch_put(
        &self,
        operations: impl IntoIterator<Item = Operation>,
    ) -> Vec<Result<Written>> {
        let operations: Vec<_> = operations.into_iter().collect();
        self.batch_put_stream(futures::stream::iter(operations)).collect().await
    }

    /// Reads the keys of a stream; one result per key, in order. What is taken from `keys` ahead of
    /// the results is bounded.
    pub fn batch_get_stream<S>(&self, keys: S) -> BatchGetStream
    where
        S: Stream<Item = Bytes> + Send + 'static,
    {
        let results = self.dispatcher().get_stream(keys.boxed(), self.step());
        BatchGetStream(results.map(found).boxed())
    }

    /// Writes the operations of a stream, as an import does; one result per operation, in order.
    /// What is taken from `operations` ahead of the results is bounded. A frame is sent once it is
    /// full or `operations` has nothing ready.
    ///
    /// ```no_run
    /// # async fn example(client: vmemkv_client::Client) -> vmemkv_client::Result<()> {
    /// use futures::{StreamExt as _, stream};
    /// use vmemkv_client::Operation;
    ///
    /// let operations = stream::iter((0..1_000_000).map(|n| Operation::put(format!("{n}"), "x")));
    /// let mut results = client.batch_put_stream(operations);
    /// while let Some(result) = results.next().await {
    ///     result?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch_put_stream<S>(&self, operations: S) -> BatchPutStream
    where
        S: Stream<Item = Operation> + Send + 'static,
    {
        let operations = operations.map(Operation::into_wire).boxed();
        let results = self.dispatcher().put_stream(operations, self.step());
        BatchPutStream(results.map(written).boxed())
    }
}

/// The results of a [`Client::batch_get_stream`].
pub struct BatchGetStream(BoxStream<'static, Result<Option<Bytes>>>);

impl Stream for BatchGetStream {
    type Item = Result<Option<Bytes>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

/// The results of a [`Client::batch_put_stream`].
pub struct BatchPutStream(BoxStream<'static, Result<Written>>);

impl Stream for BatchPutStream {
    type Item = Result<Written>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

fn found(result: v1::BatchGetResult) -> Result<Option<Bytes>> {
    match result.result {
        Some(batch_get_result::Result::Value(value)) => Ok(Some(value)),
        Some(batch_get_result::Result::Missing(_)) => Ok(None),
        Some(batch_get_result::Result::Error(error)) => {
            Err(Failure::of_wire(&error, false).into_error())
        }
        None => Err(empty()),
    }
}

fn written(result: v1::BatchPutResult) -> Result<Written> {
    let existed = result.existed;
    match result.result {
        Some(batch_put_result::Result::Applied(_)) => {
            Ok(Written { applied: true, existed, current: None })
        }
        Some(batch_put_result::Result::NotApplied(not)) => {
            Ok(Written { applied: false, existed: false, current: not.current })
        }
        Some(batch_put_result::Result::Error(error)) => {
            Err(Failure::of_wire(&error, true).into_error())
        }
        None => Err(empty()),
    }
}

/// A result that this release does not understand; of a write, the outcome is unknown.
fn empty() -> Error {
    ApiError::internal("the server sent a result that this client does not know").into()
}
