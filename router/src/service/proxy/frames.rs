//! Streams of batch frames: several under way, answered in the order in which they came.
//!
//! Invariants: at most [`FRAMES_IN_FLIGHT`] frames are under way per stream, further ones wait in the
//! transport; each holds at most one answer that was not taken; writes on one key are done in the
//! order of their frames. A frame that is wrong as a whole is the last one that is read, as on a
//! server: those before it are finished and answered, then the refusal ends the stream.

use futures::stream::{StreamExt as _, unfold};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::{Status, Streaming};
use vmemkv_client::dispatch::{BatchGetAnswers, BatchPutAnswers, GateGuard, KeyGate};
use vmemkv_client::{Deadline, Dispatcher, ErrorKind};
use vmemkv_proto::check::{check_batch_get, check_batch_put, unimplemented};
use vmemkv_proto::v1::{batch_operation, batch_put_result};
use vmemkv_proto::{ApiError, v1};

use super::stop::{Stop, stopping};
use super::{Answers, STEP, refuse_ttl};

/// Frames of one stream under way at once.
const FRAMES_IN_FLIGHT: usize = 8;

/// The answers of one frame, or the end of the stream.
type FrameAnswers<T> = Receiver<Result<T, Status>>;

/// Answers a stream of reads.
pub(super) fn gets(
    dispatcher: Dispatcher,
    stop: Stop,
    frames: Streaming<v1::BatchGetRequest>,
    deadline: Deadline,
) -> Answers<v1::BatchGetResponse> {
    let (order, answers) = channel(FRAMES_IN_FLIGHT);
    tokio::spawn(async move {
        let mut frames = Frames { frames, stop, deadline, order, check: check_batch_get };
        while let Some((frame, out)) = frames.next().await {
            let dispatcher = dispatcher.clone();
            tokio::spawn(async move {
                match dispatcher.batch_get(frame, deadline, STEP).await {
                    Ok(answers) => send_gets(answers, out).await,
                    Err(error) => send_last(out, error.into()).await,
                }
            });
        }
    });
    in_order(answers)
}

/// Answers a stream of writes.
pub(super) fn puts(
    dispatcher: Dispatcher,
    stop: Stop,
    frames: Streaming<v1::BatchPutRequest>,
    deadline: Deadline,
) -> Answers<v1::BatchPutResponse> {
    let (order, answers) = channel(FRAMES_IN_FLIGHT);
    tokio::spawn(async move {
        let gate = KeyGate::default();
        let mut frames = Frames { frames, stop, deadline, order, check: check_put };
        while let Some((frame, out)) = frames.next().await {
            // Waits for frames before it that have one of its keys.
            let entered = tokio::select! {
                entered = gate.enter(&frame.operations) => entered,
                () = out.closed() => return,
            };
            let expiring = expiring(&frame.operations);
            let dispatcher = dispatcher.clone();
            tokio::spawn(async move {
                match dispatcher.batch_put(frame, deadline, STEP).await {
                    Ok(answers) => send_puts(answers, out, entered, &expiring).await,
                    Err(error) => send_last(out, error.into()).await,
                }
            });
        }
    });
    in_order(answers)
}

/// The frames of a stream as they come, each with a place in the order of the answers.
struct Frames<F, A> {
    frames: Streaming<F>,
    stop: Stop,
    deadline: Deadline,
    order: Sender<FrameAnswers<A>>,
    /// Refuses a frame as a whole; none is read after it.
    check: fn(&F) -> Result<(), ApiError>,
}

impl<F, A> Frames<F, A> {
    /// The next frame; none: the stream ends, or nobody listens.
    async fn next(&mut self) -> Option<(F, Sender<Result<A, Status>>)> {
        // A place first: frames beyond the bound wait in the transport.
        let place = tokio::select! {
            place = self.order.reserve() => place.ok()?,
            () = self.deadline.passed_by() => return self.end(late()).await,
        };
        let next = tokio::select! {
            biased;
            () = self.order.closed() => return None,
            () = self.deadline.passed_by() => Some(Err(late())),
            next = self.stop.unless(self.frames.message()) => next,
        };
        let (out, answers) = channel(1);
        let end = match next {
            Some(Ok(Some(frame))) => match (self.check)(&frame) {
                Ok(()) => {
                    place.send(answers);
                    return Some((frame, out));
                }
                Err(refused) => refused.to_status(),
            },
            Some(Ok(None)) => return None,
            Some(Err(status)) => status,
            None => stopping(),
        };
        // The channel is new, so there is room.
        let _ = out.try_send(Err(end));
        place.send(answers);
        None
    }

    async fn end(&self, status: Status) -> Option<(F, Sender<Result<A, Status>>)> {
        let (out, answers) = channel(1);
        let _ = out.try_send(Err(status));
        let _ = self.order.send(answers).await;
        None
    }
}

/// Frames that were not read have not been begun; those that were have their answers.
fn late() -> Status {
    ApiError::new(ErrorKind::DeadlineExceeded, "the deadline of the stream has passed").to_status()
}

async fn send_gets(
    mut answers: BatchGetAnswers,
    out: Sender<Result<v1::BatchGetResponse, Status>>,
) {
    loop {
        let next = tokio::select! {
            () = out.closed() => return,
            next = answers.next() => next,
        };
        let Some(answer) = next else { return };
        if out.send(Ok(answer)).await.is_err() {
            return;
        }
    }
}

/// Keeps the frame's keys until its last answer is known, or until nobody listens any more: then the
/// stream is over, and what was sent is neither waited for nor taken back.
async fn send_puts(
    mut answers: BatchPutAnswers,
    out: Sender<Result<v1::BatchPutResponse, Status>>,
    entered: GateGuard,
    expiring: &[usize],
) {
    let mut listening = true;
    while let Some(mut answer) = answers.next().await {
        name_ttl(&mut answer, expiring);
        listening = listening && out.send(Ok(answer)).await.is_ok();
        if !listening {
            break;
        }
    }
    drop(entered);
}

/// Refuses what a server refuses as a whole. Not by the servers' answers: by then frames behind it
/// would be under way.
fn check_put(frame: &v1::BatchPutRequest) -> Result<(), ApiError> {
    check_batch_put(frame)?;
    if frame.request_id.is_some() {
        return Err(unimplemented("request_id"));
    }
    if frame.atomic { Err(unimplemented("atomic")) } else { Ok(()) }
}

/// The puts with an expiry of 0. The dispatcher refuses each as a wrong argument and sends it nowhere.
fn expiring(operations: &[v1::BatchOperation]) -> Vec<usize> {
    let is = |operation: &v1::BatchOperation| match &operation.operation {
        Some(batch_operation::Operation::Put(put)) => put.ttl_ms == Some(0),
        _ => false,
    };
    operations.iter().enumerate().filter(|(_, operation)| is(operation)).map(|(at, _)| at).collect()
}

/// Refuses those in the words of a server, which has no expiry at all yet.
fn name_ttl(answer: &mut v1::BatchPutResponse, expiring: &[usize]) {
    let first = usize::try_from(answer.first).unwrap_or(usize::MAX);
    for at in expiring {
        let result = at.checked_sub(first).and_then(|at| answer.results.get_mut(at));
        if let (Some(result), Err(error)) = (result, refuse_ttl(Some(0))) {
            result.result = Some(batch_put_result::Result::Error(error.to_wire()));
        }
    }
}

async fn send_last<T>(out: Sender<Result<T, Status>>, status: Status) {
    let _ = out.send(Err(status)).await;
}

/// The answers frame by frame; nothing after an error.
fn in_order<T: Send + 'static>(frames: Receiver<FrameAnswers<T>>) -> Answers<T> {
    let state = Some((frames, None::<FrameAnswers<T>>));
    unfold(state, |state| async move {
        let (mut frames, mut current) = state?;
        loop {
            if let Some(answers) = &mut current {
                match answers.recv().await {
                    Some(Ok(answer)) => return Some((Ok(answer), Some((frames, current)))),
                    Some(Err(status)) => return Some((Err(status), None)),
                    None => {}
                }
            }
            current = Some(frames.recv().await?);
        }
    })
    .boxed()
}
