//! The HTTP port: health for machines, metrics.
//!
//! Invariants: `/livez` says only that the process answers; `/readyz` says whether data is served;
//! `/healthz` says whether the engine takes writes.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::routing::get;
use vmemkv_engine::State;

use crate::node::Node;
use crate::server::Registration;
use crate::service::node_admin::state_name;

/// The routes of the HTTP port.
pub(crate) fn routes(node: Arc<Node>) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .with_state(node)
}

/// Why data is not served; none: it is.
pub(crate) fn not_ready(node: &Node) -> Option<String> {
    if node.stopping.is_cancelled() {
        return Some("the server is shutting down".to_owned());
    }
    if let Err(error) = node.engine() {
        return Some(error.message);
    }
    match &*node.registration.borrow() {
        Registration::Registered { .. } => {}
        Registration::Waiting { reason } if reason.is_empty() => {
            return Some("not registered with a router yet".to_owned());
        }
        Registration::Waiting { reason } => return Some(format!("not registered: {reason}")),
        Registration::Refused { reason } => return Some(format!("refused: {reason}")),
    }
    (!node.ownership.has_lease()).then(|| "the lease has ended".to_owned())
}

async fn readyz(Shared(node): Shared<Arc<Node>>) -> (StatusCode, String) {
    answer(not_ready(&node))
}

async fn healthz(Shared(node): Shared<Arc<Node>>) -> (StatusCode, String) {
    let problem = match node.engine() {
        Err(error) => Some(error.message),
        Ok(engine) => match engine.stats().state {
            State::Healthy => None,
            state => Some(format!("the engine is {}", state_name(&state))),
        },
    };
    answer(problem)
}

fn answer(problem: Option<String>) -> (StatusCode, String) {
    match problem {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

async fn metrics(Shared(node): Shared<Arc<Node>>) -> String {
    let mut text = String::new();
    node.metrics.write_prometheus(&mut text);
    let mut gauge = |name: &str, kind: &str, value: u64| {
        let _ = writeln!(text, "# TYPE vmemkv_{name} {kind}\nvmemkv_{name} {value}");
    };
    gauge("ready", "gauge", u64::from(not_ready(&node).is_none()));
    gauge("lease_left_seconds", "gauge", node.ownership.lease_left().as_secs());
    gauge("shards", "gauge", node.ownership.table().shards().len() as u64);
    gauge("map_version", "gauge", node.ownership.table().map_version());
    if let Ok(engine) = node.engine() {
        let stats = engine.stats();
        gauge("engine_healthy", "gauge", u64::from(stats.state == State::Healthy));
        gauge("engine_puts_total", "counter", stats.counters.puts);
        gauge("engine_deletes_total", "counter", stats.counters.deletes);
        gauge("engine_get_hits_total", "counter", stats.counters.gets_hit);
        gauge("engine_get_misses_total", "counter", stats.counters.gets_miss);
        gauge("engine_scan_entries_total", "counter", stats.counters.scan_entries);
        gauge("engine_shard_splits_total", "counter", stats.counters.shard_splits);
        gauge("engine_shard_merges_total", "counter", stats.counters.shard_merges);
        gauge("engine_scan_cold_jumps_total", "counter", stats.counters.scan_cold_jumps);
        gauge("engine_order_runs_total", "counter", stats.counters.order_runs);
        gauge("engine_order_bytes_total", "counter", stats.counters.order_bytes);
        gauge("engine_checkpoints_total", "counter", stats.counters.checkpoints);
        gauge("engine_corrupt_reads_total", "counter", stats.counters.corrupt_reads);
        gauge("engine_wal_fsyncs_total", "counter", stats.wal.fsyncs);
        gauge("engine_wal_bytes_total", "counter", stats.wal.bytes);
        gauge("engine_value_live_bytes", "gauge", stats.value_log.live_bytes);
        gauge("engine_value_dead_bytes", "gauge", stats.value_log.dead_bytes);
        gauge("engine_index_bytes", "gauge", stats.index.memory_bytes);
        gauge("engine_index_budget_bytes", "gauge", stats.index.budget_bytes);
        gauge("engine_memory_refusals_total", "counter", stats.counters.memory_refusals);
    }
    text
}
