//! BatchPut: frames of writes.
//!
//! Invariants: the writes of a stream are applied in order, frame by frame; results leave once all
//! of them that are sent together are durable; a failing operation fails itself only; values that
//! conditions met are held up to a bound.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc::Sender;
use tonic::{Status, Streaming};
use vmemkv_engine::{Engine, Lsn, Written};
use vmemkv_proto::check::{check_batch_put, unimplemented};
use vmemkv_proto::convert::Write;
use vmemkv_proto::limits::ANSWER_TARGET_BYTES;
use vmemkv_proto::v1::batch_operation::Operation;
use vmemkv_proto::v1::batch_put_result;
use vmemkv_proto::{ApiError, v1};

use super::caller::{Caller, Gone, Stop};
use super::frame_writer::FrameWriter;
use super::pipeline::{Ordered, answer_frames};
use super::{refuse_request_id, refuse_ttl, write};
use crate::engine_error::Effect;
use crate::io_pool::Class;
use crate::node::Node;
use crate::ownership::Admission;

/// What an operation did.
type Outcome = Result<Written, ApiError>;

/// Answers the frames of a stream.
pub(super) fn serve(
    caller: Caller,
    frames: Streaming<v1::BatchPutRequest>,
) -> Ordered<v1::BatchPutResponse> {
    answer_frames(caller, frames, check, begin)
}

/// Refuses a frame as a whole.
fn check(frame: &v1::BatchPutRequest) -> Result<(), ApiError> {
    check_batch_put(frame)?;
    refuse_request_id(frame.request_id.as_ref())?;
    if frame.atomic { Err(unimplemented("atomic")) } else { Ok(()) }
}

/// Applies a frame; what is left is to wait for the log and to answer.
async fn begin(
    caller: Caller,
    frame: v1::BatchPutRequest,
    out: Sender<Result<v1::BatchPutResponse, Status>>,
) -> Result<impl Future<Output = ()> + Send + 'static, Stop> {
    let applied = apply_frame(&caller, frame, out).await?;
    Ok(finish(caller, applied))
}

/// A frame whose last operations have been applied, and are not known to be durable yet.
struct Applied {
    engine: Arc<Engine>,
    writer: FrameWriter<v1::BatchPutResult>,
    outcomes: Vec<Outcome>,
}

async fn finish(caller: Caller, mut applied: Applied) {
    let sent = match send_durable(&caller.node, &mut applied).await {
        Ok(()) => applied.writer.finish().await,
        Err(gone) => Err(gone),
    };
    if sent == Err(Gone) {
        caller.count_gone();
    }
}

/// Applies all operations of a frame. Answers leave from here only when the frame's conditions met
/// more bytes than are held.
async fn apply_frame(
    caller: &Caller,
    frame: v1::BatchPutRequest,
    out: Sender<Result<v1::BatchPutResponse, Status>>,
) -> Result<Applied, Stop> {
    caller.check()?;
    let node = &caller.node;
    let admission = node.ownership.admit()?;
    let engine = node.engine()?;
    let writer = FrameWriter::new(frame.id, out);
    let mut applied = Applied { engine, writer, outcomes: Vec::new() };
    let routes: Arc<[v1::RouteHint]> = frame.routes.into();
    let mut operations = frame.operations.into_iter();
    let mut begun = false;
    while operations.len() > 0 {
        let job = {
            let (node, engine) = (Arc::clone(node), Arc::clone(&applied.engine));
            let (admission, routes) = (admission.clone(), Arc::clone(&routes));
            move || {
                let outcomes = apply_some(&node, &engine, &admission, &routes, &mut operations);
                (outcomes, operations)
            }
        };
        (applied.outcomes, operations) =
            node.pool.run(Class::Write, job).await.map_err(|mut error| {
                // It ends the whole frame: what came before in it may be applied.
                error.not_applied &= !begun;
                error
            })?;
        begun = true;
        if operations.len() > 0 {
            send_durable(node, &mut applied).await?;
        }
    }
    Ok(applied)
}

/// Applies operations until there are none, or the conditions met as many bytes as are held.
fn apply_some(
    node: &Node,
    engine: &Engine,
    admission: &Admission,
    routes: &[v1::RouteHint],
    operations: &mut std::vec::IntoIter<v1::BatchOperation>,
) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(operations.len());
    let mut held = 0;
    while held < ANSWER_TARGET_BYTES
        && let Some(operation) = operations.next()
    {
        let outcome = apply(node, engine, admission, routes, operation);
        held += outcome.as_ref().map_or(0, |written| written.current.as_ref().map_or(0, Vec::len));
        outcomes.push(outcome);
    }
    outcomes
}

fn apply(
    node: &Node,
    engine: &Engine,
    admission: &Admission,
    routes: &[v1::RouteHint],
    operation: v1::BatchOperation,
) -> Outcome {
    if let Some(Operation::Put(put)) = &operation.operation {
        refuse_ttl(put.ttl_ms)?;
    }
    let is_put = matches!(operation.operation, Some(Operation::Put(_)));
    let write = Write::try_from(operation)?;
    admission.check_key_of_frame(write.key(), routes)?;
    let mut written = write::apply(node, engine, &write)?;
    written.existed &= written.applied && !is_put;
    Ok(written)
}

/// Waits once until everything that was applied is durable, then sends the results.
async fn send_durable(node: &Node, applied: &mut Applied) -> Result<(), Gone> {
    let lsn = |outcome: &Outcome| outcome.as_ref().map_or(Lsn(0), |written| written.lsn);
    let last = applied.outcomes.iter().map(lsn).max().unwrap_or_default();
    let mut lost = node.durable(&applied.engine, last, Effect::Unknown).await.err();
    if lost.is_none() {
        lost = node.ownership.still_leased().err();
    }
    for outcome in std::mem::take(&mut applied.outcomes) {
        match (outcome, &lost) {
            (Ok(written), None) => applied.writer.push(result_of(written)).await?,
            (Ok(written), Some(lost)) => {
                let mut error = lost.clone();
                error.not_applied = !written.applied;
                applied.writer.push_error(&error).await?;
            }
            (Err(error), _) => applied.writer.push_error(&error).await?,
        }
    }
    Ok(())
}

fn result_of(written: Written) -> v1::BatchPutResult {
    let result = if written.applied {
        batch_put_result::Result::Applied(true)
    } else {
        let current = written.current.map(Bytes::from);
        batch_put_result::Result::NotApplied(v1::NotApplied { current })
    };
    v1::BatchPutResult { result: Some(result), existed: written.existed }
}
