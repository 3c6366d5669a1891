//! `vmemkv status`: the cluster at a glance.
//!
//! Invariant: exit status 0 only if the service says that it is healthy.

use clap::Args;
use serde_json::{Value, json};
use vmemkv_proto::v1;

use super::node;
use super::node_target::list;
use crate::context::{Context, kv_on};
use crate::failure::{Failure, Result};
use crate::output::{Grid, bytes_text, printable};

const EXAMPLES: &str = "\
Exit status 1: something is wrong, and the problems are listed; or nothing can be reached.

Examples:
  vmemkv status
  until vmemkv status --json; do sleep 1; done";

/// Flags of `vmemkv status`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {}

/// Runs the command.
pub async fn run(_args: &StatusArgs, context: &Context) -> Result {
    let channel = context.channel().await?;
    let info = kv_on(channel).get_info(context.call(v1::GetInfoRequest {})).await?.into_inner();
    if info.role == "server" {
        return Err(Failure::usage(format!("{} is a server", context.globals.addr))
            .with_hint("status asks a router; `vmemkv node stats` shows a server"));
    }
    let mut admin = context.admin().await?;
    let request = context.call(v1::GetClusterStatusRequest {});
    let status = admin.get_cluster_status(request).await?.into_inner();
    let nodes = list(context).await?;
    context
        .output
        .either(|| to_json(&info, &status, &nodes), || to_text(&info, &status, &nodes))?;
    if status.healthy {
        return Ok(());
    }
    let problems = status.problems.len().max(1);
    Err(Failure::failed(format!("the cluster is not healthy ({problems} problems)")))
}

fn to_json(
    info: &v1::GetInfoResponse,
    status: &v1::GetClusterStatusResponse,
    nodes: &[v1::Node],
) -> Value {
    let counts = status.nodes.unwrap_or_default();
    json!({
        "healthy": status.healthy,
        "problems": status.problems,
        "version": info.version,
        "cluster_id": status.cluster_id,
        "generation": status.generation,
        "map_version": status.map_version,
        "leader_router_id": status.leader_router_id,
        "routers": status.routers.iter().map(super::router::to_json).collect::<Vec<_>>(),
        "node_counts": {
            "up": counts.up, "draining": counts.draining, "down": counts.down,
            "removing": counts.removing, "removed": counts.removed,
        },
        "nodes": nodes.iter().map(node::to_json).collect::<Vec<_>>(),
        "shards": status.shards,
        "active_operations": status.active_operations,
        "keys": status.keys,
        "live_bytes": status.live_bytes,
        "methods": status.methods.iter().map(|method| json!({
            "method": method.method, "calls": method.calls, "errors": method.errors,
        })).collect::<Vec<_>>(),
    })
}

fn to_text(
    info: &v1::GetInfoResponse,
    status: &v1::GetClusterStatusResponse,
    nodes: &[v1::Node],
) -> String {
    let counts = status.nodes.unwrap_or_default();
    let mut lines =
        vec![if status.healthy { "healthy".to_owned() } else { "NOT HEALTHY".to_owned() }];
    lines.extend(status.problems.iter().map(|problem| format!("  - {}", printable(problem))));
    let leader = match status.leader_router_id {
        0 => "none".to_owned(),
        id => id.to_string(),
    };
    let mut grid = Grid::new(&["", ""]);
    for (name, text) in [
        ("cluster", format!("{} (vmemkv {})", status.cluster_id, info.version)),
        ("routers", format!("{}, leader {leader}", status.routers.len())),
        ("nodes", format!("{} up, {} draining, {} down", counts.up, counts.draining, counts.down)),
        ("shards", format!("{} (map version {})", status.shards, status.map_version)),
        ("keys", format!("{} ({})", status.keys, bytes_text(status.live_bytes))),
        ("operations", format!("{} running", status.active_operations)),
    ] {
        grid.row([name.to_owned(), text]);
    }
    lines.push(grid.to_text("").trim_start_matches('\n').to_owned());
    lines.push(String::new());
    lines.push(super::router::grid(&status.routers));
    lines.push(String::new());
    lines.push(node::grid(nodes));
    lines.join("\n")
}
