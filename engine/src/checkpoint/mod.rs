//! Making index and value log durable as of a position in the log, committed by one rename.
//!
//! The steps, each with what a crash after it leaves: [`procedure`]. The file that commits:
//! [`manifest`], with its rules in [`manifest_rules`]. What is written of each shard: [`rewrite`].
//!
//! Invariants: `checkpoint_lsn <= freeze_lsn <= durable_lsn` for a committed checkpoint; an
//! attempt number is never used again, not even after a failure; nothing that the committed
//! manifest names is freed, recycled or removed.

pub(crate) mod chain;
pub(crate) mod manifest;
pub(crate) mod manifest_rules;
mod procedure;
mod rewrite;
mod write_index;

use std::collections::BTreeMap;

pub(crate) use procedure::{highest_attempt, remove_unnamed};

use crate::types::{CheckpointId, InstanceId};
use chain::Chain;

/// What the last checkpoint left and the next one starts from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Committed {
    /// The number that the next attempt takes.
    pub(crate) next_attempt: CheckpointId,
    /// The T1 files of each instance that has some.
    pub(crate) files: BTreeMap<InstanceId, Chain>,
}

impl Committed {
    /// Bytes of all index files, and of those that hold every entry of a shard.
    pub(crate) fn index_bytes(&self) -> (u64, u64) {
        let whole = self.files.values().filter_map(Chain::whole).map(|file| file.bytes).sum();
        let deltas: u64 = self.files.values().map(Chain::delta_bytes).sum();
        (whole + deltas, whole)
    }
}

#[cfg(test)]
mod manifest_test;
#[cfg(test)]
mod slow_writer_test;
