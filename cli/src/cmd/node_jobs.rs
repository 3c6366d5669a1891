//! `vmemkv node checkpoint|reorganize|defragment|verify|log-level`: jobs of one server's engine.
//!
//! Invariant: a job has no deadline unless `--timeout` was given.

use clap::Args;
use serde_json::json;
use vmemkv_proto::v1;

use super::node_target::find;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{bytes_text, micros_text, printable};

/// The node that a command acts on.
#[derive(Args, Clone, Debug)]
pub struct NodeName {
    /// Id or HOST:PORT of the node [default: the only one]
    #[arg(value_name = "NODE")]
    pub node: Option<String>,
}

impl NodeName {
    /// The name, if one was given.
    pub fn name(&self) -> Option<&str> {
        self.node.as_deref()
    }
}

/// Flags of `vmemkv node reorganize`.
#[derive(Args, Clone, Debug)]
pub struct ReorganizeArgs {
    /// The node.
    #[command(flatten)]
    pub node: NodeName,
    /// Only this shard [default: all]
    #[arg(long, value_name = "ID")]
    pub shard: Option<u64>,
}

/// Flags of `vmemkv node defragment`.
#[derive(Args, Clone, Debug)]
pub struct DefragmentArgs {
    /// The node.
    #[command(flatten)]
    pub node: NodeName,
    /// Free segments of which at least this part is dead, from 0 to 1 [default: the engine's own]
    #[arg(long, value_name = "PART", default_value_t = 0.0, hide_default_value = true)]
    pub min_dead_ratio: f64,
    /// Copy at most this many bytes [default: no limit]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub max_bytes: u64,
    /// Instead, rewrite records in key order where scans pay for disorder
    #[arg(long, conflicts_with = "min_dead_ratio")]
    pub in_order: bool,
}

/// Flags of `vmemkv node verify`.
#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    /// The node.
    #[command(flatten)]
    pub node: NodeName,
    /// Read at most this many bytes a second [default: no limit]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub bytes_per_second: u64,
}

/// Flags of `vmemkv node log-level`.
#[derive(Args, Clone, Debug)]
pub struct LogLevelArgs {
    /// A level (error, warn, info, debug, trace) or a filter such as info,vmemkv_engine=debug
    pub filter: String,
    /// The node.
    #[command(flatten)]
    pub node: NodeName,
}

/// `vmemkv node checkpoint`.
pub(super) async fn checkpoint(args: &NodeName, context: &Context) -> Result {
    let mut node = find(context, args.name()).await?;
    let request = context.job(v1::CheckpointRequest {});
    let done = node.admin.checkpoint(request).await?.into_inner();
    context.output.either(
        || {
            json!({
                "node_id": node.node_id,
                "checkpoint_id": done.checkpoint_id,
                "checkpoint_lsn": done.checkpoint_lsn,
                "duration_us": done.duration_us,
            })
        },
        || {
            let time = micros_text(done.duration_us);
            format!("checkpoint {} at LSN {} in {time}", done.checkpoint_id, done.checkpoint_lsn)
        },
    )
}

/// `vmemkv node reorganize`.
pub(super) async fn reorganize(args: &ReorganizeArgs, context: &Context) -> Result {
    let mut node = find(context, args.node.name()).await?;
    let request = v1::ReorganizeRequest { shard_id: args.shard.unwrap_or_default() };
    let done = node.admin.reorganize(context.job(request)).await?.into_inner();
    context.output.either(
        || {
            json!({
                "node_id": node.node_id, "shards": done.shards, "duration_us": done.duration_us,
            })
        },
        || format!("reorganized {} shards in {}", done.shards, micros_text(done.duration_us)),
    )
}

/// `vmemkv node defragment`.
pub(super) async fn defragment(args: &DefragmentArgs, context: &Context) -> Result {
    if !(0.0..=1.0).contains(&args.min_dead_ratio) {
        return Err(Failure::usage("--min-dead-ratio is between 0 and 1"));
    }
    let mut node = find(context, args.node.name()).await?;
    let request = v1::DefragmentRequest {
        min_dead_ratio: args.min_dead_ratio,
        max_bytes: args.max_bytes,
        in_order: args.in_order,
    };
    let done = node.admin.defragment(context.job(request)).await?.into_inner();
    context.output.either(
        || {
            json!({
                "node_id": node.node_id,
                "segments": done.segments,
                "bytes_moved": done.bytes_moved,
                "bytes_freed": done.bytes_freed,
                "duration_us": done.duration_us,
                "short_of_space": done.short_of_space,
            })
        },
        || {
            if args.in_order {
                let (copied, time) = (bytes_text(done.bytes_moved), micros_text(done.duration_us));
                return match done.short_of_space {
                    false => format!("{copied} put in key order, in {time}"),
                    true => format!(
                        "{copied} put in key order, in {time}; not all, for space is short: run it \
                         again when some was reclaimed"
                    ),
                };
            }
            format!(
                "{} segments will be free at the next checkpoint: {} dead, {} copied, in {}",
                done.segments,
                bytes_text(done.bytes_freed),
                bytes_text(done.bytes_moved),
                micros_text(done.duration_us)
            )
        },
    )
}

/// `vmemkv node verify`.
pub(super) async fn verify(args: &VerifyArgs, context: &Context) -> Result {
    let mut node = find(context, args.node.name()).await?;
    let request = v1::VerifyRequest { bytes_per_second: args.bytes_per_second };
    let found = node.admin.verify(context.job(request)).await?.into_inner();
    context.output.either(
        || {
            json!({
                "node_id": node.node_id,
                "ok": found.problems.is_empty(),
                "problems": found.problems,
                "records_checked": found.records_checked,
                "bytes_checked": found.bytes_checked,
                "duration_us": found.duration_us,
            })
        },
        || {
            let mut lines: Vec<String> =
                found.problems.iter().map(|problem| printable(problem)).collect();
            lines.push(format!(
                "{} records, {}, checked in {}: {}",
                found.records_checked,
                bytes_text(found.bytes_checked),
                micros_text(found.duration_us),
                if lines.is_empty() { "all well" } else { "problems as above" }
            ));
            lines.join("\n")
        },
    )?;
    match found.problems.len() {
        0 => Ok(()),
        problems => Err(Failure::failed(format!(
            "node {} at {}: {problems} problems found",
            node.node_id, node.address
        ))),
    }
}

/// `vmemkv node log-level`.
pub(super) async fn log_level(args: &LogLevelArgs, context: &Context) -> Result {
    let mut node = find(context, args.node.name()).await?;
    let request = v1::SetLogLevelRequest { filter: args.filter.clone() };
    let done = node.admin.set_log_level(context.call(request)).await?.into_inner();
    context.output.either(
        || json!({ "node_id": node.node_id, "filter": args.filter, "previous": done.previous }),
        || format!("node {} logs {}; before: {}", node.node_id, args.filter, done.previous),
    )
}

/// Flags of `vmemkv node backup`.
#[derive(Args, Clone, Debug)]
pub struct BackupArgs {
    /// The node.
    #[command(flatten)]
    pub node: NodeName,
    /// The directory to make: it must not exist, or be empty
    #[arg(long, value_name = "DIR")]
    pub to: std::path::PathBuf,
    /// Read at most this many bytes a second [default: no limit]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub bytes_per_second: u64,
}
