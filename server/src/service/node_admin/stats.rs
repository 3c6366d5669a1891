//! GetStats: the engine's statistics as messages.
//!
//! Invariant: what the engine does not measure stays 0; nothing is made up.

use std::sync::Arc;

use vmemkv_engine::{CheckpointReport, ShardInfo, State, Stats};
use vmemkv_proto::{ApiError, v1};

use crate::disk_usage;
use crate::io_pool::Class;
use crate::node::Node;
use crate::ownership::{ShardState, ShardTable};

/// Most shards that an answer lists; with it an answer stays below the limit of stock clients.
const SHARDS_MAX: usize = 10_000;
/// Most bytes of bounds that an answer lists.
const BOUND_BYTES_MAX: usize = 2 << 20;

/// The statistics of a node.
pub(super) async fn get_stats(
    node: &Arc<Node>,
    with_shards: bool,
) -> Result<v1::GetStatsResponse, ApiError> {
    let engine = node.engine()?;
    let job = move || {
        let stats = engine.stats();
        let shards = if with_shards { engine.shards() } else { Vec::new() };
        let disk = disk_usage::measure(&stats);
        (stats, shards, disk)
    };
    let (stats, shards, disk) = node.pool.run(Class::Read, job).await?;
    let reserves = (stats.disk.soft_reserve_bytes, stats.disk.hard_reserve_bytes);
    let mut answer = to_wire(&stats);
    answer.uptime_ms = u64::try_from(node.uptime().as_millis()).unwrap_or(u64::MAX);
    answer.disk = Some(v1::DiskStats {
        used_bytes: disk.used_bytes,
        free_bytes: disk.free_bytes,
        capacity_bytes: disk.capacity_bytes,
        soft_reserve_bytes: reserves.0,
        hard_reserve_bytes: reserves.1,
    });
    let table = node.ownership.table();
    let mut bounds = 0;
    let fits = |shard: &&ShardInfo| {
        bounds += shard.range.start.len() + shard.range.end.len();
        bounds <= BOUND_BYTES_MAX
    };
    let listed = shards.iter().take(SHARDS_MAX).take_while(fits);
    answer.shards = listed.map(|shard| shard_to_wire(shard, &table)).collect();
    Ok(answer)
}

/// The name of a state, as heartbeats and statistics say it.
pub(crate) fn state_name(state: &State) -> &'static str {
    match state {
        State::Healthy => "healthy",
        State::ReadOnly { .. } => "read-only",
        State::DiskFull => "disk-full",
        State::MemoryFull => "memory-full",
    }
}

fn to_wire(stats: &Stats) -> v1::GetStatsResponse {
    let counters = &stats.counters;
    let index = &stats.index;
    let keys = index.sorted_entries + index.append_entries;
    v1::GetStatsResponse {
        state: state_name(&stats.state).to_owned(),
        state_reason: match &stats.state {
            State::ReadOnly { reason } => reason.clone(),
            State::DiskFull => "the disk is full: puts are refused until space returns".to_owned(),
            State::MemoryFull => format!(
                "the index takes {} of its memory_budget_bytes = {}: new keys are refused",
                stats.index.memory_bytes, stats.index.budget_bytes
            ),
            State::Healthy => String::new(),
        },
        lsn: Some(v1::LsnStats {
            checkpoint: stats.wal.checkpoint_lsn.0,
            durable: stats.wal.durable_lsn.0,
            appended: stats.wal.appended_lsn.0,
        }),
        operations: Some(v1::OperationStats {
            puts: counters.puts,
            inserts: counters.inserts,
            in_place_updates: counters.updates_in_place,
            deletes: counters.deletes,
            conditions_failed: counters.conditions_failed,
            get_hits: counters.gets_hit,
            get_misses: counters.gets_miss,
            pending_reads: counters.reads_waited,
            scans: counters.scan_chunks,
            scanned_entries: counters.scan_entries,
            ..Default::default()
        }),
        reorganize: Some(v1::ReorganizeStats {
            count: counters.reorganizes,
            total_us: counters.reorganize_us,
            ..Default::default()
        }),
        checkpoint: Some(v1::CheckpointStats {
            count: counters.checkpoints,
            failed: counters.checkpoints_failed,
            total_us: counters.checkpoint_us,
            last_phases: Some(phases(&stats.last_checkpoint)),
            t1_bytes_written: counters.checkpoint_index_bytes,
            ..Default::default()
        }),
        defragment: Some(v1::DefragmentStats {
            cycles: counters.defragments,
            records_moved: counters.defragment_records,
            bytes_moved: counters.defragment_copied_bytes,
            segments_freed: counters.value_segments_freed,
            total_us: counters.defragment_us,
            order_runs: counters.order_runs,
            order_bytes: counters.order_bytes,
            order_total_us: counters.order_us,
            order_last_us: stats.last_order_us,
        }),
        stalls: Some(v1::StallStats {
            count: counters.stalls_append
                + counters.slowed_append
                + counters.stalls_disk
                + counters.stalls_debt
                + stats.wal.stalls,
            total_us: counters.stalls_append_us
                + counters.slowed_append_us
                + counters.stalls_disk_us
                + counters.stalls_debt_us,
            value_log: counters.stalls_disk + counters.stalls_debt,
            disk_refusals: counters.refused_disk,
            append_region: counters.stalls_append + counters.slowed_append,
            memory_refusals: counters.memory_refusals,
            wal_ring: stats.wal.stalls,
        }),
        wal: Some(wal_to_wire(stats)),
        t1: Some(v1::T1Stats {
            keys,
            append_entries: index.append_entries,
            sorted_entries: index.sorted_entries,
            bytes: index.memory_bytes,
            bytes_per_key: ratio(index.memory_bytes, keys),
            budget_bytes: index.budget_bytes,
            ..Default::default()
        }),
        t2: Some(v1::T2Stats {
            segments: stats.value_log.segments,
            base_bytes: stats.value_log.base_bytes,
            tail_bytes: stats.value_log.tail_bytes,
            live_bytes: stats.value_log.live_bytes,
            dead_bytes: stats.value_log.dead_bytes,
            disk_bytes: stats.value_log.disk_bytes,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The phases of a checkpoint.
pub(super) fn phases(report: &CheckpointReport) -> v1::CheckpointPhases {
    v1::CheckpointPhases {
        freeze_us: report.freeze_us,
        base_us: report.base_us,
        wait_durable_us: report.wait_durable_us,
        sync_values_us: report.sync_values_us,
        write_index_us: report.write_index_us,
        manifest_us: report.manifest_us,
        recycle_us: report.recycle_us,
    }
}

fn wal_to_wire(stats: &Stats) -> v1::WalStats {
    let wal = &stats.wal;
    v1::WalStats {
        records: wal.records,
        bytes: wal.bytes,
        fsyncs: wal.fsyncs,
        records_per_fsync: ratio(wal.records, wal.fsyncs),
        segments: wal.segments,
        free_segments: wal.recycled_segments,
        disk_bytes: wal.disk_bytes,
        replay_bytes: wal.appended_lsn.0.saturating_sub(wal.checkpoint_lsn.0),
        ..Default::default()
    }
}

fn shard_to_wire(shard: &ShardInfo, table: &ShardTable) -> v1::ShardStats {
    let owned = table.shards().iter().find(|owned| owned.shard.shard_id == shard.id.0);
    let state = match owned.map(|owned| owned.state) {
        Some(ShardState::Serving) => "own",
        Some(ShardState::Unconfirmed) => "ready",
        Some(ShardState::WithoutData) | None => "",
    };
    v1::ShardStats {
        shard_id: shard.id.0,
        start: shard.range.start.clone().into(),
        end: shard.range.end.clone().into(),
        keys: shard.keys,
        append_entries: shard.append_entries,
        live_bytes: shard.live_bytes,
        instance: shard.instance.0,
        revision: shard.revision.0,
        epoch: shard.epoch,
        state: state.to_owned(),
        ..Default::default()
    }
}

fn ratio(of: u64, per: u64) -> f64 {
    if per == 0 { 0.0 } else { of as f64 / per as f64 }
}
