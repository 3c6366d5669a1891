//! `vmemkv server`: runs a server until a signal ends it.
//!
//! Invariants: flags win over the environment, the environment over the file; the first signal ends
//! gracefully, the second at once.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use vmemkv_server::{Server, StartOptions};

use crate::config::{FlagSettings, Loaded};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::logging;
use crate::process::EndSignals;

const EXAMPLES: &str = "\
Settings come from defaults, then --config, then VMEMKV_SERVER__NAME variables, then flags;
`vmemkv config` shows them. A server listens on the loopback interface unless it is told otherwise,
and speaks plaintext: only let it listen elsewhere on a network that you trust.

Examples:
  vmemkv server --config /etc/vmemkv.toml
  vmemkv server --data /var/lib/vmemkv --routers router-0:7400,router-1:7400 \\
      --listen 0.0.0.0:7410 --http-listen 0.0.0.0:7411 --advertise server-0:7410 --label zone=a";

/// Flags of `vmemkv server`.
#[derive(Args, Clone, Debug, Default)]
#[command(after_help = EXAMPLES)]
pub struct ServerArgs {
    /// A file of settings, .toml, .yaml or .yml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to serve gRPC [default: 127.0.0.1:7410]; port 0: any
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<SocketAddr>,
    /// Where to serve health and metrics by HTTP [default: 127.0.0.1:7411]
    #[arg(long, value_name = "IP:PORT")]
    pub http_listen: Option<SocketAddr>,
    /// Where clients and routers reach this server [default: where it listens]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// The gRPC addresses of the routers [default: 127.0.0.1:7400]
    #[arg(long, value_name = "HOST:PORT,..", value_delimiter = ',')]
    pub routers: Option<Vec<String>>,
    /// The data directory, made if it does not exist [default: vmemkv-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// A label of this node, such as zone=a; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
}

impl ServerArgs {
    fn flags(&self) -> FlagSettings {
        let mut flags = FlagSettings::default();
        let text = |address: &SocketAddr| address.to_string();
        flags.set_if("--listen", "server.listen", self.listen.as_ref().map(text));
        flags.set_if("--http-listen", "server.http_listen", self.http_listen.as_ref().map(text));
        flags.set_if("--advertise", "server.advertise", self.advertise.clone());
        flags.set_if("--routers", "server.routers", self.routers.clone());
        flags.set_if("--data", "server.data", self.data.as_deref().map(path_text));
        for (name, value) in &self.label {
            flags.set("--label", &format!("server.labels.{name}"), value.clone());
        }
        flags
    }
}

/// Runs the command.
pub async fn run(args: &ServerArgs, context: &Context) -> Result {
    let mut signals = EndSignals::listen()?;
    let loaded = load(args.config.as_deref(), args.flags(), context)?;
    let config = loaded.settings.server;
    warn_if_open("server.listen", config.listen);
    let data = config.data.clone();
    let options = StartOptions { set_log_filter: Some(logging::setter()) };
    let server = tokio::select! {
        server = Server::start_with(config, options) => server.map_err(|error| failure(&error))?,
        name = signals.next() => return Err(Failure::failed(format!("ended by {name}"))),
    };
    let (grpc, http, node_id) = (server.grpc_addr(), server.http_addr(), server.node_id());
    let pid = std::process::id();
    context.output.either(
        || {
            json!({
                "server": grpc.to_string(), "server_http": http.to_string(),
                "node_id": node_id, "data": data, "pid": pid,
            })
        },
        || format!("server {node_id} at {grpc}, HTTP at {http}, data in {}", data.display()),
    )?;
    let output = context.output;
    let ended = server.run_until(async move {
        let name = signals.next().await;
        tracing::info!("{name}: shutting down; a second signal ends at once");
        signals.end_at_next(output);
    });
    ended.await.map_err(|error| failure(&error))
}

/// Reads the settings and starts the log.
pub(super) fn load(
    file: Option<&std::path::Path>,
    mut flags: FlagSettings,
    context: &Context,
) -> Result<Loaded> {
    flags.set_if("--log-level", "log.level", context.globals.log_filter());
    let loaded = Loaded::from_process(file, flags)?;
    logging::start(&loaded.settings.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(loaded)
}

/// Plaintext on an interface that others reach is worth a word. (A router says it by itself.)
pub(super) fn warn_if_open(setting: &str, address: SocketAddr) {
    if !address.ip().is_loopback() {
        tracing::warn!(
            "{setting} is {address}: plaintext without credentials, beyond this machine; \
             only do so on a network that you trust"
        );
    }
}

/// Why a server did not start or had to end.
pub(super) fn failure(error: &vmemkv_server::Error) -> Failure {
    match error {
        vmemkv_server::Error::Config(_) => {
            Failure::usage(error.to_string()).with_hint("`vmemkv config` shows the settings")
        }
        _ => Failure::failed(error.to_string()),
    }
}

pub(super) fn path_text(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}

fn parse_label(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !name.contains('.') => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE, such as zone=a".to_owned()),
    }
}
