//! Which shards are split because of their size.
//!
//! Invariants: the owner says which of its shards are too large, and where it would cut them;
//! at most one operation runs per node, and none is begun on one that is down, leaves the cluster or
//! cannot write; a shard whose split failed, or that no key splits, is left
//! alone for [`REST`] and an operator is told; what is remembered is about shards that exist.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use vmemkv_proto::internal::v1::SplitCandidate;

use crate::state::{ClusterState, NodeState, check_begin};

/// How long a shard is left alone after a split that failed.
const REST: Duration = Duration::from_secs(60);

/// What a node has reported last.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) node_id: u64,
    /// It is heard, and its engine takes what a split writes.
    pub(crate) can_split: bool,
    /// Its shards above their size limit.
    pub(crate) candidates: Vec<SplitCandidate>,
}

/// A split to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) shard_id: u64,
    pub(super) epoch: u64,
    pub(super) key: Bytes,
}

/// What became of shards that were too large.
#[derive(Debug, Default)]
pub(super) struct BySize {
    /// Splits of these have begun; a shard that is still there without an operation has failed.
    begun: HashSet<u64>,
    /// Left alone until then.
    resting: HashMap<u64, Duration>,
    /// As last reported, no key splits them; their bytes.
    without_key: HashMap<u64, u64>,
}

impl BySize {
    /// Chooses for each node the largest shard that can be split, if the node has nothing to do.
    pub(super) fn choose(
        &mut self,
        state: &ClusterState,
        reports: &[Report],
        now: Duration,
    ) -> Vec<Chosen> {
        self.sweep(state, now);
        let active = state.operations.active().filter_map(|id| state.operations.get(id));
        let busy: HashSet<u64> =
            active.flat_map(|operation| [operation.source, operation.target]).collect();
        let mut chosen = Vec::new();
        for Report { node_id, can_split, candidates } in reports {
            let node = state.nodes.get(*node_id);
            let is_up = node.is_some_and(|node| node.state == NodeState::Up);
            let mut largest: Option<(u64, Chosen)> = None;
            for candidate in candidates {
                let found = self.consider(state, *node_id, candidate, now);
                let bytes = candidate.bytes;
                if largest.as_ref().is_none_or(|(known, _)| bytes > *known) {
                    largest = found.map(|found| (bytes, found)).or(largest);
                }
            }
            if is_up && *can_split && !busy.contains(node_id) {
                chosen.extend(largest.map(|(_, found)| found));
            }
        }
        chosen
    }

    fn consider(
        &mut self,
        state: &ClusterState,
        node_id: u64,
        candidate: &SplitCandidate,
        now: Duration,
    ) -> Option<Chosen> {
        let SplitCandidate { shard_id, epoch, bytes, .. } = *candidate;
        let shard = state.shards.get(shard_id)?;
        if shard.owner != node_id || shard.epoch != epoch {
            return None;
        }
        let Some(key) = candidate.key.clone() else {
            self.without_key.insert(shard_id, bytes);
            return None;
        };
        // A shard whose split has begun and ended would be gone, had it ended well.
        if state.operations.holder(shard_id) == 0 && self.begun.remove(&shard_id) {
            self.resting.insert(shard_id, now + REST);
        }
        let rests = self.resting.contains_key(&shard_id);
        let splits = !rests && check_begin(state, shard_id, &key).is_ok();
        splits.then_some(Chosen { shard_id, epoch, key })
    }

    /// A split that was chosen has begun, or could not.
    pub(super) fn begun(&mut self, shard_id: u64, has_begun: bool, now: Duration) {
        if has_begun {
            self.begun.insert(shard_id);
        } else {
            self.resting.insert(shard_id, now + REST);
        }
    }

    /// What an operator should know of a shard; empty: nothing.
    pub(super) fn note(&self, shard_id: u64, now: Duration) -> String {
        if let Some(bytes) = self.without_key.get(&shard_id) {
            return format!("too large ({bytes} bytes), and no key splits it");
        }
        match self.resting.get(&shard_id) {
            Some(until) if *until > now => {
                let seconds = (*until - now).as_secs();
                format!("too large; its split has failed, the next begins in {seconds} s or later")
            }
            _ => String::new(),
        }
    }

    fn sweep(&mut self, state: &ClusterState, now: Duration) {
        let exists = |shard_id: &u64| state.shards.get(*shard_id).is_some();
        self.begun.retain(exists);
        self.resting.retain(|shard_id, until| *until > now && exists(shard_id));
        // Said anew by each report for which it is so.
        self.without_key.clear();
    }
}

#[cfg(test)]
#[path = "by_size_test.rs"]
mod tests;
