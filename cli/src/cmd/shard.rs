//! `vmemkv shard`: the shards of the cluster.
//!
//! Invariant: a key in a table is cut if it is long; `--json` has it whole, in hex.

use clap::{Args, Subcommand};
use serde_json::json;
use vmemkv_proto::v1;

use super::node_target::parse_id;
use super::operation_wait::wait_for;
use crate::context::Context;
use crate::encoding::{Encoding, show_key};
use crate::failure::{Failure, Result};
use crate::output::{Grid, bytes_text};

const EXAMPLES: &str = "\
Split waits until the operation has ended, at most for --timeout [default: 5m], unless --no-wait is
given: `vmemkv operation list` follows it then. Merge and move are not built yet: the service answers
UNIMPLEMENTED.

Examples:
  vmemkv shard list
  vmemkv shard split 3 --key user:m";

const NO_KEY: &str = "`vmemkv shard list` shows its keys, its operation and notes; --key KEY splits \
                      where you say";

/// Flags of `vmemkv shard`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ShardArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ShardCommand,
}

/// The commands on shards.
#[derive(Subcommand, Clone, Debug)]
pub enum ShardCommand {
    /// List the shards in key order
    List {
        /// Only those of this node
        #[arg(long, value_name = "NODE", value_parser = parse_id)]
        node: Option<u64>,
    },
    /// Split a shard in two
    Split {
        /// The shard's id
        #[arg(value_name = "SHARD", value_parser = parse_id)]
        shard: u64,
        /// The first key of the right half [default: the server chooses]
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// How the key is written
        #[arg(long, value_enum, default_value_t, value_name = "ENCODING")]
        encoding: Encoding,
        /// Print the operation's id as soon as it has begun
        #[arg(long)]
        no_wait: bool,
    },
    /// Merge two neighbours (not built yet)
    Merge {
        /// The left shard's id
        #[arg(value_name = "LEFT", value_parser = parse_id)]
        left: u64,
        /// The right shard's id
        #[arg(value_name = "RIGHT", value_parser = parse_id)]
        right: u64,
    },
    /// Move a shard to another node (not built yet)
    Move {
        /// The shard's id
        #[arg(value_name = "SHARD", value_parser = parse_id)]
        shard: u64,
        /// The node's id
        #[arg(long, value_name = "NODE", value_parser = parse_id)]
        to: u64,
    },
}

/// Runs the command.
pub async fn run(args: &ShardArgs, context: &Context) -> Result {
    let operation_id = match &args.command {
        ShardCommand::List { node } => return print_list(context, node.unwrap_or(0)).await,
        ShardCommand::Split { shard, key, encoding, no_wait } => {
            let key = match key {
                Some(key) => Some(encoding.decode("--key", key).map_err(Failure::usage)?.into()),
                None => None,
            };
            let request = v1::SplitShardRequest { shard_id: *shard, key };
            let mut admin = context.admin().await?;
            let chosen = request.key.is_some();
            let begun = admin.split_shard(context.call(request)).await.map_err(|status| {
                // No operation has begun: the shard is held by another one, or nothing halves it.
                let is_refused = status.code() == tonic::Code::FailedPrecondition;
                Failure::from(status).with_hint_if(is_refused && !chosen, NO_KEY)
            })?;
            let begun = begun.into_inner();
            if !no_wait {
                let ended = wait_for(context, admin, begun.operation_id).await?;
                return print_split(context, &ended);
            }
            begun.operation_id
        }
        ShardCommand::Merge { left, right } => {
            let request = v1::MergeShardsRequest { left_shard_id: *left, right_shard_id: *right };
            let mut admin = context.admin().await?;
            admin.merge_shards(context.call(request)).await?.into_inner().operation_id
        }
        ShardCommand::Move { shard, to } => {
            let request = v1::MoveShardRequest { shard_id: *shard, node_id: *to };
            let mut admin = context.admin().await?;
            admin.move_shard(context.call(request)).await?.into_inner().operation_id
        }
    };
    context.output.either(
        || json!({ "operation_id": operation_id }),
        || format!("operation {operation_id} has begun"),
    )
}

/// The end of a split.
fn print_split(context: &Context, operation: &v1::Operation) -> Result {
    let (id, shard_id) = (operation.operation_id, operation.shard_id);
    let &[left, right] = &*operation.new_shard_ids else {
        let message = format!("operation {id} names no two halves");
        return Err(Failure::failed(message).of_operation(id));
    };
    if operation.phase != "done" {
        let reason = &operation.reason;
        let message = format!("shard {shard_id} is not split (operation {id}): {reason}");
        return Err(Failure::failed(message).of_operation(id));
    }
    context.output.either(
        || {
            json!({
                "operation_id": id,
                "phase": operation.phase,
                "shard_id": shard_id,
                "key_hex": hex::encode(&operation.key),
                "left_shard_id": left,
                "right_shard_id": right,
            })
        },
        || {
            let key = key_text(&operation.key, "");
            format!("shard {shard_id} is split at {key} into shards {left} and {right}")
        },
    )
}

async fn print_list(context: &Context, node_id: u64) -> Result {
    let mut admin = context.admin().await?;
    let mut shards = Vec::new();
    let mut page_token = String::new();
    let map_version = loop {
        let request = v1::ListShardsRequest { page_token, page_size: 0, node_id };
        let page = admin.list_shards(context.call(request)).await?.into_inner();
        shards.extend(page.shards);
        if page.next_page_token.is_empty() {
            break page.map_version;
        }
        page_token = page.next_page_token;
    };
    context.output.either(
        || {
            let shards: Vec<_> = shards.iter().map(to_json).collect();
            json!({ "map_version": map_version, "shards": shards })
        },
        || grid(&shards),
    )
}

fn to_json(shard: &v1::ShardStatus) -> serde_json::Value {
    json!({
        "shard_id": shard.shard_id,
        "start_hex": hex::encode(&shard.start),
        "end_hex": hex::encode(&shard.end),
        "epoch": shard.epoch,
        "node_id": shard.node_id,
        "address": shard.address,
        "born": shard.born,
        "keys": shard.keys,
        "live_bytes": shard.live_bytes,
        "requests_per_second": shard.requests_per_second,
        "operation_id": shard.operation_id,
        "note": shard.note,
    })
}

fn grid(shards: &[v1::ShardStatus]) -> String {
    let mut grid = Grid::new(&[
        "SHARD", "START", "END", "#EPOCH", "NODE", "ADDRESS", "#KEYS", "#LIVE", "#REQ/S", "NOTE",
    ]);
    for shard in shards {
        let note = match (shard.born, shard.operation_id) {
            (_, id) if id > 0 => format!("operation {id}"),
            (true, _) => "being made".to_owned(),
            _ => shard.note.clone(),
        };
        grid.row([
            shard.shard_id.to_string(),
            key_text(&shard.start, "(lowest)"),
            key_text(&shard.end, "(unbounded)"),
            shard.epoch.to_string(),
            shard.node_id.to_string(),
            shard.address.clone(),
            shard.keys.to_string(),
            bytes_text(shard.live_bytes),
            format!("{:.0}", shard.requests_per_second),
            note,
        ]);
    }
    grid.to_text("no shards")
}

/// A bound in a table.
pub(super) fn key_text(key: &[u8], empty: &str) -> String {
    if key.is_empty() { empty.to_owned() } else { show_key(key) }
}
