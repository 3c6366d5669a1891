//! The HTTP port: health, figures for Prometheus, and a page for people.
//!
//! Invariants: alive means that the process can go on, ready that it answers clients; both say why
//! not; a page never holds more than a summary.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use tokio::sync::watch;
use vmemkv_proto::v1;

use crate::raft::RaftNode;
use crate::service::method_counts::MethodCounts;
use crate::service::status::StatusView;

/// What the pages are made of; cheap to clone.
#[derive(Clone)]
pub(crate) struct HttpState {
    pub(crate) raft: RaftNode,
    pub(crate) view: StatusView,
    pub(crate) counts: Arc<MethodCounts>,
    /// The gRPC port is served.
    pub(crate) serving: watch::Receiver<bool>,
}

/// The pages.
pub(crate) fn router(state: HttpState) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/healthz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/", get(page))
        .with_state(state)
}

async fn livez(State(state): State<HttpState>) -> (StatusCode, String) {
    match state.raft.fatal() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

async fn readyz(State(state): State<HttpState>) -> (StatusCode, String) {
    let reason = if state.raft.fatal().is_some() {
        "this router has failed"
    } else if !*state.serving.borrow() {
        "the gRPC port is not open"
    } else if state.raft.leader().is_none() {
        "the routers have no leader"
    } else {
        return (StatusCode::OK, "ok\n".to_owned());
    };
    (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
}

async fn metrics(State(state): State<HttpState>) -> impl IntoResponse {
    let text = metrics_text(&state.view.cluster(), &state.counts.list());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

async fn page(State(state): State<HttpState>) -> Html<String> {
    Html(page_text(&state.view.cluster()))
}

fn metrics_text(status: &v1::GetClusterStatusResponse, counts: &[v1::MethodCount]) -> String {
    let nodes = status.nodes.unwrap_or_default();
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, values: &[(&str, u64)]| {
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "# HELP vmemkv_router_{name} {help}\n# TYPE vmemkv_router_{name} gauge");
        for (labels, value) in values {
            let _ = writeln!(text, "vmemkv_router_{name}{labels} {value}");
        }
    };
    gauge("healthy", "1 if nothing needs an operator.", &[("", u64::from(status.healthy))]);
    gauge("map_version", "The version of the shard map.", &[("", status.map_version)]);
    gauge("shards", "Shards in the map.", &[("", status.shards)]);
    gauge(
        "has_leader",
        "1 if a leader is known.",
        &[("", u64::from(status.leader_router_id != 0))],
    );
    gauge(
        "nodes",
        "Servers by state.",
        &[
            ("{state=\"up\"}", nodes.up),
            ("{state=\"draining\"}", nodes.draining),
            ("{state=\"down\"}", nodes.down),
            ("{state=\"removing\"}", nodes.removing),
            ("{state=\"removed\"}", nodes.removed),
        ],
    );
    for (name, help) in [
        ("calls_total", "Calls per gRPC method."),
        ("errors_total", "Calls per gRPC method that ended in an error."),
    ] {
        let _ = writeln!(
            text,
            "# HELP vmemkv_router_{name} {help}\n# TYPE vmemkv_router_{name} counter"
        );
        for count in counts {
            let value = if name == "calls_total" { count.calls } else { count.errors };
            let method = count.method.replace(['\\', '"', '\n'], "_");
            let _ = writeln!(text, "vmemkv_router_{name}{{method=\"{method}\"}} {value}");
        }
    }
    text
}

fn page_text(status: &v1::GetClusterStatusResponse) -> String {
    let nodes = status.nodes.unwrap_or_default();
    let state = if status.healthy { "healthy" } else { "not healthy" };
    let mut text = format!(
        "<!doctype html><title>vmemkv router</title><h1>vmemkv: {state}</h1><pre>\n\
         cluster      {:016x}, generation {}\n\
         leader       {:016x}\n\
         routers      {}\n\
         servers      {} up, {} draining, {} down, {} removing\n\
         shards       {}, map version {}\n\
         entries      {}, {} bytes\n",
        status.cluster_id,
        status.generation,
        status.leader_router_id,
        status.routers.len(),
        nodes.up,
        nodes.draining,
        nodes.down,
        nodes.removing,
        status.shards,
        status.map_version,
        status.keys,
        status.live_bytes,
    );
    for problem in status.problems.iter().take(100) {
        let _ = writeln!(text, "! {}", escape(problem));
    }
    text.push_str("</pre>\n");
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_servers_cannot_break_out() {
        let problems = vec!["node at <script>alert(1)</script>".to_owned()];
        let status = v1::GetClusterStatusResponse { problems, ..Default::default() };
        assert!(!page_text(&status).contains("<script>"));
        let method = "a\"} 1\nx".to_owned();
        let counts = [v1::MethodCount { method, calls: 2, errors: 1 }];
        let text = metrics_text(&status, &counts);
        assert!(text.contains("vmemkv_router_calls_total{method=\"a_} 1_x\"} 2\n"), "{text}");
        assert!(text.contains("vmemkv_router_errors_total{method=\"a_} 1_x\"} 1\n"), "{text}");
    }
}
