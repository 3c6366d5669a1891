//! The ports: bound early, served with settings that are all set explicitly.
//!
//! Invariants: a port that is taken is an error that names it; a bound port accepts nothing before
//! it is served; what is open when a port stops gets the grace period and no more.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use vmemkv_proto::limits::MAX_MESSAGE_BYTES;

use crate::error::{Error, Result};
use crate::service::method_counts::{CountLayer, MethodCounts};

/// Messages may be this long in both directions: the published limit, and room for what surrounds
/// the keys and values.
pub(crate) const MESSAGE_BYTES: usize = MAX_MESSAGE_BYTES + (1 << 20);

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Streams that a connection may have open.
const MAX_STREAMS: u32 = 1024;
/// Calls of a connection that have not begun to answer; more are shed.
const MAX_CALLS: usize = 1024;
/// HTTP/2 windows: what a caller may send before it is read.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
const KEEPALIVE: Duration = Duration::from_secs(20);
/// After this age a connection takes no new calls, so that callers spread over routers again ..
const CONNECTION_AGE: Duration = Duration::from_secs(600);
/// .. and after this much longer it is closed, whatever still streams.
const CONNECTION_GRACE: Duration = Duration::from_secs(1800);

/// A bound port that does not accept yet.
pub(crate) struct Port {
    what: &'static str,
    address: SocketAddr,
    socket: TcpSocket,
}

impl Port {
    /// Binds an address.
    pub(crate) fn bind(what: &'static str, address: SocketAddr) -> Result<Self> {
        let bind = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let address = socket.local_addr()?;
            Ok(Self { what, address, socket })
        };
        bind().map_err(|source| Error::Listen { what, address, source })
    }

    /// Where it is bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins to accept.
    pub(crate) fn listen(self) -> Result<TcpListener> {
        let Self { what, address, socket } = self;
        socket.listen(BACKLOG).map_err(|source| Error::Listen { what, address, source })
    }
}

/// A port that is served.
pub(crate) struct Served {
    what: &'static str,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Served {
    /// Serves gRPC.
    pub(crate) fn grpc(port: Port, routes: Routes, counts: Arc<MethodCounts>) -> Result<Self> {
        let what = port.what;
        let incoming = TcpIncoming::from(port.listen()?)
            .with_nodelay(Some(true))
            .with_keepalive(Some(KEEPALIVE));
        let mut server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_adaptive_window(Some(false))
            .max_concurrent_streams(MAX_STREAMS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .max_connection_age(CONNECTION_AGE)
            .max_connection_age_grace(CONNECTION_GRACE)
            .concurrency_limit_per_connection(MAX_CALLS)
            .load_shed(true)
            .layer(CountLayer { counts });
        let router = server.add_routes(routes);
        Ok(Self::spawn(what, |stopped| async move {
            if let Err(error) = router.serve_with_incoming_shutdown(incoming, stopped).await {
                tracing::error!(%error, what, "a port is served no more");
            }
        }))
    }

    /// Serves HTTP.
    pub(crate) fn http(port: Port, router: axum::Router) -> Result<Self> {
        let what = port.what;
        let listener = port.listen()?;
        Ok(Self::spawn(what, |stopped| async move {
            let serve = axum::serve(listener, router).with_graceful_shutdown(stopped);
            if let Err(error) = serve.await {
                tracing::error!(%error, what, "a port is served no more");
            }
        }))
    }

    fn spawn<F>(what: &'static str, serve: impl FnOnce(Stopped) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, mut stops) = watch::channel(false);
        let stopped: Stopped = Box::pin(async move {
            // A sender that is gone stops the port as well.
            drop(stops.wait_for(|stops| *stops).await);
        });
        Self { what, stop, task: tokio::spawn(serve(stopped)) }
    }

    /// Accepts nothing more, and waits until what is open has ended, at most for the grace period.
    pub(crate) async fn shutdown(mut self, grace: Duration) {
        self.stop.send_replace(true);
        if tokio::time::timeout(grace, &mut self.task).await.is_err() {
            tracing::warn!(what = self.what, "calls are still open after the grace period");
            self.task.abort();
        }
    }
}

type Stopped = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let error = Port::bind("gRPC", address).err().unwrap().to_string();
        let port = format!("port {} is taken", address.port());
        assert!(error.contains(&port) && error.contains("gRPC"), "{error}");
    }

    #[tokio::test]
    async fn a_bound_port_refuses_connections_until_it_listens() {
        let port = Port::bind("gRPC", "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = port.address();
        assert_ne!(address.port(), 0);
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
        let _listener = port.listen().unwrap();
        assert!(tokio::net::TcpStream::connect(address).await.is_ok());
    }
}
