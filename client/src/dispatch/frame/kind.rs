//! What differs between frames of reads and of writes: [`FrameKind`].

use std::fmt;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _, once};
use tonic::Status;
use tonic::transport::Channel;
use vmemkv_proto::check::{check_key, operation_bytes};
use vmemkv_proto::convert::Write;
use vmemkv_proto::limits::ENTRY_OVERHEAD_BYTES;
use vmemkv_proto::v1::kv_client::KvClient;
use vmemkv_proto::{ApiError, v1};

use crate::deadline::Deadline;
use crate::limited;
use crate::remote_routers::timed;

/// Answers of one server to a part of a frame: index of the first result, results.
pub(crate) type Answers<R> = BoxStream<'static, Result<(u64, Vec<R>), Status>>;

/// Frames of reads, or of writes.
pub(crate) trait FrameKind: fmt::Debug + Send + Sync + 'static {
    /// One key or operation.
    type Op: Clone + fmt::Debug + Send + Sync + 'static;
    /// Its result.
    type Result: fmt::Debug + Send + 'static;
    /// What holds for a whole frame beside its operations.
    type Extra: Clone + fmt::Debug + Default + Send + Sync + 'static;
    /// For messages.
    const NAME: &'static str;
    /// It changes something.
    const WRITE: bool;

    fn key(op: &Self::Op) -> &Bytes;
    /// Refuses an operation that is wrong by itself.
    fn check(op: &Self::Op) -> Result<(), ApiError>;
    /// What the operation counts for the limit of a frame.
    fn op_bytes(op: &Self::Op) -> usize;
    /// What the result takes in an answer, at most.
    fn result_bytes(result: &Self::Result) -> usize;
    /// The error, if it is one.
    fn error(result: &Self::Result) -> Option<&v1::Error>;
    fn failed(error: v1::Error) -> Self::Result;
    /// The frame stays whole: it goes to one server or nowhere.
    fn is_whole(extra: &Self::Extra) -> bool;
    /// Sends a frame by itself.
    fn send(
        channel: Channel,
        ops: Vec<Self::Op>,
        routes: Vec<v1::RouteHint>,
        extra: Self::Extra,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Answers<Self::Result>, Status>> + Send;
}

/// Frames of BatchGet.
#[derive(Debug)]
pub(crate) struct Gets;

impl FrameKind for Gets {
    type Op = Bytes;
    type Result = v1::BatchGetResult;
    type Extra = ();
    const NAME: &'static str = "batch_get";
    const WRITE: bool = false;

    fn key(op: &Bytes) -> &Bytes {
        op
    }

    fn check(op: &Bytes) -> Result<(), ApiError> {
        check_key("keys", op)
    }

    fn op_bytes(op: &Bytes) -> usize {
        op.len()
    }

    fn result_bytes(result: &v1::BatchGetResult) -> usize {
        use v1::batch_get_result::Result as Kind;
        ENTRY_OVERHEAD_BYTES
            + match &result.result {
                Some(Kind::Value(value)) => value.len(),
                Some(Kind::Error(error)) => error_bytes(error),
                _ => 0,
            }
    }

    fn error(result: &v1::BatchGetResult) -> Option<&v1::Error> {
        match &result.result {
            Some(v1::batch_get_result::Result::Error(error)) => Some(error),
            _ => None,
        }
    }

    fn failed(error: v1::Error) -> v1::BatchGetResult {
        v1::BatchGetResult { result: Some(v1::batch_get_result::Result::Error(error)) }
    }

    fn is_whole((): &()) -> bool {
        false
    }

    async fn send(
        channel: Channel,
        keys: Vec<Bytes>,
        routes: Vec<v1::RouteHint>,
        (): (),
        deadline: Deadline,
    ) -> Result<Answers<v1::BatchGetResult>, Status> {
        let frame = v1::BatchGetRequest { id: 1, keys, routes };
        let frames = once(async { frame });
        let answers = limited!(KvClient::new(channel)).batch_get(timed(frames, deadline)).await?;
        let answers = answers.into_inner();
        Ok(answers.map(|answer| answer.map(|answer| (answer.first, answer.results))).boxed())
    }
}

/// Frames of BatchPut.
#[derive(Debug)]
pub(crate) struct Puts;

/// What holds for a whole frame of writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PutsExtra {
    pub(crate) atomic: bool,
    pub(crate) request_id: Option<v1::RequestId>,
}

impl FrameKind for Puts {
    type Op = v1::BatchOperation;
    type Result = v1::BatchPutResult;
    type Extra = PutsExtra;
    const NAME: &'static str = "batch_put";
    const WRITE: bool = true;

    fn key(op: &v1::BatchOperation) -> &Bytes {
        static NONE: Bytes = Bytes::new();
        match &op.operation {
            Some(v1::batch_operation::Operation::Put(put)) => &put.key,
            Some(v1::batch_operation::Operation::Delete(delete)) => &delete.key,
            None => &NONE,
        }
    }

    fn check(op: &v1::BatchOperation) -> Result<(), ApiError> {
        Write::try_from(op.clone()).map(|_| ())
    }

    fn op_bytes(op: &v1::BatchOperation) -> usize {
        operation_bytes(op)
    }

    fn result_bytes(result: &v1::BatchPutResult) -> usize {
        use v1::batch_put_result::Result as Kind;
        ENTRY_OVERHEAD_BYTES
            + match &result.result {
                Some(Kind::NotApplied(not)) => not.current.as_ref().map_or(0, Bytes::len),
                Some(Kind::Error(error)) => error_bytes(error),
                _ => 0,
            }
    }

    fn error(result: &v1::BatchPutResult) -> Option<&v1::Error> {
        match &result.result {
            Some(v1::batch_put_result::Result::Error(error)) => Some(error),
            _ => None,
        }
    }

    fn failed(error: v1::Error) -> v1::BatchPutResult {
        let result = Some(v1::batch_put_result::Result::Error(error));
        v1::BatchPutResult { result, existed: false }
    }

    fn is_whole(extra: &PutsExtra) -> bool {
        extra.atomic
    }

    async fn send(
        channel: Channel,
        operations: Vec<v1::BatchOperation>,
        routes: Vec<v1::RouteHint>,
        extra: PutsExtra,
        deadline: Deadline,
    ) -> Result<Answers<v1::BatchPutResult>, Status> {
        let PutsExtra { atomic, request_id } = extra;
        let frame = v1::BatchPutRequest { id: 1, operations, atomic, request_id, routes };
        let frames = once(async { frame });
        let answers = limited!(KvClient::new(channel)).batch_put(timed(frames, deadline)).await?;
        let answers = answers.into_inner();
        Ok(answers.map(|answer| answer.map(|answer| (answer.first, answer.results))).boxed())
    }
}

/// An upper bound of the encoded length, without the encoder.
fn error_bytes(error: &v1::Error) -> usize {
    let shards = error.routing.iter().flat_map(|routing| &routing.shards);
    let shards: usize =
        shards.map(|shard| 64 + shard.start.len() + shard.end.len() + shard.address.len()).sum();
    96 + error.message.len() + shards
}
