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

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

pub(crate) use procedure::{highest_attempt, remove_unnamed};

use crate::types::{CheckpointId, InstanceId};
use chain::Chain;
use manifest::index_path;

/// What the last checkpoint left and the next one starts from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Committed {
    /// The number that the next attempt takes.
    pub(crate) next_attempt: CheckpointId,
    /// The T1 files of each instance that has some.
    pub(crate) files: BTreeMap<InstanceId, Chain>,
    /// Files of earlier checkpoints may be left that could not be removed.
    pub(crate) strays: bool,
}

impl Committed {
    /// Bytes of all index files, and of those that hold every entry of a shard.
    pub(crate) fn index_bytes(&self) -> (u64, u64) {
        let whole = self.files.values().filter_map(Chain::whole).map(|file| file.bytes).sum();
        let deltas: u64 = self.files.values().map(Chain::delta_bytes).sum();
        (whole + deltas, whole)
    }

    /// These chains take the place of those of the same instances; of the others, those that are not in
    /// `instances` go. Answers the paths of the files that nothing names any more.
    fn replace(
        &mut self,
        chains: BTreeMap<InstanceId, Chain>,
        instances: impl ExactSizeIterator<Item = InstanceId>,
    ) -> Vec<PathBuf> {
        let mut unnamed = Vec::new();
        let paths = |instance, chain: Chain| {
            chain.files.into_iter().map(move |file| index_path(instance, file.attempt))
        };
        for (instance, chain) in chains {
            let first = chain.files.first().copied();
            // A chain that goes on has the files that it had.
            if let Some(old) = self.files.insert(instance, chain)
                && old.files.first() != first.as_ref()
            {
                unnamed.extend(paths(instance, old));
            }
        }
        if self.files.len() > instances.len() {
            let left: BTreeSet<InstanceId> = instances.collect();
            let all = std::mem::take(&mut self.files);
            let (files, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
                all.into_iter().partition(|(instance, _)| left.contains(instance));
            self.files = files;
            unnamed.extend(gone.into_iter().flat_map(|(instance, chain)| paths(instance, chain)));
        }
        unnamed
    }
}

#[cfg(test)]
mod committed_test;
#[cfg(test)]
mod manifest_test;
#[cfg(test)]
mod slow_writer_test;
