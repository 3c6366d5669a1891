//! The bulk of a shard's keys: immutable and in order, in prefix-compressed blocks.
//!
//! A key is looked for by binary search over the first keys of the blocks, in two levels and mostly
//! by 8 bytes of each ([`heads`]), then inside one block by a byte of its hash. Nothing allocates
//! or locks.
//!
//! Invariants: keys ascend strictly, within and over blocks; the region never gains or loses a key
//! and is replaced as a whole; entries change through cells, tombstones stay until a merge. The
//! filter, if any, knows every key.

mod block;
mod builder;
mod cursor;
mod heads;

#[cfg(test)]
mod sorted_region_test;

use crate::sync::primitives::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

pub(super) use block::{BLOCK_ENTRIES, BLOCK_SUFFIX_BYTES, Block};
pub(crate) use builder::SortedBuilder;
pub(crate) use cursor::SortedCursor;

use super::cell::CellRef;
use super::filter::Filter;
#[cfg(test)]
use super::key_hash;
use crate::types::KeyRange;
use heads::Heads;

/// Blocks that share a list of heads.
const GROUP_BLOCKS: usize = 128;

/// A sorted region.
pub(crate) struct SortedRegion {
    blocks: Vec<Arc<Block>>,
    /// The first keys of the blocks, by groups of [`GROUP_BLOCKS`]: what the keys of a group have
    /// in common is longer than what all keys have.
    groups: Vec<Heads>,
    /// The first keys of the groups.
    top: Heads,
    filter: Option<Filter>,
    len: usize,
    tombstones: AtomicUsize,
    /// `tombstones` may miss some, until the next merge: see [`SortedRegion::joint`].
    is_joint: bool,
    memory: usize,
}

impl SortedRegion {
    /// A region without keys.
    pub(crate) fn empty() -> Self {
        SortedBuilder::with_filter(None).finish()
    }

    /// The same region, made of the blocks of others that writers may still have changed meanwhile:
    /// those counted tombstones for the region they knew.
    pub(super) fn joint(self) -> Self {
        Self { is_joint: true, ..self }
    }

    /// Whether every key lies within `range`.
    pub(super) fn is_within(&self, range: &KeyRange) -> bool {
        let (Some(first), Some(last)) = (self.blocks.first(), self.blocks.last()) else {
            return true;
        };
        first.compare(0, &range.start).is_ge()
            && (range.end.is_empty() || last.compare(last.count() - 1, &range.end).is_lt())
    }

    /// Whether it is a [joint](Self::joint) one.
    pub(super) fn is_joint(&self) -> bool {
        self.is_joint
    }

    /// Whether there may be tombstones. For a shard that is frozen, the stripes passed.
    pub(super) fn may_have_tombstones(&self) -> bool {
        self.is_joint || self.tombstones() > 0
    }

    /// The cell of a key.
    #[cfg(test)]
    pub(crate) fn find(&self, key: &[u8]) -> Option<CellRef<'_>> {
        self.find_hashed(key_hash(key), key)
    }

    /// The cell of a key whose hash is known.
    #[inline]
    pub(crate) fn find_hashed(&self, hash: u64, key: &[u8]) -> Option<CellRef<'_>> {
        if self.filter.as_ref().is_some_and(|filter| !filter.may_contain(hash)) {
            return None;
        }
        let block = &self.blocks[self.block_of(key)?];
        let index = block.find(hash, key)?;
        Some(block.cell(index, &self.tombstones))
    }

    /// The last block whose first key is not greater than `key`.
    #[inline]
    fn block_of(&self, key: &[u8]) -> Option<usize> {
        let first_of = |block: usize| self.blocks[block].compare(0, key);
        let group = self.top.last_not_greater(key, |group| first_of(group * GROUP_BLOCKS))?;
        let start = group * GROUP_BLOCKS;
        let block = self.groups[group].last_not_greater(key, |at| first_of(start + at))?;
        Some(start + block)
    }

    /// Block and index of the first key that is not less than `key`; the index may be the block's
    /// count.
    fn lower_bound(&self, key: &[u8]) -> (usize, usize) {
        match self.block_of(key) {
            Some(block) => (block, self.blocks[block].search(key).unwrap_or_else(|at| at)),
            None => (0, 0),
        }
    }

    /// A cursor without a place.
    pub(crate) fn cursor(&self) -> SortedCursor<'_> {
        SortedCursor::new(self)
    }

    /// Cursors at the first keys of at most `most` blocks, evenly spread over those that may hold keys
    /// of a range, each with the number of blocks that it stands for.
    pub(crate) fn sample(&self, range: &KeyRange, most: usize) -> Vec<(SortedCursor<'_>, usize)> {
        let first = self.block_of(&range.start).unwrap_or(0);
        let end = match range.end.is_empty() {
            true => self.blocks.len(),
            false => self.block_of(&range.end).map_or(0, |last| last + 1),
        };
        let step = end.saturating_sub(first).div_ceil(most.max(1)).max(1);
        let sample = |block: usize| {
            let mut cursor = self.cursor();
            cursor.seek_block(block);
            (cursor, step.min(end - block))
        };
        (first..end).step_by(step).map(sample).collect()
    }

    /// The blocks, in key order.
    pub(super) fn blocks(&self) -> &[Arc<Block>] {
        &self.blocks
    }

    /// The filter.
    pub(super) fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    /// Entries, tombstones included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Entries that are not tombstones.
    pub(crate) fn live(&self) -> usize {
        self.len.saturating_sub(self.tombstones())
    }

    /// Entries that are tombstones.
    pub(crate) fn tombstones(&self) -> usize {
        // Relaxed: exact while the shard is frozen and the stripes have been passed (unless the
        // region is a joint one), else a statistic.
        self.tombstones.load(Ordering::Relaxed)
    }

    /// Entries that are in no index file yet. Like all about changed bits, for a shard that is
    /// frozen, or a region that is not published.
    pub(crate) fn changed(&self) -> usize {
        self.blocks.iter().map(|block| block.changed().count_ones() as usize).sum()
    }

    /// Takes every entry for written to an index file; answers what undoes that.
    pub(crate) fn take_changed(&self) -> Vec<u64> {
        // Few have any: the others are not written to.
        let take = |block: &Arc<Block>| if block.changed() == 0 { 0 } else { block.take_changed() };
        self.blocks.iter().map(take).collect()
    }

    /// Undoes [`take_changed`](Self::take_changed) of this same region; what has changed since
    /// stays changed.
    pub(crate) fn restore_changed(&self, taken: &[u64]) {
        for (block, bits) in self.blocks.iter().zip(taken).filter(|(_, bits)| **bits != 0) {
            block.restore_changed(*bits);
        }
    }

    /// What a copy in which `changes` entries differ takes of its own, in bytes, at most: blocks
    /// that do not change are shared.
    pub(crate) fn rewrite_bytes(&self, changes: usize) -> usize {
        let filter = self.filter.as_ref().map_or(0, Filter::memory_bytes);
        let blocks = self.blocks.len();
        let per_block = self.memory.saturating_sub(filter) / blocks.max(1);
        changes.min(blocks) * per_block + filter + blocks * 4 * size_of::<u64>()
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory + size_of::<Self>()
    }
}
