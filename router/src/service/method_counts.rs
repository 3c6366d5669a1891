//! Counts of calls per gRPC method, around every service of a port; a panic in a call ends there.
//!
//! Invariants: only methods of the served services are counted, at most [`MAX_METHODS`], whatever
//! paths callers make up; a call that panics is answered with INTERNAL, and its connection lives on.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};
use vmemkv_proto::v1;

/// How many methods are counted.
const MAX_METHODS: usize = 256;

/// Calls and errors per method.
#[derive(Debug, Default)]
pub(crate) struct MethodCounts {
    methods: Mutex<BTreeMap<String, Arc<Count>>>,
}

#[derive(Debug, Default)]
struct Count {
    calls: AtomicU64,
    errors: AtomicU64,
}

impl MethodCounts {
    /// The counts, by method.
    pub(crate) fn list(&self) -> Vec<v1::MethodCount> {
        let methods = self.methods.lock();
        let counts = methods.iter().map(|(method, count)| v1::MethodCount {
            method: method.clone(),
            calls: count.calls.load(Ordering::Relaxed),
            errors: count.errors.load(Ordering::Relaxed),
        });
        counts.collect()
    }

    fn of(&self, path: &str) -> Option<Arc<Count>> {
        let method = path.strip_prefix('/')?;
        if !method.starts_with("vmemkv.") && !method.starts_with("grpc.") {
            return None;
        }
        let mut methods = self.methods.lock();
        if let Some(count) = methods.get(method) {
            return Some(Arc::clone(count));
        }
        if methods.len() >= MAX_METHODS {
            return None;
        }
        let count = Arc::<Count>::default();
        methods.insert(method.to_owned(), Arc::clone(&count));
        Some(count)
    }
}

/// Puts [`Counted`] around a service.
#[derive(Clone, Debug)]
pub(crate) struct CountLayer {
    pub(crate) counts: Arc<MethodCounts>,
}

impl<S> Layer<S> for CountLayer {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, counts: Arc::clone(&self.counts) }
    }
}

/// A service whose calls are counted.
#[derive(Clone, Debug)]
pub(crate) struct Counted<S> {
    inner: S,
    counts: Arc<MethodCounts>,
}

impl<S, B> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let count = self.counts.of(request.uri().path());
        if let Some(count) = &count {
            count.calls.fetch_add(1, Ordering::Relaxed);
        }
        let path = request.uri().path().to_owned();
        let call = AssertUnwindSafe(self.inner.call(request)).catch_unwind();
        Box::pin(async move {
            let answer = call.await.unwrap_or_else(|_| {
                tracing::error!(path, "a call has panicked");
                Ok(Status::internal("an internal error; see the log").into_http())
            });
            let failed = match &answer {
                Ok(response) => Status::from_header_map(response.headers())
                    .is_some_and(|status| status.code() != Code::Ok),
                Err(_) => true,
            };
            if let Some(count) = count.filter(|_| failed) {
                count.errors.fetch_add(1, Ordering::Relaxed);
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    async fn call(counts: &Arc<MethodCounts>, path: &str) -> Option<Code> {
        let service = service_fn(|request: Request<()>| async move {
            let answer = match request.uri().path() {
                "/vmemkv.v1.Kv/Get" => Response::new(Body::default()),
                "/vmemkv.v1.Kv/Put" => Status::unavailable("").into_http(),
                path => panic!("{path}"),
            };
            Ok::<_, std::convert::Infallible>(answer)
        });
        let counted = CountLayer { counts: Arc::clone(counts) }.layer(service);
        let request = Request::builder().uri(path).body(()).unwrap();
        let response = counted.oneshot(request).await.unwrap();
        Status::from_header_map(response.headers()).map(|status| status.code())
    }

    #[tokio::test]
    async fn calls_and_errors_are_counted_and_panics_end_in_an_answer() {
        let counts = Arc::new(MethodCounts::default());
        assert_eq!(call(&counts, "/vmemkv.v1.Kv/Get").await, None);
        assert_eq!(call(&counts, "/vmemkv.v1.Kv/Get").await, None);
        assert_eq!(call(&counts, "/vmemkv.v1.Kv/Put").await, Some(Code::Unavailable));
        assert_eq!(call(&counts, "/vmemkv.v1.Kv/Boom").await, Some(Code::Internal));
        assert_eq!(call(&counts, "/else").await, Some(Code::Internal));
        let list: Vec<_> =
            counts.list().into_iter().map(|m| (m.method, m.calls, m.errors)).collect();
        let expected = [("Boom", 1, 1), ("Get", 2, 0), ("Put", 1, 1)]
            .map(|(name, calls, errors)| (format!("vmemkv.v1.Kv/{name}"), calls, errors));
        assert_eq!(list, expected);
    }

    #[test]
    fn paths_that_callers_make_up_are_bounded() {
        let counts = MethodCounts::default();
        for at in 0..1000 {
            counts.of(&format!("/vmemkv.v1.Kv/{at}"));
        }
        assert_eq!(counts.list().len(), MAX_METHODS);
    }
}
