//! The bulk of a shard's keys: immutable and in order, in prefix-compressed blocks.
//!
//! A key is looked for with two binary searches: over the first keys of the blocks (by their 8
//! bytes behind what all keys of the region have in common; ties by the full key), then inside one
//! block. Neither allocates nor locks.
//!
//! Invariants: keys ascend strictly, within and over blocks; the region never gains or loses a key
//! and is replaced as a whole; entries change through cells, tombstones stay until a merge. The
//! filter, if any, knows every key.

mod block;
mod builder;
mod cursor;

#[cfg(test)]
mod sorted_region_test;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) use block::{BLOCK_ENTRIES, BLOCK_SUFFIX_BYTES, Block};
pub(crate) use builder::SortedBuilder;
pub(crate) use cursor::SortedCursor;

use super::cell::CellRef;
use super::filter::Filter;
use super::key_hash;

/// A sorted region.
pub(crate) struct SortedRegion {
    blocks: Vec<Arc<Block>>,
    /// The 8 bytes behind `prefix` of each block's first key.
    heads: Vec<u64>,
    /// What all keys of the region begin with.
    prefix: Box<[u8]>,
    filter: Option<Filter>,
    len: usize,
    tombstones: AtomicUsize,
    memory: usize,
}

impl SortedRegion {
    /// A region without keys.
    pub(crate) fn empty() -> Self {
        SortedBuilder::with_filter(None).finish()
    }

    /// The cell of a key.
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
        let index = block.search(key).ok()?;
        Some(block.cell(index, &self.tombstones))
    }

    /// The last block whose first key is not greater than `key`.
    #[inline]
    fn block_of(&self, key: &[u8]) -> Option<usize> {
        let Some(rest) = key.strip_prefix(&*self.prefix) else {
            return if key < &*self.prefix { None } else { self.blocks.len().checked_sub(1) };
        };
        let head = head_of(rest);
        // Equal heads do not say how the keys compare.
        let low = self.heads.partition_point(|&first| first < head);
        let same = self.heads[low..].partition_point(|&first| first == head);
        let ties = &self.blocks[low..low + same];
        let not_greater = low + ties.partition_point(|block| block.compare(0, key).is_le());
        not_greater.checked_sub(1)
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
        // Relaxed: a statistic.
        self.len.saturating_sub(self.tombstones.load(Ordering::Relaxed))
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory + size_of::<Self>()
    }
}

/// The first 8 bytes as a number whose order never contradicts the order of keys.
#[inline]
fn head_of(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = key.len().min(8);
    bytes[..len].copy_from_slice(&key[..len]);
    bytes.reverse();
    u64::from_le_bytes(bytes)
}
