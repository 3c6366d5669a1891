//! The handle of a running server.
//!
//! Invariants: the ports are taken before [`Server::start`] returns; [`Server::shutdown`] ends
//! within the grace plus the time of a checkpoint, whatever clients do.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic_health::server::HealthReporter;
use vmemkv_engine::Engine;
use vmemkv_proto::FILE_DESCRIPTOR_SET;

use crate::clock::{BootClock, Clock};
use crate::config::{Config, LimitsConfig};
use crate::error::{Error, Result};
use crate::layers::CallLayer;
use crate::node::Node;
use crate::service::kv::KvService;
use crate::service::node::NodeService;
use crate::service::node_admin::NodeAdminService;
use crate::{health, http, incoming, registration, shutdown};

/// How long cut connections may take to end.
const CUT_WAIT: Duration = Duration::from_secs(2);
/// How long a peer may take to answer an HTTP/2 ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Replaces the filter of the log (a level, or directives such as `info,vmemkv_engine=debug`) and
/// returns the one before; the error says what is wrong with the filter.
pub type SetLogFilter = Arc<dyn Fn(&str) -> std::result::Result<String, String> + Send + Sync>;

/// What a caller of [`Server::start_with`] may add to the configuration.
#[derive(Clone, Default)]
pub struct StartOptions {
    /// Serves `NodeAdmin.SetLogLevel`; none: UNIMPLEMENTED.
    pub set_log_filter: Option<SetLogFilter>,
}

/// Where a server is with its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Not registered yet, or again; it keeps trying. Why, if an attempt failed.
    Waiting {
        /// The last failure; empty: none yet.
        reason: String,
    },
    /// Registered; data is served while the lease lasts.
    Registered {
        /// The cluster.
        cluster_id: u64,
    },
    /// A router refused this server (another cluster, a copied directory, a removed node); it
    /// keeps trying, slowly.
    Refused {
        /// What the router said.
        reason: String,
    },
}

/// A running server. Dropping it stops it without grace and without a checkpoint.
pub struct Server {
    node: Arc<Node>,
    grpc_addr: SocketAddr,
    http_addr: SocketAddr,
    node_id: u64,
    reporter: HealthReporter,
    /// Cuts all connections.
    kill: CancellationToken,
    grpc: JoinHandle<std::result::Result<(), tonic::transport::Error>>,
    /// Registration, health, HTTP.
    tasks: Vec<JoinHandle<()>>,
}

impl Server {
    /// Takes the ports, opens the data directory and starts to serve. Registration with a router
    /// goes on in the background: see [`Server::registration`].
    pub async fn start(config: Config) -> Result<Self> {
        Self::start_with(config, StartOptions::default()).await
    }

    /// The same with additions that a configuration file cannot hold.
    pub async fn start_with(config: Config, options: StartOptions) -> Result<Self> {
        Self::start_on(config, options, Arc::new(BootClock)).await
    }

    pub(crate) async fn start_on(
        config: Config,
        options: StartOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        config.validate()?;
        let (grpc_listener, grpc_addr) = listen("listen", config.listen).await?;
        let (http_listener, http_addr) = listen("http_listen", config.http_listen).await?;
        let address = config.advertise.clone().unwrap_or_else(|| grpc_addr.to_string());
        let http_address = advertised_http(&address, http_addr);
        let set_log_filter = options.set_log_filter;
        let node = Arc::new(Node::new(config, address, http_address, clock, set_log_filter));

        // HTTP comes first: opening a directory may take long, and a probe must get an answer.
        let http_task = tokio::spawn(serve_http(http_listener, Arc::clone(&node)));
        let node_id = match open_engine(&node).await {
            Ok(node_id) => node_id,
            Err(error) => {
                http_task.abort();
                return Err(error);
            }
        };

        let kill = CancellationToken::new();
        let (reporter, health_service) = tonic_health::server::health_reporter();
        health::stop(&reporter).await;
        let incoming = incoming::connections(
            grpc_listener,
            kill.clone(),
            connection_lifetime(&node.config.limits),
        );
        let router = transport(&node.config.limits)
            .layer(CallLayer::new(Arc::clone(&node)))
            .add_service(health_service)
            .add_service(reflection().build_v1().map_err(|error| no_reflection(&error))?)
            .add_service(reflection().build_v1alpha().map_err(|error| no_reflection(&error))?)
            .add_service(KvService::server(Arc::clone(&node)))
            .add_service(NodeAdminService::server(Arc::clone(&node)))
            .add_service(NodeService::server(Arc::clone(&node)));
        let stopping = node.stopping.clone().cancelled_owned();
        let grpc = tokio::spawn(router.serve_with_incoming_shutdown(incoming, stopping));
        let tasks = vec![
            http_task,
            tokio::spawn(registration::run(Arc::clone(&node))),
            tokio::spawn(registration::candidates::run(Arc::clone(&node))),
            tokio::spawn(health::watch(Arc::clone(&node), reporter.clone())),
        ];
        tracing::info!(%grpc_addr, %http_addr, node_id, "serving");
        Ok(Self { node, grpc_addr, http_addr, node_id, reporter, kill, grpc, tasks })
    }

    /// Where gRPC is served.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Where HTTP is served.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// The node's id, made on the directory's first start.
    pub fn node_id(&self) -> u64 {
        self.node_id
    }

    /// Where the server is with its cluster, and each change of it.
    pub fn registration(&self) -> watch::Receiver<Registration> {
        self.node.registration.subscribe()
    }

    /// Serves until `signal` is ready or the service fails, then shuts down.
    pub async fn run_until(mut self, signal: impl Future<Output = ()> + Send) -> Result<()> {
        let failed = tokio::select! {
            () = signal => None,
            ended = &mut self.grpc => Some(match ended {
                Ok(Ok(())) => "it ended by itself".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            }),
        };
        let closed = self.shutdown().await;
        match failed {
            Some(failed) => Err(Error::Service(failed)),
            None => closed,
        }
    }

    /// Ends gracefully: health says NOT_SERVING, no connection is accepted, open streams end with
    /// UNAVAILABLE, requests under way finish within the grace, the engine makes a checkpoint and
    /// closes. Never hangs on clients.
    pub async fn shutdown(mut self) -> Result<()> {
        tracing::info!("shutting down");
        self.node.stopping.cancel();
        health::stop(&self.reporter).await;
        // What registers and reports ends before health could be said to be good again.
        for task in self.tasks.drain(..) {
            task.abort();
            let _ = task.await;
        }
        health::stop(&self.reporter).await;
        if !self.grpc.is_finished() {
            let grace = self.node.config.grace();
            if tokio::time::timeout(grace, &mut self.grpc).await.is_err() {
                tracing::warn!("the grace is over: connections are cut");
                self.kill.cancel();
                if tokio::time::timeout(CUT_WAIT, &mut self.grpc).await.is_err() {
                    tracing::warn!("connections do not end; they are left alone");
                }
            }
        }
        self.kill.cancel();
        shutdown::close_engine(&self.node).await?;
        tracing::info!("shut down");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.node.stopping.cancel();
        self.kill.cancel();
        self.grpc.abort();
        for task in &self.tasks {
            task.abort();
        }
        self.node.pool.close();
        drop(self.node.take_engine());
    }
}

async fn listen(setting: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let failed = |source| Error::Listen { setting, address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// The HTTP port at the host under which gRPC is reached.
fn advertised_http(address: &str, http_addr: SocketAddr) -> String {
    match address.rsplit_once(':') {
        Some((host, _)) if http_addr.ip().is_unspecified() => {
            format!("{host}:{}", http_addr.port())
        }
        _ => http_addr.to_string(),
    }
}

async fn open_engine(node: &Arc<Node>) -> Result<u64> {
    let (dir, options) = (node.data_dir().clone(), node.config.engine.to_options());
    let opened = tokio::task::spawn_blocking(move || Engine::open(dir, options)).await;
    match opened {
        Ok(Ok(engine)) => {
            let node_id = engine.identity().node_id;
            node.set_engine(engine);
            Ok(node_id)
        }
        Ok(Err(error)) => Err(Error::engine(node.data_dir(), &error)),
        Err(_) => Err(Error::Engine {
            dir: node.data_dir().clone(),
            message: "opening it panicked; the log says more".to_owned(),
        }),
    }
}

async fn serve_http(listener: TcpListener, node: Arc<Node>) {
    if let Err(error) = axum::serve(listener, http::routes(node)).await {
        tracing::error!(%error, "the HTTP port failed");
    }
}

fn transport(limits: &LimitsConfig) -> tonic::transport::Server {
    let mut server = tonic::transport::Server::builder()
        .initial_stream_window_size(limits.stream_window_bytes)
        .initial_connection_window_size(limits.connection_window_bytes)
        .max_concurrent_streams(limits.max_concurrent_streams)
        .http2_adaptive_window(Some(false))
        .http2_keepalive_interval(Some(Duration::from_millis(limits.keepalive_ms)))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT));
    if limits.connection_age_ms > 0 {
        // Asks only; what does not end is cut with the connection's lifetime.
        server = server.max_connection_age(Duration::from_millis(limits.connection_age_ms));
    }
    server
}

/// After this time a connection is cut.
fn connection_lifetime(limits: &LimitsConfig) -> Option<Duration> {
    let ends = limits.connection_age_ms > 0 && limits.connection_age_grace_ms > 0;
    let lifetime = limits.connection_age_ms.saturating_add(limits.connection_age_grace_ms);
    ends.then(|| Duration::from_millis(lifetime))
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name("vmemkv.v1.Kv")
        .with_service_name("vmemkv.v1.NodeAdmin")
        .with_service_name("grpc.health.v1.Health")
}

fn no_reflection(error: &tonic_reflection::server::Error) -> Error {
    Error::Service(format!("reflection: {error}"))
}
