//! Whoever waits for the answer of a call, and the reasons to stop working for it.
//!
//! Invariant: work for a stream stops between two parts once its caller has gone, its deadline has
//! passed or the server ends; each of the first two is counted.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::mpsc::Sender;
use tonic::{Request, Status};
use vmemkv_proto::ApiError;

use crate::io_pool;
use crate::layers::{Deadline, deadline_exceeded};
use crate::metrics::Metrics;
use crate::node::Node;

/// The caller of one call.
#[derive(Clone)]
pub(super) struct Caller {
    /// The server that it calls.
    pub(super) node: Arc<Node>,
    /// Until when it waits.
    pub(super) deadline: Deadline,
}

/// The caller does not listen any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// Why work for a caller ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// There is nobody to tell.
    Gone,
    /// Tell the caller.
    Failed(ApiError),
}

impl From<Gone> for Stop {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

impl Caller {
    /// The caller of `request`.
    pub(super) fn of<T>(node: &Arc<Node>, request: &Request<T>) -> Self {
        let deadline = request.extensions().get::<Deadline>().copied().unwrap_or_default();
        Self { node: Arc::clone(node), deadline }
    }

    /// What `work` gives, unless there is a reason to stop first. `work` is dropped then.
    pub(super) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, ApiError> {
        tokio::select! {
            biased;
            () = self.node.stopping.cancelled() => Err(io_pool::closing()),
            () = self.deadline.passed() => {
                Metrics::count(&self.node.metrics.stopped_by_deadline);
                Err(deadline_exceeded())
            }
            result = work => Ok(result),
        }
    }

    /// Whether to go on between two parts of the work.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        if self.deadline.has_passed() {
            Metrics::count(&self.node.metrics.stopped_by_deadline);
            return Err(deadline_exceeded());
        }
        Ok(())
    }

    /// Counts that work was stopped because the caller has gone.
    pub(super) fn count_gone(&self) {
        Metrics::count(&self.node.metrics.stopped_by_caller);
    }

    /// Sends an error as the last word of a stream, if somebody listens.
    pub(super) async fn fail<T>(&self, out: &Sender<Result<T, Status>>, error: &ApiError) {
        let _ = out.send(Err(super::refused(&self.node, error))).await;
    }
}
