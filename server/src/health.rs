//! What the health service says.
//!
//! Invariants: `vmemkv.v1.Kv` and the server as a whole are SERVING exactly while data is served
//! (registered, leased, not stopping); `NodeAdmin` from the opening of the engine on; a change
//! shows within [`POLL`].

use std::sync::Arc;
use std::time::Duration;

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::http::not_ready;
use crate::node::Node;

/// How often the state is looked at: the end of a lease is not an event.
const POLL: Duration = Duration::from_millis(100);
/// The services whose health follows the data: all of the server, and `Kv`.
const DATA: [&str; 2] = ["", "vmemkv.v1.Kv"];
const ADMIN: &str = "vmemkv.v1.NodeAdmin";

/// Keeps the health service up to date until it is dropped.
pub(crate) async fn watch(node: Arc<Node>, reporter: HealthReporter) {
    reporter.set_service_status(ADMIN, ServingStatus::Serving).await;
    let mut last = None;
    let mut changes = node.registration.subscribe();
    loop {
        let ready = not_ready(&node).is_none();
        if last != Some(ready) {
            set_data(&reporter, ready).await;
            last = Some(ready);
        }
        let _ = tokio::time::timeout(POLL, changes.changed()).await;
    }
}

/// Says that nothing is served any more.
pub(crate) async fn stop(reporter: &HealthReporter) {
    set_data(reporter, false).await;
    reporter.set_service_status(ADMIN, ServingStatus::NotServing).await;
}

async fn set_data(reporter: &HealthReporter, serving: bool) {
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in DATA {
        reporter.set_service_status(service, status).await;
    }
}
