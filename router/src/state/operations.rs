//! Splits, merges and moves: work on shards that takes a while.
//!
//! Invariants: at most one active operation of any kind per shard; ids come from the cluster's
//! allocator. No command begins one yet: the table is part of the stored state from the start, so
//! that later releases read what this one wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

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

/// Work on one shard, or on two. Stored as one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Identifies the operation.
    pub operation_id: u64,
    /// What it does.
    pub kind: OperationKind,
    /// Where it is, in the words of the API.
    pub phase: String,
    /// How often it has been tried, from 1.
    pub attempt: u64,
    /// The shards that it holds.
    pub shards: Vec<u64>,
    /// The node that gives; 0: none.
    pub source: u64,
    /// The node that takes; 0: none.
    pub target: u64,
    /// When it began, milliseconds since 1970 by the proposer's clock; for people only.
    pub started_unix_ms: u64,
    /// How long it may take, milliseconds.
    pub deadline_ms: u64,
    /// Why it failed or waits; empty: nothing to say.
    pub reason: String,
    /// It has ended.
    pub finished: bool,
}

/// The operations, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    by_id: BTreeMap<u64, Arc<Operation>>,
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

    /// How many run.
    pub fn active(&self) -> usize {
        self.by_id.values().filter(|operation| !operation.finished).count()
    }

    /// Adds or replaces an operation.
    pub(crate) fn put(&mut self, operation: Operation) {
        for shard in &operation.shards {
            if operation.finished {
                self.active_by_shard.remove(shard);
            } else {
                self.active_by_shard.insert(*shard, operation.operation_id);
            }
        }
        self.by_id.insert(operation.operation_id, Arc::new(operation));
    }
}
