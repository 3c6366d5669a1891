//! `vmemkv dev`: a router and a server in one process.
//!
//! Invariants: the router's gRPC port opens last, once the server answers requests, so that whoever
//! waits for it can begin; nothing listens beyond this machine unless a setting says so; the first
//! signal ends gracefully, the second at once.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::sync::oneshot;
use vmemkv_proto::{ApiError, v1};
use vmemkv_router::{Prepared, Router};
use vmemkv_server::{Registration, Server, StartOptions};

use super::server::{path_text, warn_if_open};
use super::{router, server};
use crate::config::{FlagSettings, Loaded, Settings};
use crate::context::{Context, kv_on};
use crate::failure::{Failure, Result};
use crate::logging;
use crate::process::EndSignals;

/// How long the server may take from its start to its first answer. Recovery comes before.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How often it is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// What to do about a server that the router does not know as the one with its data.
const BELONG_TOGETHER: &str = "router/ and server/ below the data directory belong together: restore \
     the one that is missing or old, or start anew in another directory with --data";

const EXAMPLES: &str = "\
Examples:
  vmemkv dev
  vmemkv dev --data /tmp/try --router-port 0 --server-port 0 --json    any free ports, one JSON line
  VMEMKV_SERVER__ENGINE__BLOOM=false vmemkv dev                        settings as for a server";

/// Flags of `vmemkv dev`.
#[derive(Args, Clone, Debug, Default)]
#[command(after_help = EXAMPLES)]
pub struct DevArgs {
    /// Where to keep the data: router/ and server/ below it [default: ./vmemkv-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The router's gRPC port [default: 7400]; HTTP is one more, Raft two more; 0: any three
    #[arg(long, value_name = "PORT")]
    pub router_port: Option<u16>,
    /// The server's gRPC port [default: 7410]; HTTP is one more; 0: any two
    #[arg(long, value_name = "PORT")]
    pub server_port: Option<u16>,
    /// A key a line in hex: the shards of a new data directory are cut there [default: one shard]
    #[arg(long, value_name = "FILE")]
    pub initial_boundaries: Option<PathBuf>,
    /// A file of settings, .toml, .yaml or .yml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Runs the command.
pub async fn run(args: &DevArgs, context: &Context) -> Result {
    let mut signals = EndSignals::listen()?;
    let settings = load(args, context)?;
    let data = data_dir(args, &settings);
    let started = tokio::select! {
        started = start(settings) => started?,
        name = signals.next() => return Err(Failure::failed(format!("ended by {name}"))),
    };
    let Service { router, server } = started;
    announce(context, &router, &server, &data)?;

    let (stop, stopped) = oneshot::channel::<()>();
    let mut serving = tokio::spawn(server.run_until(async {
        // A sender that is gone asks for the end as well.
        let _ = stopped.await;
    }));
    let mut failed = None;
    tokio::select! {
        name = signals.next() => {
            tracing::info!("{name}: shutting down; a second signal ends at once");
        }
        error = router.failed() => failed = Some(router::failure(&error)),
        ended = &mut serving => {
            failed = Some(server_end(ended).err().unwrap_or_else(|| {
                Failure::failed("the server has ended by itself")
            }));
        }
    }
    signals.end_at_next(context.output);
    // Both at once: one grace for all.
    drop(stop);
    let server_ends =
        async { if serving.is_finished() { Ok(()) } else { server_end(serving.await) } };
    let (router_ended, server_ended) = tokio::join!(router.shutdown(), server_ends);
    let router_ended = router_ended.map_err(|error| router::failure(&error));
    match failed {
        Some(failure) => Err(failure),
        None => router_ended.and(server_ended),
    }
}

fn server_end(
    ended: std::result::Result<vmemkv_server::Result<()>, tokio::task::JoinError>,
) -> Result {
    match ended {
        Ok(ended) => ended.map_err(|error| server::failure(&error)),
        Err(error) => Err(Failure::failed(format!("the server has ended: {error}"))),
    }
}

/// The settings: those of a server and a router, with ports and places of this command.
fn load(args: &DevArgs, context: &Context) -> Result<Settings> {
    let mut defaults = Settings::default();
    defaults.router.data = PathBuf::from("vmemkv-data").join("router");
    // A restart waits for two heartbeats; here nothing is far away.
    defaults.router.heartbeat_ms = 250;
    defaults.server.data = PathBuf::from("vmemkv-data").join("server");
    "warn".clone_into(&mut defaults.log.level);
    let mut flags = FlagSettings::default();
    if let Some(data) = &args.data {
        flags.set("--data", "router.data", path_text(&data.join("router")));
        flags.set("--data", "server.data", path_text(&data.join("server")));
    }
    if let Some(port) = args.router_port {
        let ports = ["router.listen", "router.http_listen", "router.raft_listen"];
        set_ports(&mut flags, "--router-port", port, &ports)?;
    }
    if let Some(port) = args.server_port {
        let ports = ["server.listen", "server.http_listen"];
        set_ports(&mut flags, "--server-port", port, &ports)?;
    }
    let boundaries = args.initial_boundaries.as_deref().map(path_text);
    flags.set_if("--initial-boundaries", "router.initial_boundaries", boundaries);
    flags.set_if("--log-level", "log.level", context.globals.log_filter());
    let file = args.config.as_deref();
    let loaded = Loaded::from_sources(&defaults, file, std::env::vars_os(), flags)?;
    logging::start(&loaded.settings.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(loaded.settings)
}

/// The ports of one process: in a row, or any.
fn set_ports(flags: &mut FlagSettings, flag: &str, first: u16, paths: &[&str]) -> Result {
    for (path, offset) in paths.iter().zip(0u16..) {
        let port = match first {
            0 => 0,
            _ => first.checked_add(offset).ok_or_else(|| {
                let last = u16::MAX - u16::try_from(paths.len()).unwrap_or(1) + 1;
                Failure::usage(format!("{flag} {first}: {last} at most, since ports follow it"))
            })?,
        };
        flags.set(flag, path, format!("127.0.0.1:{port}"));
    }
    Ok(())
}

fn data_dir(args: &DevArgs, settings: &Settings) -> PathBuf {
    let parent = || settings.server.data.parent().map(std::path::Path::to_path_buf);
    let dir = args.data.clone().or_else(parent).unwrap_or_default();
    std::path::absolute(&dir).unwrap_or(dir)
}

/// What runs.
struct Service {
    router: Router,
    server: Server,
}

/// Starts both, the router's gRPC port last.
async fn start(settings: Settings) -> Result<Service> {
    warn_if_open("server.listen", settings.server.listen);
    let prepared = Router::prepare(settings.router).await.map_err(|error| {
        router::failure(&error)
            .with_hint_if(
                matches!(error, vmemkv_router::Error::Listen { .. }),
                "stop the other process, or choose ports with --router-port",
            )
            .with_hint_if(
                matches!(error, vmemkv_router::Error::DataInUse(_)),
                "another `vmemkv dev` runs on it; choose a directory with --data",
            )
    })?;
    match start_server(settings.server, &prepared).await {
        Ok(server) => match prepared.serve().await {
            Ok(router) => Ok(Service { router, server }),
            Err(error) => Err(router::failure(&error)),
        },
        Err(failure) => {
            // The server's failure is the one to report.
            let _ = prepared.shutdown().await;
            Err(failure)
        }
    }
}

async fn start_server(mut config: vmemkv_server::Config, router: &Prepared) -> Result<Server> {
    config.routers = vec![reachable(router.addresses().raft).to_string()];
    let options = StartOptions { set_log_filter: Some(logging::setter()) };
    let server = Server::start_with(config, options).await.map_err(|error| {
        server::failure(&error).with_hint_if(
            matches!(error, vmemkv_server::Error::Listen { .. }),
            "stop the other process, or choose ports with --server-port",
        )
    })?;
    let mut last = "it has not been asked".to_owned();
    match tokio::time::timeout(READY_WITHIN, answers(&server, &mut last)).await {
        Ok(ready) => ready.map(|()| server),
        Err(_) => {
            let reason = match &*server.registration().borrow() {
                Registration::Waiting { reason } | Registration::Refused { reason } => {
                    format!("it is not registered: {reason}")
                }
                Registration::Registered { .. } => format!("it does not answer reads: {last}"),
            };
            let seconds = READY_WITHIN.as_secs();
            Err(Failure::failed(format!("the server is not ready after {seconds} s: {reason}")))
        }
    }
}

/// Waits until the server serves every key; `last` is why it did not when it was asked last. What
/// waiting does not help against fails at once.
async fn answers(server: &Server, last: &mut String) -> Result {
    let mut registration = server.registration();
    loop {
        match &*registration.borrow_and_update() {
            Registration::Registered { .. } => break,
            Registration::Refused { reason } => {
                return Err(refused(reason));
            }
            Registration::Waiting { .. } => {}
        }
        if registration.changed().await.is_err() {
            return Err(Failure::failed("the server has ended while it was starting"));
        }
    }
    let address = format!("http://{}", reachable(server.grpc_addr()));
    let endpoint = tonic::transport::Endpoint::from_shared(address)
        .map_err(|error| Failure::failed(error.to_string()))?;
    let mut kv = kv_on(endpoint.connect_lazy());
    // The first and the last shard: they come together, but they may open one after the other.
    for key in [&[0u8][..], &[0xff; 64]] {
        let request = v1::GetRequest { key: key.to_vec().into(), route: None };
        while let Err(status) = kv.get(request.clone()).await {
            if let Registration::Refused { reason } = &*registration.borrow() {
                return Err(refused(reason));
            }
            if status.code() == tonic::Code::FailedPrecondition {
                // A shard that is still being made or opened is UNAVAILABLE.
                let message =
                    format!("the server does not have the router's data: {}", status.message());
                return Err(Failure::failed(message).with_hint(BELONG_TOGETHER));
            }
            *last = ApiError::from(status).to_string();
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
    Ok(())
}

fn refused(reason: &str) -> Failure {
    Failure::failed(format!("the router refuses the server: {reason}")).with_hint(BELONG_TOGETHER)
}

/// Where this machine reaches what listens on `address`.
fn reachable(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    let local: IpAddr = match address.ip() {
        IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(local, address.port())
}

/// Says that everything is ready.
fn announce(context: &Context, router: &Router, server: &Server, data: &std::path::Path) -> Result {
    let addresses = router.addresses();
    let (grpc, http) = (addresses.grpc, addresses.http);
    let pid = std::process::id();
    if context.output.is_json() {
        return context.output.value(&json!({
            "router": grpc.to_string(),
            "router_http": http.to_string(),
            "router_raft": addresses.raft.to_string(),
            "server": server.grpc_addr().to_string(),
            "server_http": server.http_addr().to_string(),
            "data": data,
            "pid": pid,
        }));
    }
    let shown = data.display();
    if !context.output.stdout_is_terminal() {
        let server = server.grpc_addr();
        return context
            .output
            .line(format!("ready: router {grpc}, server {server}, data {shown}, pid {pid}"));
    }
    let addr = match grpc.port() {
        7400 => String::new(),
        _ => format!(" --addr {}", reachable(grpc)),
    };
    context.output.line(format!(
        "\
vmemkv is ready.

  gRPC    {grpc}   (any language; try: grpcurl -plaintext {grpc} list)
  HTTP    http://{http}   (status, metrics, health)
  data    {shown}

First steps, in another terminal:

  vmemkv put{addr} user:1 Ada
  vmemkv get{addr} user:1
  vmemkv scan{addr} --prefix user:
  vmemkv status{addr}

Ctrl-C stops it; the data stays."
    ))
}
