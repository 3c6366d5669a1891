//! The answer of a call on its way out: it ends the call in the counters.
//!
//! Invariant: a call ends exactly once: with its trailers, or by being dropped, which means that
//! the caller has gone.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;
use tonic::body::Body;

use crate::metrics::{MethodStats, Metrics};
use crate::node::Node;

/// A call under way.
pub(crate) struct CallGuard {
    node: Arc<Node>,
    method: Arc<MethodStats>,
    permit: Option<OwnedSemaphorePermit>,
    ended: bool,
}

impl CallGuard {
    /// A call of the method at `path` begins.
    pub(crate) fn begin(node: Arc<Node>, path: &str) -> Self {
        let method = Arc::clone(node.metrics.method(path));
        Metrics::count(&method.calls);
        Metrics::count(&node.metrics.in_flight);
        Self { node, method, permit: None, ended: false }
    }

    /// Holds a place until the call ends.
    pub(crate) fn keep(&mut self, permit: OwnedSemaphorePermit) {
        self.permit = Some(permit);
    }

    fn end(&mut self, headers: &HeaderMap) {
        if let Some(status) = headers.get("grpc-status") {
            self.ended = true;
            if status.as_bytes() != b"0" {
                Metrics::count(&self.method.errors);
            }
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.node.metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        if !self.ended {
            Metrics::count(&self.method.abandoned);
        }
    }
}

/// A body that counts how its call ends.
pub(crate) struct CountedBody {
    inner: Body,
    guard: CallGuard,
}

impl CountedBody {
    /// The response with its body counted.
    pub(crate) fn wrap(response: Response<Body>, mut guard: CallGuard) -> Response<Self> {
        guard.end(response.headers());
        response.map(|inner| Self { inner, guard })
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.guard.end(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
