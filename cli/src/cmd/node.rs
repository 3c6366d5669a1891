//! `vmemkv node`: the servers of the cluster, and the engine of one.
//!
//! Invariant: a command that the service does not have yet reports what the service says.

use clap::{Args, Subcommand};
use serde_json::json;
use vmemkv_proto::v1;

use super::node_target::{list, parse_id};
use super::{node_jobs, node_stats};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Grid, bytes_text};

const EXAMPLES: &str = "\
NODE is an id or HOST:PORT from `vmemkv node list`; with one server it can be left out. With a server's
address as --addr the commands act on that server.

Examples:
  vmemkv node list
  vmemkv node stats
  vmemkv node verify --addr 127.0.0.1:7410";

/// Flags of `vmemkv node`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct NodeArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: NodeCommand,
}

/// The commands on nodes.
#[derive(Subcommand, Clone, Debug)]
pub enum NodeCommand {
    /// List the servers
    List,
    /// Show the engine's statistics
    Stats(node_stats::StatsArgs),
    /// Make a checkpoint and wait for it
    Checkpoint(node_jobs::NodeName),
    /// Merge what was written lately into the sorted index, and wait for it
    Reorganize(node_jobs::ReorganizeArgs),
    /// Free dead bytes of the value log, and wait for it
    Defragment(node_jobs::DefragmentArgs),
    /// Read all records and check them; exit status 1 if one is damaged
    Verify(node_jobs::VerifyArgs),
    /// Copy the data directory while it is in use (not built yet)
    Backup(node_jobs::BackupArgs),
    /// Change what a server logs
    LogLevel(node_jobs::LogLevelArgs),
    /// Move all shards off a node (not built yet)
    Drain(NodeId),
    /// End a drain (not built yet)
    Undrain(NodeId),
    /// Take a node out of the cluster for good (not built yet)
    Remove(RemoveArgs),
}

/// A node that has to be named.
#[derive(Args, Clone, Debug)]
pub struct NodeId {
    /// The node's id
    #[arg(value_name = "NODE", value_parser = parse_id)]
    pub node_id: u64,
}

/// Flags of `vmemkv node remove`.
#[derive(Args, Clone, Debug)]
pub struct RemoveArgs {
    /// The node's id
    #[arg(value_name = "NODE", value_parser = parse_id)]
    pub node_id: u64,
    /// Also while it owns shards: for a node that is lost
    #[arg(long)]
    pub force: bool,
    /// With --force: its shards begin empty elsewhere, what they held is lost
    #[arg(long, requires = "force")]
    pub accept_data_loss: bool,
}

/// Runs the command.
pub async fn run(args: &NodeArgs, context: &Context) -> Result {
    let node = match &args.command {
        NodeCommand::List => return print_list(context).await,
        NodeCommand::Stats(args) => return node_stats::run(args, context).await,
        NodeCommand::Checkpoint(args) => return node_jobs::checkpoint(args, context).await,
        NodeCommand::Reorganize(args) => return node_jobs::reorganize(args, context).await,
        NodeCommand::Defragment(args) => return node_jobs::defragment(args, context).await,
        NodeCommand::Verify(args) => return node_jobs::verify(args, context).await,
        NodeCommand::Backup(args) => return super::node_backup::run(args, context).await,
        NodeCommand::LogLevel(args) => return node_jobs::log_level(args, context).await,
        NodeCommand::Drain(NodeId { node_id }) => {
            let request = v1::DrainNodeRequest { node_id: *node_id };
            context.admin().await?.drain_node(context.call(request)).await?.into_inner().node
        }
        NodeCommand::Undrain(NodeId { node_id }) => {
            let request = v1::UndrainNodeRequest { node_id: *node_id };
            context.admin().await?.undrain_node(context.call(request)).await?.into_inner().node
        }
        NodeCommand::Remove(args) => {
            let request = v1::RemoveNodeRequest {
                node_id: args.node_id,
                force: args.force,
                accept_data_loss: args.accept_data_loss,
            };
            context.admin().await?.remove_node(context.call(request)).await?.into_inner().node
        }
    };
    let node = node.ok_or_else(|| Failure::failed("the service answered without the node"))?;
    context
        .output
        .either(|| to_json(&node), || format!("node {} is {}", node.node_id, state_name(&node)))
}

async fn print_list(context: &Context) -> Result {
    let nodes = list(context).await?;
    context.output.either(
        || json!({ "nodes": nodes.iter().map(to_json).collect::<Vec<_>>() }),
        || grid(&nodes),
    )
}

/// The nodes as a table.
pub(super) fn grid(nodes: &[v1::Node]) -> String {
    let mut grid = Grid::new(&[
        "NODE",
        "ADDRESS",
        "STATE",
        "ENGINE",
        "#SHARDS",
        "#KEYS",
        "#LIVE",
        "#DISK",
        "#REQ/S",
        "HEARTBEAT",
        "LABELS",
    ]);
    for node in nodes {
        let labels: Vec<_> =
            sorted(node).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let heartbeat = match node.last_heartbeat_ms_ago {
            Some(ms) => format!("{:.1} s ago", ms as f64 / 1e3),
            None => "none".to_owned(),
        };
        grid.row([
            node.node_id.to_string(),
            node.address.clone(),
            state_name(node).to_owned(),
            if node.engine_state.is_empty() { "-".to_owned() } else { node.engine_state.clone() },
            node.shards.to_string(),
            node.keys.to_string(),
            bytes_text(node.live_bytes),
            bytes_text(node.disk_used_bytes),
            format!("{:.0}", node.requests_per_second),
            heartbeat,
            labels.join(","),
        ]);
    }
    grid.to_text("no nodes")
}

fn sorted(node: &v1::Node) -> std::collections::BTreeMap<&str, &str> {
    node.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// A node for scripts.
pub(super) fn to_json(node: &v1::Node) -> serde_json::Value {
    json!({
        "node_id": node.node_id,
        "address": node.address,
        "http_address": node.http_address,
        "state": state_name(node),
        "labels": sorted(node),
        "boot_number": node.boot_number,
        "last_heartbeat_ms_ago": node.last_heartbeat_ms_ago,
        "shards": node.shards,
        "keys": node.keys,
        "live_bytes": node.live_bytes,
        "disk_used_bytes": node.disk_used_bytes,
        "capacity_bytes": node.capacity_bytes,
        "requests_per_second": node.requests_per_second,
        "version": node.version,
        "map_version": node.map_version,
        "engine_state": node.engine_state,
    })
}

/// A node's state in a word.
pub(super) fn state_name(node: &v1::Node) -> &'static str {
    match node.state() {
        v1::NodeState::Unspecified => "unknown",
        v1::NodeState::Up => "up",
        v1::NodeState::Draining => "draining",
        v1::NodeState::Down => "down",
        v1::NodeState::Removing => "removing",
        v1::NodeState::Removed => "removed",
    }
}
