//! What servers report: when they were last heard, and the loads of their shards. In memory only.
//!
//! Invariants: a node's figures are those of its current incarnation; a load is kept only for a
//! shard that the reporter owns, so that there are at most as many as shards (and, until the next
//! sweep, as many again); nothing here decides about leases.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use vmemkv_proto::internal::v1 as internal;
use vmemkv_proto::limits::MAX_KEY_BYTES;

use crate::clock::Clock;
use crate::splits::Report;
use crate::state::ClusterState;

/// A node that has not been heard for this many heartbeats counts as down.
const HEARTBEATS_UNTIL_DOWN: u64 = 5;
/// And for at least this long.
const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// How many shards above their size limit are kept of a node.
const MAX_CANDIDATES: usize = 16;
/// Loads are swept once there are this many more than shards.
const SWEEP_ABOVE: usize = 1_000;

/// States of an engine that takes what a split writes. Smaller shards are merged with less memory, so
/// memory that is full is no reason to leave them large.
const TAKE_SPLITS: [&str; 2] = ["healthy", "memory-full"];

/// The load of a shard, as last reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Load {
    pub(crate) keys: u64,
    pub(crate) live_bytes: u64,
    pub(crate) requests_per_second: f64,
}

/// A node, as last heard.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) incarnation: u64,
    /// When, by the router's clock.
    pub(crate) at: Duration,
    pub(crate) map_version: u64,
    pub(crate) disk_used_bytes: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) engine_state: String,
    /// Shards above their size limit.
    pub(crate) candidates: Vec<internal::SplitCandidate>,
}

/// What servers have reported to this router.
#[derive(Debug)]
pub(crate) struct Monitor {
    clock: Arc<dyn Clock>,
    heartbeat: Duration,
    started: Duration,
    /// When this router first answered a server.
    serving: OnceLock<Duration>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: HashMap<u64, Seen>,
    loads: HashMap<u64, Load>,
}

impl Monitor {
    pub(crate) fn new(clock: Arc<dyn Clock>, heartbeat: Duration) -> Self {
        let started = clock.now();
        Self { clock, heartbeat, started, serving: OnceLock::new(), inner: Mutex::default() }
    }

    /// Servers can be heard from now on, if not before.
    pub(crate) fn serves(&self) {
        self.serving.get_or_init(|| self.clock.now());
    }

    /// A node has registered: figures of its earlier runs end here.
    pub(crate) fn registered(&self, node_id: u64, incarnation: u64, map_version: u64) {
        let at = self.clock.now();
        let seen = Seen { incarnation, at, map_version, ..Seen::default() };
        self.inner.lock().nodes.insert(node_id, seen);
    }

    /// A heartbeat that has been checked against the state.
    pub(crate) fn heard(&self, heartbeat: &internal::HeartbeatRequest, state: &ClusterState) {
        let seen = Seen {
            incarnation: heartbeat.incarnation,
            at: self.clock.now(),
            map_version: heartbeat.map_version,
            disk_used_bytes: heartbeat.disk_used_bytes,
            capacity_bytes: heartbeat.capacity_bytes,
            engine_state: heartbeat.engine_state.clone(),
            candidates: candidates(heartbeat),
        };
        let mut inner = self.inner.lock();
        inner.nodes.insert(heartbeat.node_id, seen);
        for load in &heartbeat.loads {
            let owned = state.shards.get(load.shard_id);
            if owned.is_some_and(|shard| shard.owner == heartbeat.node_id) {
                let (keys, live_bytes) = (load.keys, load.live_bytes);
                let requests_per_second = load.requests_per_second;
                inner.loads.insert(load.shard_id, Load { keys, live_bytes, requests_per_second });
            }
        }
        if inner.loads.len() > state.shards.len() + SWEEP_ABOVE {
            inner.loads.retain(|shard_id, _| state.shards.get(*shard_id).is_some());
        }
    }

    /// A node, as last heard since this router started.
    pub(crate) fn seen(&self, node_id: u64) -> Option<Seen> {
        self.inner.lock().nodes.get(&node_id).cloned()
    }

    /// What nodes say of shards above their size limit, in the order of their ids.
    pub(crate) fn reports(&self) -> Vec<Report> {
        let mut reports: Vec<_> = {
            let inner = self.inner.lock();
            let ill = inner.nodes.iter().filter(|(_, seen)| !seen.candidates.is_empty());
            let report = |(node_id, seen): (&u64, &Seen)| {
                let can_split = TAKE_SPLITS.contains(&seen.engine_state.as_str());
                Report { node_id: *node_id, can_split, candidates: seen.candidates.clone() }
            };
            ill.map(report).collect()
        };
        for report in &mut reports {
            report.can_split &= !self.is_down(report.node_id);
        }
        reports.sort_by_key(|report| report.node_id);
        reports
    }

    /// The load of a shard; zeros if nothing was reported.
    pub(crate) fn load(&self, shard_id: u64) -> Load {
        self.inner.lock().loads.get(&shard_id).cloned().unwrap_or_default()
    }

    /// The sum of the loads of some shards.
    pub(crate) fn sum(&self, shards: impl Iterator<Item = u64>) -> Load {
        let inner = self.inner.lock();
        let mut sum = Load::default();
        for load in shards.filter_map(|shard_id| inner.loads.get(&shard_id)) {
            sum.keys += load.keys;
            sum.live_bytes += load.live_bytes;
            sum.requests_per_second += load.requests_per_second;
        }
        sum
    }

    /// How long a node has been silent; since this router started, if it has never been heard.
    pub(crate) fn silence(&self, node_id: u64) -> Duration {
        let begun = *self.serving.get().unwrap_or(&self.started);
        let at = self.inner.lock().nodes.get(&node_id).map_or(begun, |seen| seen.at);
        self.clock.now().saturating_sub(at)
    }

    /// Whether a node has been silent for too long.
    pub(crate) fn is_down(&self, node_id: u64) -> bool {
        let beats = u32::try_from(HEARTBEATS_UNTIL_DOWN).unwrap_or(u32::MAX);
        self.silence(node_id) > LEAST_SILENCE.max(self.heartbeat * beats)
    }

    /// How long a node must be silent before a newcomer with its id is believed to be it.
    pub(crate) fn takeover_silence(&self) -> Duration {
        self.heartbeat * 2
    }
}

/// What a heartbeat says of shards above their limit, as far as it can be meant.
fn candidates(heartbeat: &internal::HeartbeatRequest) -> Vec<internal::SplitCandidate> {
    let fits = |candidate: &&internal::SplitCandidate| {
        candidate.key.as_ref().is_none_or(|key| key.len() <= MAX_KEY_BYTES)
    };
    heartbeat.split_candidates.iter().filter(fits).take(MAX_CANDIDATES).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn a_silent_node_is_down_after_a_while() {
        let clock = Arc::new(ManualClock::default());
        let monitor = Monitor::new(clock.clone(), Duration::from_secs(1));
        assert!(!monitor.is_down(1) && monitor.seen(1).is_none());
        clock.advance(Duration::from_secs(4));
        monitor.registered(2, 9, 1);
        clock.advance(Duration::from_millis(1001));
        assert!(monitor.is_down(1) && !monitor.is_down(2));
        assert_eq!(monitor.silence(2), Duration::from_millis(1001));
        let heartbeat = internal::HeartbeatRequest { node_id: 1, ..Default::default() };
        monitor.heard(&heartbeat, &ClusterState::default());
        assert!(!monitor.is_down(1));
    }

    #[test]
    fn only_a_node_that_is_heard_and_can_write_can_split() {
        let clock = Arc::new(ManualClock::default());
        let monitor = Monitor::new(clock.clone(), Duration::from_secs(1));
        let can_split = |engine_state: &str| {
            let heartbeat = internal::HeartbeatRequest {
                node_id: 1,
                engine_state: engine_state.to_owned(),
                split_candidates: vec![internal::SplitCandidate::default()],
                ..Default::default()
            };
            monitor.heard(&heartbeat, &ClusterState::default());
            monitor.reports()[0].can_split
        };
        for engine_state in ["read-only", "disk-full", "", "of a later release"] {
            assert!(!can_split(engine_state), "{engine_state}");
        }
        assert!(can_split("memory-full") && can_split("healthy"));
        clock.advance(Duration::from_secs(6));
        assert!(!monitor.reports()[0].can_split, "it is down");
    }

    #[test]
    fn loads_of_shards_that_the_reporter_does_not_own_are_dropped() {
        let monitor = Monitor::new(Arc::new(ManualClock::default()), Duration::from_secs(1));
        let load = internal::ShardLoad { shard_id: 5, keys: 3, ..Default::default() };
        let heartbeat =
            internal::HeartbeatRequest { node_id: 1, loads: vec![load], ..Default::default() };
        monitor.heard(&heartbeat, &ClusterState::default());
        assert_eq!(monitor.load(5), Load::default());
        assert_eq!(monitor.sum([5].into_iter()), Load::default());
    }
}
