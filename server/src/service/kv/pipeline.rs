//! Streams of batch frames: several frames under way, answers in the order of the frames.
//!
//! Invariants: at most `frames_in_flight` frames are under way per stream, further ones wait in the
//! transport; the first step of a frame ends before the next frame is read, so that writes of one
//! stream are applied in order; a frame that is refused as a whole is the last one that is read:
//! those before it are finished and answered, then comes the refusal; a panic ends the stream with
//! INTERNAL.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{FutureExt as _, Stream};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tonic::{Status, Streaming};
use vmemkv_proto::ApiError;

use super::caller::{Caller, Stop};

/// The answers of a stream, frame by frame.
pub(crate) struct Ordered<T> {
    frames: Receiver<Receiver<Result<T, Status>>>,
    current: Option<Receiver<Result<T, Status>>>,
}

impl<T> Stream for Ordered<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(current) = &mut self.current {
                if let Some(answer) = ready!(current.poll_recv(cx)) {
                    return Poll::Ready(Some(answer));
                }
                self.current = None;
            }
            match ready!(self.frames.poll_recv(cx)) {
                Some(next) => self.current = Some(next),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Answers each frame of a stream. `check` refuses a frame before anything is done with it. `begin`
/// is its first step, which may still refuse it, and returns the rest of it, which goes on beside the
/// next frames.
pub(super) fn answer_frames<Frame, Answer, Begin, First, Rest>(
    caller: Caller,
    frames: Streaming<Frame>,
    check: fn(&Frame) -> Result<(), ApiError>,
    begin: Begin,
) -> Ordered<Answer>
where
    Frame: Send + 'static,
    Answer: Send + 'static,
    Begin: Fn(Caller, Frame, Sender<Result<Answer, Status>>) -> First + Send + 'static,
    First: Future<Output = Result<Rest, Stop>> + Send + 'static,
    Rest: Future<Output = ()> + Send + 'static,
{
    let (order, answers) = mpsc::channel(caller.node.config.limits.frames_in_flight);
    tokio::spawn(read_frames(caller, frames, check, begin, order));
    Ordered { frames: answers, current: None }
}

async fn read_frames<Frame, Answer, Begin, First, Rest>(
    caller: Caller,
    mut frames: Streaming<Frame>,
    check: fn(&Frame) -> Result<(), ApiError>,
    begin: Begin,
    order: Sender<Receiver<Result<Answer, Status>>>,
) where
    Frame: Send + 'static,
    Answer: Send + 'static,
    Begin: Fn(Caller, Frame, Sender<Result<Answer, Status>>) -> First + Send + 'static,
    First: Future<Output = Result<Rest, Stop>> + Send + 'static,
    Rest: Future<Output = ()> + Send + 'static,
{
    loop {
        let next = tokio::select! {
            biased;
            () = order.closed() => return,
            next = caller.unless_stopped(frames.message()) => next,
        };
        let (out, answer) = mpsc::channel(1);
        let frame = match next.unwrap_or_else(|error| Err(error.to_status())) {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(status) => {
                // The channel is new, so there is room.
                let _ = out.try_send(Err(status));
                let _ = order.send(answer).await;
                return;
            }
        };
        let checked = check(&frame);
        if order.send(answer).await.is_err() {
            caller.count_gone();
            return;
        }
        if let Err(error) = checked {
            return caller.fail(&out, &error).await;
        }
        let first = begin(caller.clone(), frame, out.clone());
        match AssertUnwindSafe(first).catch_unwind().await {
            Ok(Ok(rest)) => {
                tokio::spawn(guarded(rest, out));
            }
            Ok(Err(Stop::Gone)) => return caller.count_gone(),
            Ok(Err(Stop::Failed(error))) => return caller.fail(&out, &error).await,
            Err(_) => return send_panic(&out).await,
        }
    }
}

/// Runs `work`; if it panics, the stream behind `out` ends with an error, not in silence.
pub(super) async fn guarded<T>(work: impl Future<Output = ()>, out: Sender<Result<T, Status>>) {
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        send_panic(&out).await;
    }
}

async fn send_panic<T>(out: &Sender<Result<T, Status>>) {
    tracing::error!("work for a stream panicked");
    let error = ApiError::internal("the call failed; the server's log says more");
    let _ = out.send(Err(error.to_status())).await;
}
