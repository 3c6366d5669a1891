//! Which stretch of the log has which revisions of which instance, and which instances were born
//! in it: read from the log as far as it is durable, when a reader asks.
//!
//! Invariants: `blocks` cover `[blocks[0].start, end)` without gaps; a block lies in one segment,
//! is [`BLOCK_BYTES`] long or a record more, and is dropped with its segment; all of it follows
//! from the log, so it may be thrown away at any time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::lineage::{Birth, Births, Lineage, Origin};
use crate::error::Result;
use crate::types::{InstanceId, KeyRange, Lsn, Revision};
use crate::wal::{BodyView, Followed, Merge, Reading, RecordView, Wal};

/// Log bytes of a block: what a reader reads in vain at most.
const BLOCK_BYTES: u64 = 1 << 20;
/// Most remembered places of readers.
const MAX_PLACES: usize = 64;
/// Most instances that are known; beyond, they are found out again.
const MAX_KNOWN: usize = 1 << 16;

/// The index.
#[derive(Default)]
pub(super) struct FeedIndex {
    blocks: VecDeque<Block>,
    /// The log has been looked at up to here.
    end: Lsn,
    births: Births,
    /// Instances made since the open whose record has been seen durable.
    known: BTreeSet<InstanceId>,
    places: VecDeque<Place>,
}

/// A stretch of the log.
struct Block {
    start: Lsn,
    /// Of each instance, its first and last revision here.
    revisions: BTreeMap<InstanceId, (Revision, Revision)>,
}

/// Where a reader is: its range's changes up to `after` lie below `at`, all others at or above.
struct Place {
    range: KeyRange,
    after: Revision,
    at: Lsn,
}

impl FeedIndex {
    /// Where the index ends.
    pub(super) fn end(&self) -> Lsn {
        self.end
    }

    /// Forgets what is no longer kept, and reads on to the durable end.
    pub(super) fn advance(&mut self, wal: &Wal) -> Result<()> {
        loop {
            self.forget_below(wal.oldest_lsn());
            let to = wal.durable_lsn();
            let read = wal.read_durable(self.end, to, &mut |record, end, segment| {
                self.add(record, end, segment);
                Ok(Reading::On)
            })?;
            // Gone: recycled under the reading, so the oldest LSN has moved.
            if matches!(read, Followed::To(_)) {
                return Ok(());
            }
        }
    }

    fn forget_below(&mut self, oldest: Lsn) {
        while self.blocks.front().is_some_and(|block| block.start < oldest) {
            self.blocks.pop_front();
        }
        self.births.retain(|_, birth| birth.lsn > oldest);
        self.places.retain(|place| place.at >= oldest);
        self.end = self.end.max(oldest);
    }

    fn add(&mut self, record: &RecordView<'_>, end: Lsn, segment: Lsn) {
        let start = record.start_lsn();
        let fits = |block: &Block| block.start >= segment && start.0 - block.start.0 < BLOCK_BYTES;
        if !self.blocks.back().is_some_and(fits) {
            self.blocks.push_back(Block { start, revisions: BTreeMap::new() });
        }
        self.end = end;
        match record.body() {
            BodyView::Write(sections) => {
                let Some(block) = self.blocks.back_mut() else { return };
                for section in sections {
                    let first = section.first_revision;
                    let last = Revision(first.0 + section.count().saturating_sub(1));
                    let seen = block.revisions.entry(section.instance).or_insert((first, last));
                    *seen = (seen.0.min(first), seen.1.max(last));
                }
            }
            BodyView::CreateShard(new) => {
                let birth = Birth { lsn: end, revision: new.revision, origin: Origin::Created };
                self.born(new.instance, birth);
            }
            BodyView::Split(split) => {
                let origin = Origin::Split(split.parent.1);
                let birth = Birth { lsn: end, revision: split.revision, origin };
                self.born(split.left.1, birth.clone());
                self.born(split.right.1, birth);
            }
            BodyView::Merge(merge) => {
                let Merge { left, right, seam, revision, merged, .. } = merge;
                let (left, right, seam) = (left.1, right.1, seam.to_vec());
                let origin = Origin::Merge { left, right, seam };
                self.born(merged.1, Birth { lsn: end, revision, origin });
            }
            BodyView::Filler
            | BodyView::RefuseOperation { .. }
            | BodyView::ForgetOperation { .. } => {}
        }
    }

    /// Whether the instance's record is durable, and in the index if it is still in the log.
    pub(super) fn is_known(&self, instance: InstanceId) -> bool {
        self.known.contains(&instance)
    }

    /// Its record is durable.
    pub(super) fn know(&mut self, instance: InstanceId) {
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(instance);
    }

    fn born(&mut self, instance: InstanceId, birth: Birth) {
        self.know(instance);
        self.births.insert(instance, birth);
    }

    /// The lineage of a range within an instance.
    pub(super) fn lineage(&self, instance: InstanceId, range: &KeyRange) -> Lineage {
        Lineage::of(instance, range, &self.births)
    }

    /// The highest revision that recovery will give the instance at the least, as the log shows.
    pub(super) fn newest(&self, instance: InstanceId) -> Option<Revision> {
        let last = |block: &Block| block.revisions.get(&instance).map(|(_, last)| *last);
        let born = self.births.get(&instance).map(|birth| birth.revision);
        self.blocks.iter().rev().find_map(last).max(born)
    }

    /// All changes of the lineage before the kept log have this revision or a lower one; `None` if
    /// the kept log does not show it.
    pub(super) fn floor(&self, lineage: &Lineage) -> Option<Revision> {
        let seen = self.blocks.iter().find_map(|block| {
            let first = |instance| block.revisions.get(instance).map(|(first, _)| *first);
            lineage.instances.iter().filter_map(first).min()
        });
        let before = seen.map(|first| Revision(first.0.saturating_sub(1)));
        before.into_iter().chain(lineage.oldest_birth).min()
    }

    /// Where to begin to read what comes after a revision; `None` if there is nothing.
    pub(super) fn start(&self, lineage: &Lineage, after: Revision) -> Option<Lsn> {
        let has_more = |block: &&Block| {
            let last = |instance| block.revisions.get(instance).map(|(_, last)| *last);
            lineage.instances.iter().filter_map(last).any(|last| last > after)
        };
        self.blocks.iter().find(has_more).map(|block| block.start)
    }

    /// Where a reader of this range that has everything up to `after` goes on, if it is known.
    pub(super) fn place(&self, range: &KeyRange, after: Revision) -> Option<Lsn> {
        let is_it = |place: &&Place| place.after == after && place.range == *range;
        self.places.iter().find(is_it).map(|place| place.at)
    }

    /// Remembers where a reader goes on. One that moves on need not be remembered where it was.
    pub(super) fn remember(&mut self, range: &KeyRange, from: Revision, to: Revision, at: Lsn) {
        self.places
            .retain(|place| place.range != *range || (place.after != from && place.after != to));
        if self.places.len() >= MAX_PLACES {
            self.places.pop_front();
        }
        self.places.push_back(Place { range: range.clone(), after: to, at });
    }
}
