//! The router process as its owner sees it: prepare, serve, stop.
//!
//! Invariants: [`Router::prepare`] binds all three ports before it touches the data directory, so a
//! taken port changes nothing; the gRPC port refuses connections until [`Prepared::serve`];
//! [`Router::shutdown`] ends within the grace period and a few seconds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::service::RoutesBuilder;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use vmemkv_proto::FILE_DESCRIPTOR_SET;
use vmemkv_proto::internal::v1::control_server::{self, ControlServer};
use vmemkv_proto::internal::v1::raft_server::RaftServer;
use vmemkv_proto::v1::admin_server::{self, AdminServer};
use vmemkv_proto::v1::kv_server::{self, KvServer};
use vmemkv_proto::v1::router_server::{self, RouterServer};

use crate::clock::SystemClock;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::http::{self, HttpState};
use crate::map_view::MapView;
use crate::monitor::Monitor;
use crate::raft::{RaftNode, RaftSettings, RouterAddress, random_id};
use crate::service::admin::AdminService;
use crate::service::control::ControlService;
use crate::service::method_counts::MethodCounts;
use crate::service::proxy::Proxy;
use crate::service::raft::RaftService;
use crate::service::router::RouterService;
use crate::service::status::StatusView;
use crate::splits::Splits;
use crate::state::{Action, Outcome};
use crate::transport::{MESSAGE_BYTES, Port, Served};

/// How long a start waits for the group.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long the ports that are not for clients get to end.
const SIDE_GRACE: Duration = Duration::from_secs(1);

/// The services of the gRPC port, besides health and reflection.
const SERVICES: [&str; 4] = [
    kv_server::SERVICE_NAME,
    router_server::SERVICE_NAME,
    admin_server::SERVICE_NAME,
    control_server::SERVICE_NAME,
];

/// Where a router listens; port 0 of the configuration has become a real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// gRPC: Kv, Router, Admin, Control, health, reflection.
    pub grpc: SocketAddr,
    /// HTTP: health, metrics, a status page.
    pub http: SocketAddr,
    /// Raft among routers; Control is served here too.
    pub raft: SocketAddr,
}

/// A router whose group runs and whose HTTP and Raft ports serve, while its gRPC port refuses
/// connections. A server in the same process registers at the Raft address.
pub struct Prepared {
    port: Port,
    router: Router,
}

impl Prepared {
    /// Where the router listens, or will.
    pub fn addresses(&self) -> Addresses {
        self.router.addresses
    }

    /// The cluster.
    pub fn cluster_id(&self) -> u64 {
        self.router.cluster_id()
    }

    /// Opens the gRPC port.
    pub async fn serve(self) -> Result<Router> {
        let Self { port, mut router } = self;
        let counts = Arc::clone(&router.counts);
        let served = match router.grpc_routes().await {
            Ok(routes) => Served::grpc(port, routes.routes(), counts),
            Err(error) => Err(error),
        };
        match served {
            Ok(served) => router.grpc = Some(served),
            Err(error) => {
                router.shutdown().await?;
                return Err(error);
            }
        }
        router.serving.send_replace(true);
        tracing::info!(address = %router.addresses.grpc, "the router serves");
        Ok(router)
    }

    /// Stops without having opened the gRPC port.
    pub async fn shutdown(self) -> Result<()> {
        self.router.shutdown().await
    }
}

/// A running router.
pub struct Router {
    addresses: Addresses,
    grace: Duration,
    raft: RaftNode,
    control: ControlService,
    splits: Splits,
    driver: Option<JoinHandle<()>>,
    view: StatusView,
    counts: Arc<MethodCounts>,
    proxy: Arc<Proxy>,
    health: HealthReporter,
    serving: watch::Sender<bool>,
    stopping: watch::Sender<bool>,
    grpc: Option<Served>,
    sides: Vec<Served>,
}

impl Router {
    /// Starts everything but the gRPC port.
    pub async fn prepare(config: Config) -> Result<Prepared> {
        config.check()?;
        let boundaries = config.read_boundaries()?;
        let port = Port::bind("gRPC", config.listen)?;
        let http_port = Port::bind("HTTP", config.http_listen)?;
        let raft_port = Port::bind("Raft", config.raft_listen)?;
        let addresses = Addresses {
            grpc: port.address(),
            http: http_port.address(),
            raft: raft_port.address(),
        };
        warn_of_exposure(&config);
        let own = RouterAddress {
            grpc: config.advertise.clone().unwrap_or_else(|| addresses.grpc.to_string()),
            http: addresses.http.to_string(),
            raft: addresses.raft.to_string(),
        };
        let settings = RaftSettings {
            heartbeat_ms: config.raft_heartbeat_ms,
            election_ms: config.raft_election_ms,
        };
        let raft = RaftNode::open(&config.data, &settings).await?;
        let heartbeat = Duration::from_millis(config.heartbeat_ms);
        let clock = Arc::new(SystemClock::new());
        let monitor = Arc::new(Monitor::new(Arc::<SystemClock>::clone(&clock), heartbeat));
        let splits = Splits::new(raft.clone(), Arc::clone(&monitor), clock, config.split_by_size);
        let map = MapView::new(raft.state().clone(), raft.clone());
        let mut router = Self {
            addresses,
            grace: config.grace(),
            control: ControlService::new(raft.clone(), Arc::clone(&monitor), config.heartbeat_ms),
            view: StatusView::new(raft.clone(), monitor, splits.clone(), own.clone()),
            splits,
            driver: None,
            counts: Arc::default(),
            proxy: Arc::new(Proxy::new(map)),
            health: HealthReporter::new(),
            serving: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
            grpc: None,
            sides: Vec::new(),
            raft,
        };
        let started = async {
            router.raft.bootstrap_alone(own, START_PATIENCE).await?;
            make_cluster(&router.raft, config.lease_ms, boundaries).await?;
            router.driver = Some(tokio::spawn(router.splits.clone().run()));
            router.serve_sides(http_port, raft_port)
        };
        match started.await {
            Ok(()) => Ok(Prepared { port, router }),
            Err(error) => {
                router.shutdown().await?;
                Err(error)
            }
        }
    }

    /// Starts a router.
    pub async fn start(config: Config) -> Result<Self> {
        Self::prepare(config).await?.serve().await
    }

    /// Where the router listens.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The cluster.
    pub fn cluster_id(&self) -> u64 {
        self.raft.state().read(|state| state.cluster.cluster_id)
    }

    /// Waits until the router has failed and cannot go on, and says why. Never returns otherwise.
    pub async fn failed(&self) -> Error {
        Error::Raft(self.raft.failed().await)
    }

    /// Stops: refuses new work, lets calls that run end within the grace period, closes the store.
    pub async fn shutdown(mut self) -> Result<()> {
        self.serving.send_replace(false);
        for service in SERVICES.into_iter().chain([""]) {
            self.health.set_service_status(service, ServingStatus::NotServing).await;
        }
        self.stopping.send_replace(true);
        self.proxy.shutdown();
        if let Some(driver) = self.driver.take() {
            // Whatever it was waiting for, the next run asks again.
            driver.abort();
            let _ = driver.await;
        }
        if let Some(grpc) = self.grpc.take() {
            grpc.shutdown(self.grace).await;
        }
        for side in self.sides.drain(..) {
            side.shutdown(SIDE_GRACE).await;
        }
        self.raft.shutdown().await;
        tracing::info!("the router has stopped");
        Ok(())
    }

    /// The HTTP and the Raft port.
    fn serve_sides(&mut self, http_port: Port, raft_port: Port) -> Result<()> {
        let state = HttpState {
            raft: self.raft.clone(),
            view: self.view.clone(),
            counts: Arc::clone(&self.counts),
            serving: self.serving.subscribe(),
        };
        self.sides.push(Served::http(http_port, http::router(state))?);
        let mut routes = RoutesBuilder::default();
        let raft = RaftServer::new(RaftService::new(self.raft.clone()))
            .max_decoding_message_size(MESSAGE_BYTES)
            .max_encoding_message_size(MESSAGE_BYTES);
        routes.add_service(raft).add_service(self.control_server());
        self.sides.push(Served::grpc(raft_port, routes.routes(), Arc::clone(&self.counts))?);
        Ok(())
    }

    fn control_server(&self) -> ControlServer<ControlService> {
        ControlServer::new(self.control.clone())
            .max_decoding_message_size(MESSAGE_BYTES)
            .max_encoding_message_size(MESSAGE_BYTES)
    }

    /// The services of the gRPC port.
    async fn grpc_routes(&self) -> Result<RoutesBuilder> {
        let state = self.raft.state().clone();
        let map = MapView::new(state.clone(), self.raft.clone());
        let router = RouterService::new(state, map, self.stopping.subscribe());
        let admin =
            AdminService::new(self.view.clone(), self.splits.clone(), Arc::clone(&self.counts));
        let kv = KvServer::from_arc(Arc::clone(&self.proxy));
        let mut routes = RoutesBuilder::default();
        routes
            .add_service(
                kv.max_decoding_message_size(MESSAGE_BYTES)
                    .max_encoding_message_size(MESSAGE_BYTES),
            )
            .add_service(
                RouterServer::new(router)
                    .max_decoding_message_size(MESSAGE_BYTES)
                    .max_encoding_message_size(MESSAGE_BYTES),
            )
            .add_service(
                AdminServer::new(admin)
                    .max_decoding_message_size(MESSAGE_BYTES)
                    .max_encoding_message_size(MESSAGE_BYTES),
            )
            .add_service(self.control_server());
        for service in SERVICES.into_iter().chain([""]) {
            self.health.set_service_status(service, ServingStatus::Serving).await;
        }
        let health = tonic_health::server::HealthService::from_health_reporter(self.health.clone());
        routes.add_service(tonic_health::pb::health_server::HealthServer::new(health));
        let failed = |error: tonic_reflection::server::Error| Error::Reflection(error.to_string());
        routes.add_service(reflection().build_v1().map_err(failed)?);
        routes.add_service(reflection().build_v1alpha().map_err(failed)?);
        Ok(routes)
    }
}

/// Says what an operator may have overlooked.
fn warn_of_exposure(config: &Config) {
    for address in [config.listen, config.http_listen, config.raft_listen] {
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "traffic beyond this machine is neither encrypted nor checked");
        }
    }
    if config.listen.ip().is_unspecified() && config.advertise.is_none() {
        tracing::warn!("`advertise` is not set: others are told an address that they cannot reach");
    }
}

/// Describes what the gRPC port serves, and nothing else that is in the descriptors.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name("grpc.health.v1.Health");
    SERVICES.into_iter().fold(builder, tonic_reflection::server::Builder::with_service_name)
}

/// Makes the cluster, or brings the lease length to the configured one.
async fn make_cluster(raft: &RaftNode, lease_ms: u64, boundaries: Vec<bytes::Bytes>) -> Result<()> {
    let failed = |error: vmemkv_proto::ApiError| Error::Raft(error.to_string());
    // A new leader applies what the log holds before it answers.
    raft.linearizable(START_PATIENCE).await.map_err(failed)?;
    let known = raft.state().read(|state| (state.cluster.cluster_id, state.cluster.lease_ms));
    if known.0 != 0 && !boundaries.is_empty() {
        tracing::info!("initial_boundaries: the cluster exists already, the file is not used");
    }
    let action = match known {
        (0, _) => Action::CreateCluster { cluster_id: random_id(), lease_ms, boundaries },
        (_, expected_ms) if expected_ms != lease_ms => Action::SetLease { expected_ms, lease_ms },
        _ => return Ok(()),
    };
    match raft.propose(action, START_PATIENCE).await.map_err(failed)? {
        Outcome::Refused(refusal) => Err(Error::Raft(refusal.to_string())),
        _ => Ok(()),
    }
}
