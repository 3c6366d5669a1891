//! Splits, merges and moves: work on shards that takes a while.
//!
//! Invariants: at most one active operation of any kind per shard; ids come from the cluster's
//! allocator; at most [`MAX_ACTIVE`] run, and the newest [`MAX_FINISHED`] that have ended are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::hex;

/// The most operations that run.
pub(super) const MAX_ACTIVE: usize = 1_024;

/// How many operations that have ended are kept for people to look at.
pub(super) const MAX_FINISHED: usize = 512;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Splits a shard.
    Split,
    /// Merges two shards.
    Merge,
    /// Moves a shard.
    Move,
}

/// Where an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It holds its shards; what the server has done is not known here.
    Begin,
    /// It has done what it was for.
    Done,
    /// It has ended and changed nothing.
    Failed,
}

impl Phase {
    /// In the words of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// Whether it has ended.
    pub fn is_finished(self) -> bool {
        self != Self::Begin
    }
}

/// Work on one shard, or on two. Stored as one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Identifies the operation.
    pub operation_id: u64,
    /// What it does.
    pub kind: OperationKind,
    /// Where it is.
    pub phase: Phase,
    /// How often it has been tried, from 1.
    pub attempt: u64,
    /// The shards that it holds.
    pub shards: Vec<u64>,
    /// The ids of the shards that it will make, in key order.
    pub new_shards: Vec<u64>,
    /// The epoch that those will have.
    pub epoch: u64,
    /// Split: the first key of the right half.
    #[serde(with = "hex")]
    pub key: Bytes,
    /// The node that gives; of a split, that does it; 0: none.
    pub source: u64,
    /// The node that takes; 0: none.
    pub target: u64,
    /// When it began, milliseconds since 1970 by the proposer's clock; for people only.
    pub started_unix_ms: u64,
    /// Why it failed; empty: nothing to say.
    pub reason: String,
}

impl Operation {
    /// It has ended, well or not.
    pub fn is_finished(&self) -> bool {
        self.phase.is_finished()
    }
}

/// The operations, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    by_id: BTreeMap<u64, Arc<Operation>>,
    active: BTreeSet<u64>,
    active_by_shard: BTreeMap<u64, u64>,
}

impl Operations {
    /// The operation with this id.
    pub fn get(&self, operation_id: u64) -> Option<&Arc<Operation>> {
        self.by_id.get(&operation_id)
    }

    /// The active operation that holds a shard; 0: none.
    pub fn holder(&self, shard_id: u64) -> u64 {
        self.active_by_shard.get(&shard_id).copied().unwrap_or(0)
    }

    /// Those with an id below this one, the newest first.
    pub fn before(&self, operation_id: u64) -> impl Iterator<Item = &Arc<Operation>> {
        self.by_id.range(..operation_id).rev().map(|(_, operation)| operation)
    }

    /// All operations, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Operation>> {
        self.by_id.values()
    }

    /// Those that run, by id.
    pub fn active(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.active.iter().copied()
    }

    /// The oldest that runs.
    pub fn oldest_active(&self) -> Option<u64> {
        self.active.first().copied()
    }

    /// Adds or replaces an operation.
    pub(crate) fn put(&mut self, operation: Operation) {
        let id = operation.operation_id;
        for shard in &operation.shards {
            if !operation.is_finished() {
                self.active_by_shard.insert(*shard, id);
            } else if self.holder(*shard) == id {
                self.active_by_shard.remove(shard);
            }
        }
        if operation.is_finished() {
            self.active.remove(&id);
        } else {
            self.active.insert(id);
        }
        self.by_id.insert(id, Arc::new(operation));
    }

    /// Forgets the oldest that have ended, beyond those that are kept, but for the one that has just
    /// ended. Returns their ids.
    pub(super) fn prune(&mut self, just_ended: u64) -> Vec<u64> {
        let excess = (self.by_id.len() - self.active.len()).saturating_sub(MAX_FINISHED);
        let ended = self.by_id.values().filter(|operation| operation.is_finished());
        let ids = ended.map(|operation| operation.operation_id).filter(|id| *id != just_ended);
        let gone: Vec<u64> = ids.take(excess).collect();
        for id in &gone {
            self.by_id.remove(id);
        }
        gone
    }
}
