//! The committed state in this process's memory, shared by the state machine that writes it and the
//! services that read it.
//!
//! Invariants: one writer, the state machine; what is read is committed; the delta log covers every
//! map version above its floor, and holds at most [`MAX_DELTA_SHARDS`] shard ids.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::RwLock;
use prost::Message as _;
use tokio::sync::watch;
use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::limits::{ANSWER_TARGET_BYTES, ENTRY_OVERHEAD_BYTES};
use vmemkv_proto::v1;

use crate::state::{ClusterState, Command, Event, Nodes, Outcome, Shard, apply};

/// How many changed shards the delta log remembers.
pub(crate) const MAX_DELTA_SHARDS: usize = 100_000;

/// What changed since a version of the map.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Changes {
    /// The changed shards as they are now, in key order.
    Shards {
        /// The cluster.
        cluster_id: u64,
        /// The version of the map now.
        map_version: u64,
        /// The shards.
        shards: Vec<v1::Shard>,
    },
    /// The delta log does not reach back so far.
    Forgotten,
}

/// A part of the map at one version, that holds no lock.
#[derive(Clone, Debug)]
pub(crate) struct MapSlice {
    /// The version of the map.
    pub(crate) map_version: u64,
    /// There is no shard at all yet.
    pub(crate) map_is_empty: bool,
    nodes: Nodes,
    shards: Vec<Arc<Shard>>,
}

impl MapSlice {
    /// The shards in messages of about 1 MiB, each with whether it is the last; at least one.
    pub(crate) fn into_chunks(self) -> impl Iterator<Item = (Vec<v1::Shard>, bool)> + Send {
        let nodes = self.nodes;
        chunks(self.shards.into_iter().map(move |shard| shard.to_wire(&nodes)))
    }
}

/// Shards in messages of about 1 MiB, each with whether it is the last; at least one.
pub(crate) fn chunks(
    shards: impl Iterator<Item = v1::Shard> + Send,
) -> impl Iterator<Item = (Vec<v1::Shard>, bool)> + Send {
    let mut shards = shards.peekable();
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let mut chunk = Vec::new();
        let mut bytes = 0;
        while let Some(next) = shards.peek() {
            bytes += next.encoded_len() + ENTRY_OVERHEAD_BYTES;
            if !chunk.is_empty() && bytes > ANSWER_TARGET_BYTES {
                break;
            }
            chunk.extend(shards.next());
        }
        ended = shards.peek().is_none();
        Some((chunk, ended))
    })
}

/// The committed state; cheap to clone.
#[derive(Clone)]
pub(crate) struct LocalState {
    shared: Arc<Shared>,
}

struct Shared {
    inner: RwLock<Inner>,
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    state: ClusterState,
    deltas: DeltaLog,
}

/// Which shards changed with which version of the map.
#[derive(Default)]
struct DeltaLog {
    /// Deltas start at this version or a later one.
    floor: u64,
    versions: VecDeque<(u64, Vec<u64>)>,
    shards: usize,
}

impl LocalState {
    pub(crate) fn new(state: ClusterState) -> Self {
        let version = state.cluster.map_version;
        let deltas = DeltaLog { floor: version, ..DeltaLog::default() };
        let inner = RwLock::new(Inner { state, deltas });
        Self { shared: Arc::new(Shared { inner, version: watch::Sender::new(version) }) }
    }

    /// Reads the state. Keep it short: the state machine waits meanwhile.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&ClusterState) -> T) -> T {
        read(&self.shared.inner.read().state)
    }

    /// The shards that hold keys of a range, to be worked with at leisure.
    pub(crate) fn slice(&self, keys: &KeyRange) -> MapSlice {
        self.read(|state| MapSlice {
            map_version: state.cluster.map_version,
            map_is_empty: state.shards.is_empty(),
            nodes: state.nodes.clone(),
            shards: state.shards.range(keys).cloned().collect(),
        })
    }

    /// Applies a committed command.
    pub(crate) fn apply(&self, command: &Command) -> (Outcome, Vec<Event>) {
        let mut inner = self.shared.inner.write();
        let (outcome, events) = apply(&mut inner.state, command);
        for event in &events {
            if let Event::Map { version, changed, .. } = event {
                inner.deltas.push(*version, changed.clone());
            }
        }
        let version = inner.state.cluster.map_version;
        drop(inner);
        self.publish(version);
        (outcome, events)
    }

    /// Puts another state in its place: a snapshot has been installed.
    pub(crate) fn replace(&self, state: ClusterState) {
        let version = state.cluster.map_version;
        let mut inner = self.shared.inner.write();
        inner.deltas = DeltaLog { floor: version, ..DeltaLog::default() };
        inner.state = state;
        drop(inner);
        self.publish(version);
    }

    /// Sees every new version of the map.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    /// What changed since `version`.
    pub(crate) fn since(&self, version: u64) -> Changes {
        let inner = self.shared.inner.read();
        if version < inner.deltas.floor {
            return Changes::Forgotten;
        }
        let state = &inner.state;
        let mut shards: Vec<_> =
            inner.deltas.since(version).iter().filter_map(|id| state.shards.get(*id)).collect();
        shards.sort_by(|a, b| a.start.cmp(&b.start));
        Changes::Shards {
            cluster_id: state.cluster.cluster_id,
            map_version: state.cluster.map_version,
            shards: shards.iter().map(|shard| shard.to_wire(&state.nodes)).collect(),
        }
    }

    fn publish(&self, version: u64) {
        self.shared.version.send_if_modified(|known| {
            let news = *known != version;
            *known = version;
            news
        });
    }
}

impl DeltaLog {
    fn push(&mut self, version: u64, changed: Vec<u64>) {
        self.shards += changed.len();
        self.versions.push_back((version, changed));
        while self.shards > MAX_DELTA_SHARDS {
            let Some((version, changed)) = self.versions.pop_front() else { break };
            self.shards -= changed.len();
            self.floor = version;
        }
    }

    fn since(&self, version: u64) -> BTreeSet<u64> {
        let from = self.versions.partition_point(|(known, _)| *known <= version);
        self.versions.range(from..).flat_map(|(_, changed)| changed.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_bounded_and_the_last_is_marked() {
        let shard =
            |id| v1::Shard { shard_id: id, start: vec![7; 4000].into(), ..Default::default() };
        let all: Vec<_> = chunks((1..=1000).map(shard)).collect();
        assert!(all.len() > 3);
        for (at, (chunk, last)) in all.iter().enumerate() {
            let bytes: usize = chunk.iter().map(|shard| shard.encoded_len() + 4).sum();
            assert!(bytes <= ANSWER_TARGET_BYTES && !chunk.is_empty());
            assert_eq!(*last, at + 1 == all.len());
        }
        let ids: Vec<_> = all.iter().flat_map(|(chunk, _)| chunk).map(|s| s.shard_id).collect();
        assert_eq!(ids, (1..=1000).collect::<Vec<_>>());
        let none: Vec<_> = chunks(std::iter::empty()).collect();
        assert_eq!(none, [(Vec::new(), true)]);
    }

    #[test]
    fn the_delta_log_is_bounded_and_says_where_it_starts() {
        let mut log = DeltaLog { floor: 1, ..DeltaLog::default() };
        for version in 2..1000 {
            log.push(version, vec![version; 1000]);
            assert!(log.shards <= MAX_DELTA_SHARDS);
        }
        assert_eq!(log.floor, 899);
        assert_eq!(log.since(899).first(), Some(&900));
        assert_eq!(log.since(999).len(), 0);
        assert_eq!(log.since(997).into_iter().collect::<Vec<_>>(), [998, 999]);
    }
}
