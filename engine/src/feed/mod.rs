//! The change feed: a range's durable changes after a revision, in order, read back from the log.
//!
//! A position is a revision, and belongs to a range: "everything in this range up to and with this
//! revision has been seen". Revisions go on over splits, restarts and moves, so a position does
//! too; the log's LSNs never leave this module. For a range within one shard revisions ascend in
//! log order, whatever shards held it before: its instance now, and those that its keys were split
//! or merged out of, are its [lineage](lineage::Lineage).
//!
//! - After a split the parent's position goes on for both children's ranges.
//! - After a merge each parent's position goes on for that parent's range. For a range on both
//!   sides of the seam only positions from the merge on mean anything: an older one is too old.
//! - What a merged shard took before its own record was logged counts as from before the merge.
//! - A new shard's history begins with its first revision.
//! - Where the log was ended by hand, every older position is too old, for ever.
//!
//! Invariants: only durable records are shown, whole ones; what was recycled is
//! [too old](crate::ErrorKind::TooOld), never a gap; readers hold up neither writers nor
//! checkpoints, and what they keep in memory is bounded by the log that is kept.
//!
//! `read` an answer, `index` which part of the log has which revisions, `lineage`, `waiters`.

mod index;
mod lineage;
#[cfg(test)]
mod lineage_test;
mod read;
mod waiters;

pub use read::{Change, ChangeKind, Changes};
pub use waiters::ChangesWait;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sync::primitives::Mutex;
use crate::types::{InstanceId, Revision};
use index::FeedIndex;
use waiters::Waiters;

/// What the feed of an open engine knows.
#[derive(Default)]
pub(crate) struct Feed {
    index: Mutex<FeedIndex>,
    waiters: Arc<Mutex<Waiters>>,
    /// The shards at the open, with the revision that recovery gave each: durable, and never
    /// handed out again.
    opened: BTreeMap<InstanceId, Revision>,
    /// No lower position means anything: see the manifest.
    floor: Revision,
}

impl Feed {
    /// The feed of an engine that recovered these shards; all positions below `floor` are too old.
    pub(crate) fn new(
        opened: impl IntoIterator<Item = (InstanceId, Revision)>,
        floor: Revision,
    ) -> Self {
        Self { opened: opened.into_iter().collect(), floor, ..Self::default() }
    }

    /// No shard hands out revisions at or below it, and no position below it is served.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }
}
