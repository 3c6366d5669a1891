//! `vmemkv router`: runs a router; `vmemkv router list|add|remove`: the routers' group.
//!
//! Invariants: flags win over the environment, the environment over the file; the first signal ends
//! gracefully, the second at once.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use vmemkv_proto::v1;
use vmemkv_router::Router;

use super::node_target::parse_id;
use super::server::{load, path_text};
use crate::config::FlagSettings;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::Grid;
use crate::process::EndSignals;

const EXAMPLES: &str = "\
Settings come from defaults, then --config, then VMEMKV_ROUTER__NAME variables, then flags;
`vmemkv config` shows them. A router listens on the loopback interface unless it is told otherwise,
and speaks plaintext: only let it listen elsewhere on a network that you trust.

Examples:
  vmemkv router --config /etc/vmemkv.toml
  vmemkv router --data /var/lib/vmemkv-router --listen 0.0.0.0:7400 --advertise router-0:7400
  vmemkv router list";

/// Flags of `vmemkv router`.
#[derive(Args, Clone, Debug, Default)]
#[command(after_help = EXAMPLES)]
pub struct RouterArgs {
    /// The routers' group; none: run a router.
    #[command(subcommand)]
    pub command: Option<RouterCommand>,
    /// A file of settings, .toml, .yaml or .yml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to serve gRPC [default: 127.0.0.1:7400]; port 0: any
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<SocketAddr>,
    /// Where to serve health, metrics and a status page by HTTP [default: 127.0.0.1:7401]
    #[arg(long, value_name = "IP:PORT")]
    pub http_listen: Option<SocketAddr>,
    /// Where to speak Raft with other routers [default: 127.0.0.1:7402]
    #[arg(long, value_name = "IP:PORT")]
    pub raft_listen: Option<SocketAddr>,
    /// Where others reach the gRPC port [default: where it listens]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// The Raft addresses of all routers, this one included [default: this one alone]
    #[arg(long, value_name = "HOST:PORT,..", value_delimiter = ',')]
    pub routers: Option<Vec<String>>,
    /// The data directory, made if it does not exist [default: vmemkv-router-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// A key a line in hex: the first server's shards are cut there [default: one shard]
    #[arg(long, value_name = "FILE")]
    pub initial_boundaries: Option<PathBuf>,
}

/// The commands on the routers' group.
#[derive(Subcommand, Clone, Debug)]
pub enum RouterCommand {
    /// List the routers
    List,
    /// Add an empty router to the group (not built yet)
    Add {
        /// Where it speaks Raft
        #[arg(value_name = "HOST:PORT")]
        raft_address: String,
        /// Where it serves gRPC
        #[arg(long, value_name = "HOST:PORT")]
        address: String,
        /// Where it serves HTTP
        #[arg(long, value_name = "HOST:PORT", default_value = "")]
        http_address: String,
    },
    /// Take a router out of the group (not built yet)
    Remove {
        /// The router's id
        #[arg(value_name = "ROUTER", value_parser = parse_id)]
        router: u64,
    },
}

impl RouterArgs {
    fn flags(&self) -> FlagSettings {
        let mut flags = FlagSettings::default();
        for (flag, path, address) in [
            ("--listen", "router.listen", self.listen),
            ("--http-listen", "router.http_listen", self.http_listen),
            ("--raft-listen", "router.raft_listen", self.raft_listen),
        ] {
            flags.set_if(flag, path, address.map(|address| address.to_string()));
        }
        flags.set_if("--advertise", "router.advertise", self.advertise.clone());
        flags.set_if("--routers", "router.routers", self.routers.clone());
        flags.set_if("--data", "router.data", self.data.as_deref().map(path_text));
        let boundaries = self.initial_boundaries.as_deref().map(path_text);
        flags.set_if("--initial-boundaries", "router.initial_boundaries", boundaries);
        flags
    }
}

/// Runs a router.
pub async fn run(args: &RouterArgs, context: &Context) -> Result {
    let mut signals = EndSignals::listen()?;
    let config = load(args.config.as_deref(), args.flags(), context)?.settings.router;
    let data = config.data.clone();
    let router = tokio::select! {
        router = Router::start(config) => router.map_err(|error| failure(&error))?,
        name = signals.next() => return Err(Failure::failed(format!("ended by {name}"))),
    };
    let addresses = router.addresses();
    let (grpc, http, raft) = (addresses.grpc, addresses.http, addresses.raft);
    let pid = std::process::id();
    context.output.either(
        || {
            json!({
                "router": grpc.to_string(), "router_http": http.to_string(),
                "router_raft": raft.to_string(), "data": data, "pid": pid,
            })
        },
        || format!("router at {grpc}, HTTP at {http}, Raft at {raft}, data in {}", data.display()),
    )?;
    let failed = tokio::select! {
        error = router.failed() => Some(error),
        name = signals.next() => {
            tracing::info!("{name}: shutting down; a second signal ends at once");
            None
        }
    };
    signals.end_at_next(context.output);
    let ended = router.shutdown().await;
    match failed {
        Some(error) => Err(failure(&error)),
        None => ended.map_err(|error| failure(&error)),
    }
}

/// Runs a command on the routers' group.
pub async fn run_list(args: &RouterArgs, context: &Context) -> Result {
    if args.config.is_some() || !args.flags().is_empty() {
        return Err(Failure::usage(
            "flags of a router process do not go with list, add and remove",
        )
        .with_hint("--addr says which router to ask"));
    }
    let mut admin = context.admin().await?;
    match &args.command {
        None | Some(RouterCommand::List) => {
            let mut routers = Vec::new();
            let mut page_token = String::new();
            loop {
                let request = v1::ListRoutersRequest { page_token, page_size: 0 };
                let page = admin.list_routers(context.call(request)).await?.into_inner();
                routers.extend(page.routers);
                if page.next_page_token.is_empty() {
                    break;
                }
                page_token = page.next_page_token;
            }
            context.output.either(
                || json!({ "routers": routers.iter().map(to_json).collect::<Vec<_>>() }),
                || grid(&routers),
            )
        }
        Some(RouterCommand::Add { raft_address, address, http_address }) => {
            let request = v1::AddRouterRequest {
                raft_address: raft_address.clone(),
                address: address.clone(),
                http_address: http_address.clone(),
            };
            let id = admin.add_router(context.call(request)).await?.into_inner().router_id;
            context
                .output
                .either(|| json!({ "router_id": id }), || format!("router {id} is a member"))
        }
        Some(RouterCommand::Remove { router }) => {
            let request = v1::RemoveRouterRequest { router_id: *router };
            admin.remove_router(context.call(request)).await?;
            context.output.either(
                || json!({ "router_id": router, "removed": true }),
                || format!("router {router} is no member any more"),
            )
        }
    }
}

/// Why a router did not start or had to end.
pub(super) fn failure(error: &vmemkv_router::Error) -> Failure {
    match error {
        vmemkv_router::Error::Config { .. } => Failure::usage(format!("router.{error}"))
            .with_hint("`vmemkv config` shows the settings"),
        _ => Failure::failed(error.to_string()),
    }
}

/// A router for scripts.
pub(super) fn to_json(router: &v1::RouterNode) -> serde_json::Value {
    json!({
        "router_id": router.router_id,
        "address": router.address,
        "http_address": router.http_address,
        "raft_address": router.raft_address,
        "leader": router.leader,
        "voter": router.voter,
        "reachable": router.reachable,
        "log_index": router.log_index,
    })
}

/// The routers as a table.
pub(super) fn grid(routers: &[v1::RouterNode]) -> String {
    let mut grid = Grid::new(&["ROUTER", "ADDRESS", "RAFT", "ROLE", "REACHABLE", "#LOG"]);
    for router in routers {
        let role = match (router.leader, router.voter) {
            (true, _) => "leader",
            (false, true) => "follower",
            (false, false) => "learner",
        };
        grid.row([
            router.router_id.to_string(),
            router.address.clone(),
            router.raft_address.clone(),
            role.to_owned(),
            if router.reachable { "yes" } else { "no" }.to_owned(),
            router.log_index.to_string(),
        ]);
    }
    grid.to_text("no routers")
}
