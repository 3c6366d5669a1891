//! The same `Kv` service that servers have, for clients that do not route.
//!
//! Owns a dispatcher over this router's map. Invariants: requests are checked, and answered, as one
//! server with every shard would; errors keep what the server said (`not_applied` above all).
//! What this release has not built is refused: here where it concerns a whole frame or a time to live,
//! else by servers, to which it is passed on. Streams are read as fast as their caller reads them; of a scan one answer is held, of a stream of frames a
//! bounded number of frames. The time that a caller has left is told to servers. A route hint that a
//! request brings is meant for servers and is replaced: the proxy routes by its own map, and says
//! nothing of a hint that was wrong.
//!
//! What the router relies on: [`Proxy::new`] is called once, inside the runtime; the service is
//! shared by all connections; [`Proxy::shutdown`] is called once the router begins to stop, before
//! the grace period, so that long streams end by themselves.

mod batch_scan;
mod frames;
mod kv;
mod map_source;
mod stop;
mod time_left;

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use tonic::Status;
use vmemkv_client::dispatch::DispatcherOptions;
use vmemkv_client::routes::RouteSource;
use vmemkv_client::{Deadline, Dispatcher};
use vmemkv_proto::check::unimplemented;
use vmemkv_proto::{ApiError, limits, v1};

use self::map_source::MapSource;
use self::stop::Stop;
use crate::map_view::MapView;

/// How long a call may take whose caller has set no deadline; a DeleteRange then answers with what
/// it has done.
const UNSET_DEADLINE: Duration = Duration::from_secs(10);
/// How long a stream may wait for a server.
const STEP: Duration = Duration::from_secs(30);
/// How long the checksum of one shard may take.
const CHECKSUM_STEP: Duration = Duration::from_secs(600);
/// Single calls that are passed on at once; others wait.
const MAX_IN_FLIGHT: usize = 4096;

/// A stream of answers.
type Answers<T> = BoxStream<'static, Result<T, Status>>;

/// Which cluster and router this is.
type Identity = Arc<dyn Fn() -> (u64, u64) + Send + Sync>;

/// The proxy.
pub(crate) struct Proxy {
    dispatcher: Dispatcher,
    identity: Identity,
    stop: Stop,
}

impl Proxy {
    /// A proxy over the committed map of this router.
    pub(crate) fn new(map: MapView) -> Self {
        let source = Arc::new(MapSource::new(map.clone()));
        Self::over(source, Arc::new(move || (map.cluster_id(), map.router_id())))
    }

    /// A proxy over any map.
    fn over(source: Arc<dyn RouteSource>, identity: Identity) -> Self {
        let mut options = DispatcherOptions::default();
        options.max_in_flight = MAX_IN_FLIGHT;
        options.user_agent = format!("vmemkv-router/{}", env!("CARGO_PKG_VERSION"));
        Self { dispatcher: Dispatcher::new(source, options), identity, stop: Stop::new() }
    }

    /// Ends long streams: what was begun is answered, then they end with UNAVAILABLE.
    pub(crate) fn shutdown(&self) {
        self.stop.now();
    }

    fn info(&self) -> v1::GetInfoResponse {
        let (cluster_id, node_id) = (self.identity)();
        v1::GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: "router".to_owned(),
            cluster_id,
            node_id,
            max_key_bytes: limits::MAX_KEY_BYTES as u64,
            max_value_bytes: limits::MAX_VALUE_BYTES as u64,
            max_message_bytes: limits::MAX_MESSAGE_BYTES as u64,
            max_batch_operations: limits::MAX_BATCH_OPERATIONS as u64,
            max_batch_bytes: limits::MAX_BATCH_BYTES as u64,
            durability: "by the servers".to_owned(),
        }
    }
}

/// Of a single call: what is left of the caller's time, or the proxy's own bound.
fn bounded(deadline: Deadline) -> Deadline {
    if deadline == Deadline::none() { Deadline::within(UNSET_DEADLINE) } else { deadline }
}

/// Refuses an expiry, also one of 0, as a server does.
fn refuse_ttl(ttl_ms: Option<u64>) -> Result<(), ApiError> {
    ttl_ms.map_or(Ok(()), |_| Err(unimplemented("ttl_ms")))
}

#[cfg(test)]
#[path = "proxy_test.rs"]
mod tests;
