//! `vmemkv node stats`: what a server's engine counts.
//!
//! Invariant: `--json` has every field of the API by its name there.

use clap::Args;
use serde_json::{Value, json};
use vmemkv_proto::v1;

use super::node_jobs::NodeName;
use super::node_target::find;
use super::shard::key_text;
use crate::context::Context;
use crate::failure::Result;
use crate::output::{Grid, bytes_text, micros_text};

/// Flags of `vmemkv node stats`.
#[derive(Args, Clone, Debug)]
pub struct StatsArgs {
    /// The node.
    #[command(flatten)]
    pub node: NodeName,
    /// Leave the list of shards out
    #[arg(long)]
    pub omit_shards: bool,
}

/// Runs the command.
pub(super) async fn run(args: &StatsArgs, context: &Context) -> Result {
    let mut node = find(context, args.node.name()).await?;
    let request = v1::GetStatsRequest { omit_shards: args.omit_shards };
    let stats = node.admin.get_stats(context.call(request)).await?.into_inner();
    context.output.either(|| to_json(node.node_id, &stats), || to_text(node.node_id, &stats))
}

/// Turns a message into an object with the fields named.
macro_rules! fields {
    ($message:expr, $($name:ident),+ $(,)?) => {
        $message.as_ref().map(|message| json!({ $(stringify!($name): message.$name),+ }))
    };
}

fn to_json(node_id: u64, stats: &v1::GetStatsResponse) -> Value {
    let mut checkpoint =
        fields!(stats.checkpoint, count, failed, last_us, total_us, t1_bytes_written)
            .unwrap_or_default();
    let phases = stats.checkpoint.as_ref().and_then(|checkpoint| checkpoint.last_phases);
    checkpoint["last_phases"] = json!(fields!(
        phases,
        freeze_us,
        base_us,
        wait_durable_us,
        sync_values_us,
        write_index_us,
        manifest_us,
        recycle_us,
    ));
    json!({
        "node_id": node_id,
        "state": stats.state,
        "state_reason": stats.state_reason,
        "uptime_ms": stats.uptime_ms,
        "lsn": fields!(stats.lsn, checkpoint, durable, appended),
        "operations": fields!(
            stats.operations, puts, inserts, in_place_updates, deletes, range_deletes, batches,
            conditions_failed, get_hits, get_misses, cold_reads, pending_reads, scans,
            scanned_entries,
        ),
        "reorganize": fields!(
            stats.reorganize, count, total_us, last_us, max_freeze_us, splits, merges,
        ),
        "checkpoint": checkpoint,
        "defragment": fields!(
            stats.defragment, cycles, records_moved, bytes_moved, segments_freed, total_us,
            order_runs, order_bytes, order_total_us, order_last_us,
        ),
        "stalls": fields!(
            stats.stalls, count, total_us, append_region, wal_ring, value_log, disk_refusals,
            memory_refusals,
        ),
        "wal": fields!(
            stats.wal, records, bytes, fsyncs, records_per_fsync, fsync_total_us, fsync_max_us,
            segments, free_segments, disk_bytes, replay_bytes,
        ),
        "t1": fields!(
            stats.t1, keys, append_entries, frozen_entries, sorted_entries, bytes, sorted_bytes,
            append_bytes, filter_bytes, bytes_per_key, inline_entries, budget_bytes, file_bytes,
        ),
        "t2": fields!(
            stats.t2, segments, base_bytes, tail_bytes, live_bytes, dead_bytes, padding_bytes,
            disk_bytes, large_value_bytes,
        ),
        "disk": fields!(
            stats.disk, used_bytes, free_bytes, capacity_bytes, soft_reserve_bytes,
            hard_reserve_bytes,
        ),
        "shards": stats.shards.iter().map(shard_json).collect::<Vec<_>>(),
    })
}

fn shard_json(shard: &v1::ShardStats) -> Value {
    json!({
        "shard_id": shard.shard_id,
        "start_hex": hex::encode(&shard.start),
        "end_hex": hex::encode(&shard.end),
        "keys": shard.keys,
        "append_entries": shard.append_entries,
        "instance": shard.instance,
        "revision": shard.revision,
        "t1_bytes": shard.t1_bytes,
        "live_bytes": shard.live_bytes,
        "epoch": shard.epoch,
        "state": shard.state,
    })
}

fn to_text(node_id: u64, stats: &v1::GetStatsResponse) -> String {
    let mut grid = Grid::new(&["", ""]);
    let mut row = |name: &str, text: String| grid.row([name.to_owned(), text]);
    let reason = match stats.state_reason.as_str() {
        "" => String::new(),
        reason => format!(" ({reason})"),
    };
    row("node", node_id.to_string());
    row("state", format!("{}{reason}", stats.state));
    row("uptime", micros_text(stats.uptime_ms.saturating_mul(1000)));
    if let Some(operations) = &stats.operations {
        row("puts", format!("{} ({} new keys)", operations.puts, operations.inserts));
        row("deletes", operations.deletes.to_string());
        row(
            "gets",
            format!(
                "{} found, {} missing, {} from disk",
                operations.get_hits, operations.get_misses, operations.cold_reads
            ),
        );
        row("scans", format!("{} ({} entries)", operations.scans, operations.scanned_entries));
    }
    if let Some(t1) = &stats.t1 {
        row("keys", t1.keys.to_string());
        row(
            "index",
            format!("{} in memory, {:.1} B a key", bytes_text(t1.bytes), t1.bytes_per_key),
        );
    }
    if let Some(t2) = &stats.t2 {
        row(
            "value log",
            format!(
                "{} live, {} dead, {} on disk",
                bytes_text(t2.live_bytes),
                bytes_text(t2.dead_bytes),
                bytes_text(t2.disk_bytes)
            ),
        );
    }
    if let Some(wal) = &stats.wal {
        row(
            "log",
            format!(
                "{} records in {} syncs, {} to replay",
                wal.records,
                wal.fsyncs,
                bytes_text(wal.replay_bytes)
            ),
        );
    }
    if let Some(checkpoint) = &stats.checkpoint {
        row(
            "checkpoints",
            format!(
                "{} ({} failed), the last one in {}",
                checkpoint.count,
                checkpoint.failed,
                micros_text(checkpoint.last_us)
            ),
        );
    }
    if let Some(defragment) = &stats.defragment {
        row(
            "put in order",
            format!(
                "{} times, {} copied, the last one in {}",
                defragment.order_runs,
                bytes_text(defragment.order_bytes),
                micros_text(defragment.order_last_us)
            ),
        );
    }
    if let Some(stalls) = &stats.stalls {
        row("stalls", format!("{}, {} in all", stalls.count, micros_text(stalls.total_us)));
    }
    if let Some(disk) = &stats.disk {
        row(
            "disk",
            format!("{} used, {} free", bytes_text(disk.used_bytes), bytes_text(disk.free_bytes)),
        );
    }
    let text = grid.to_text("");
    let text = text.trim_start_matches('\n').to_owned();
    if stats.shards.is_empty() { text } else { format!("{text}\n\n{}", shards_text(stats)) }
}

fn shards_text(stats: &v1::GetStatsResponse) -> String {
    let mut grid =
        Grid::new(&["SHARD", "START", "END", "STATE", "#EPOCH", "#KEYS", "#LIVE", "#INDEX"]);
    for shard in &stats.shards {
        grid.row([
            shard.shard_id.to_string(),
            key_text(&shard.start, "(lowest)"),
            key_text(&shard.end, "(unbounded)"),
            shard.state.clone(),
            shard.epoch.to_string(),
            shard.keys.to_string(),
            bytes_text(shard.live_bytes),
            bytes_text(shard.t1_bytes),
        ]);
    }
    grid.to_text("")
}
