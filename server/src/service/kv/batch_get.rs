//! BatchGet: frames of keys.
//!
//! Invariants: results come in the order of the keys, a failing key fails itself only; what is held
//! of an answer is bounded, however large the values are; keys that need the disk are read
//! together, a bounded number at a time.

use std::future::{Future, ready};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{Either, join_all};
use tokio::sync::mpsc::Sender;
use tonic::{Status, Streaming};
use vmemkv_engine::Engine;
use vmemkv_proto::check::{check_batch_get, check_key};
use vmemkv_proto::limits::ANSWER_TARGET_BYTES;
use vmemkv_proto::v1::batch_get_result;
use vmemkv_proto::{ApiError, v1};

use super::caller::{Caller, Stop};
use super::frame_writer::FrameWriter;
use super::pipeline::{Ordered, answer_frames};
use super::read::{self, Now};
use crate::ownership::Admission;

/// Most keys of a frame that wait for the disk at a time.
const WINDOW_MAX: usize = 16;
/// After so many keys that needed no waiting other tasks get a turn.
const KEYS_PER_TURN: usize = 256;

/// Answers the frames of a stream.
pub(super) fn serve(
    caller: Caller,
    frames: Streaming<v1::BatchGetRequest>,
) -> Ordered<v1::BatchGetResponse> {
    answer_frames(caller, frames, check_batch_get, |caller, frame, out| {
        // Reads need no order among frames: but for the admission all of it is the rest.
        let begun = begin(&caller);
        ready(begun.map(|begun| answer(caller, begun, frame, out)).map_err(Stop::from))
    })
}

/// What a frame is read with.
fn begin(caller: &Caller) -> Result<(Admission, Arc<Engine>), ApiError> {
    Ok((caller.node.ownership.admit()?, caller.node.engine()?))
}

async fn answer(
    caller: Caller,
    begun: (Admission, Arc<Engine>),
    frame: v1::BatchGetRequest,
    out: Sender<Result<v1::BatchGetResponse, Status>>,
) {
    match read_frame(&caller, begun, frame, out.clone()).await {
        Ok(()) => {}
        Err(Stop::Gone) => caller.count_gone(),
        Err(Stop::Failed(error)) => caller.fail(&out, &error).await,
    }
}

async fn read_frame(
    caller: &Caller,
    (admission, engine): (Admission, Arc<Engine>),
    frame: v1::BatchGetRequest,
    out: Sender<Result<v1::BatchGetResponse, Status>>,
) -> Result<(), Stop> {
    let node = &caller.node;
    let mut writer = FrameWriter::new(frame.id, out);
    let (keys, routes) = (frame.keys, frame.routes);
    let mut largest = 0;
    let mut at = 0;
    while at < keys.len() {
        if at % KEYS_PER_TURN == KEYS_PER_TURN - 1 {
            caller.check()?;
            tokio::task::yield_now().await;
        }
        let now = check(&admission, &keys[at], &routes)
            .and_then(|()| read::read_now(node, &engine, &keys[at]));
        if !matches!(now, Ok(Now::Later)) {
            let value = now.map(|now| match now {
                Now::Ready(value) => value,
                Now::Later => None,
            });
            push(&mut writer, value, &mut largest).await?;
            at += 1;
            continue;
        }
        // Small values wait together; of large ones only a few are held.
        caller.check()?;
        let window = (ANSWER_TARGET_BYTES / largest.max(1)).clamp(1, WINDOW_MAX);
        let keys = &keys[at..keys.len().min(at + window)];
        let reads = keys.iter().map(|key| read_key(caller, &engine, &admission, key, &routes));
        for value in join_all(reads).await {
            push(&mut writer, value, &mut largest).await?;
        }
        at += keys.len();
    }
    drop(admission);
    node.ownership.require_lease()?;
    Ok(writer.finish().await?)
}

async fn push(
    writer: &mut FrameWriter<v1::BatchGetResult>,
    value: Result<Option<Bytes>, ApiError>,
    largest: &mut usize,
) -> Result<(), Stop> {
    let result = match value {
        Ok(Some(value)) => {
            *largest = (*largest).max(value.len());
            batch_get_result::Result::Value(value)
        }
        Ok(None) => batch_get_result::Result::Missing(true),
        Err(error) => return Ok(writer.push_error(&error).await?),
    };
    Ok(writer.push(v1::BatchGetResult { result: Some(result) }).await?)
}

fn read_key<'a>(
    caller: &'a Caller,
    engine: &'a Arc<Engine>,
    admission: &Admission,
    key: &'a Bytes,
    routes: &[v1::RouteHint],
) -> impl Future<Output = Result<Option<Bytes>, ApiError>> + Send + 'a {
    match check(admission, key, routes) {
        Ok(()) => Either::Left(read::read(&caller.node, engine, key)),
        Err(error) => Either::Right(ready(Err(error))),
    }
}

fn check(admission: &Admission, key: &[u8], routes: &[v1::RouteHint]) -> Result<(), ApiError> {
    check_key("keys", key)?;
    admission.check_key_of_frame(key, routes)
}
