//! [`Stop`]: the end of the router, as long streams see it.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use futures::stream::{Stream, StreamExt as _, unfold};
use tokio::sync::watch;
use tonic::Status;
use vmemkv_proto::ApiError;

/// When a caller may try another router.
const RETRY_HINT_MS: u64 = 100;

/// Says once that the router stops. Clones share it.
#[derive(Clone)]
pub(super) struct Stop {
    stopped: Arc<watch::Sender<bool>>,
}

impl Stop {
    pub(super) fn new() -> Self {
        Self { stopped: Arc::new(watch::Sender::new(false)) }
    }

    /// The router stops.
    pub(super) fn now(&self) {
        self.stopped.send_replace(true);
    }

    /// Waits until the router stops.
    pub(super) async fn stopped(&self) {
        let mut stopped = self.stopped.subscribe();
        // The sender lives as long as `self`.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }

    /// What work then gives, unless the router stops first.
    pub(super) async fn unless<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match select(pin!(self.stopped()), pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((done, _)) => Some(done),
        }
    }

    /// A stream of answers to reads that ends with an error once the router stops.
    pub(super) fn end<T, S>(&self, answers: S) -> impl Stream<Item = Result<T, Status>> + use<T, S>
    where
        S: Stream<Item = Result<T, Status>> + Send + Unpin + 'static,
        T: Send + 'static,
    {
        let stop = self.clone();
        let state = Some((answers, stop));
        unfold(state, |state| async move {
            let (mut answers, stop) = state?;
            match stop.unless(answers.next()).await {
                Some(answer) => Some((answer?, Some((answers, stop)))),
                None => Some((Err(stopping()), None)),
            }
        })
    }
}

/// The last word of a stream: what it has not answered, it has not done.
pub(super) fn stopping() -> Status {
    ApiError::unavailable("the router stops", RETRY_HINT_MS).to_status()
}
