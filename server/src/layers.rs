//! What every call passes before its method: refusal while stopping, load shedding, the deadline,
//! counters, and the net for panics.
//!
//! Invariants: a call counts against the limit until its answer has been sent or dropped, streams
//! included; health and reflection are never refused; no panic reaches the transport.

mod body;
mod deadline;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use http::{Request, Response};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};
use vmemkv_proto::{ApiError, ErrorKind};

pub(crate) use deadline::Deadline;

use self::body::{CallGuard, CountedBody};
use crate::io_pool;
use crate::metrics::Metrics;
use crate::node::Node;

/// How long a caller should wait when too many calls are under way.
const SHED_RETRY_MS: u64 = 100;

/// Wraps all services of a server.
#[derive(Clone)]
pub(crate) struct CallLayer {
    node: Arc<Node>,
    calls: Arc<Semaphore>,
}

impl CallLayer {
    /// The layer for `node`.
    pub(crate) fn new(node: Arc<Node>) -> Self {
        let calls = Arc::new(Semaphore::new(node.config.limits.max_concurrent_calls));
        Self { node, calls }
    }
}

impl<S> Layer<S> for CallLayer {
    type Service = CallService<S>;

    fn layer(&self, inner: S) -> CallService<S> {
        CallService { inner, layer: self.clone() }
    }
}

/// See [`CallLayer`].
#[derive(Clone)]
pub(crate) struct CallService<S> {
    inner: S,
    layer: CallLayer,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<S> Service<Request<Body>> for CallService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<CountedBody>;
    type Error = S::Error;
    type Future = BoxFuture<Result<Response<CountedBody>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let node = Arc::clone(&self.layer.node);
        let mut guard = CallGuard::begin(Arc::clone(&node), request.uri().path());
        if !is_exempt(request.uri().path()) {
            match self.admit() {
                Ok(permit) => guard.keep(permit),
                Err(error) => {
                    let response = error.to_status().into_http::<Body>();
                    return Box::pin(async move { Ok(CountedBody::wrap(response, guard)) });
                }
            }
        }
        let deadline = Deadline::of(request.headers());
        request.extensions_mut().insert(deadline);
        let call = AssertUnwindSafe(self.inner.call(request)).catch_unwind();
        Box::pin(async move {
            let ended = tokio::select! {
                biased;
                ended = call => ended,
                () = deadline.passed() => {
                    Metrics::count(&node.metrics.stopped_by_deadline);
                    let response = deadline_exceeded().to_status().into_http::<Body>();
                    return Ok(CountedBody::wrap(response, guard));
                }
            };
            let response = match ended {
                Ok(response) => response?,
                Err(_) => {
                    tracing::error!("a call panicked");
                    Status::from(ApiError::internal("the call failed; the server's log says more"))
                        .into_http::<Body>()
                }
            };
            Ok(CountedBody::wrap(response, guard))
        })
    }
}

impl<S> CallService<S> {
    fn admit(&self) -> Result<tokio::sync::OwnedSemaphorePermit, ApiError> {
        if self.layer.node.stopping.is_cancelled() {
            return Err(io_pool::closing());
        }
        Arc::clone(&self.layer.calls).try_acquire_owned().map_err(|_| {
            Metrics::count(&self.layer.node.metrics.shed);
            let limit = self.layer.node.config.limits.max_concurrent_calls;
            let message = format!("{limit} calls are under way, no more are taken");
            ApiError::new(ErrorKind::ResourceExhausted, message)
                .with_not_applied()
                .with_retry_after_ms(SHED_RETRY_MS)
        })
    }
}

/// What a caller hears, if it still listens, once its deadline has passed.
pub(crate) fn deadline_exceeded() -> ApiError {
    ApiError::new(ErrorKind::DeadlineExceeded, "the deadline of the call has passed")
}

/// Calls that an operator needs most when the server is busy or stopping.
fn is_exempt(path: &str) -> bool {
    path.starts_with("/grpc.health.") || path.starts_with("/grpc.reflection.")
}
