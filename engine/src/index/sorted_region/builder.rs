//! Makes a sorted region from ascending keys.
//!
//! Invariants: keys are pushed in strictly ascending order, over entries and whole blocks alike;
//! blocks come out full when keys come alone, and at least half full before a shared block (unless
//! their keys are too long for that).

use crate::sync::primitives::atomic::AtomicUsize;
use std::sync::Arc;

use super::block::{BLOCK_ENTRIES, BLOCK_SUFFIX_BYTES, Block};
use super::heads::{Heads, common_prefix};
use super::{GROUP_BLOCKS, SortedRegion};
use crate::index::entry::Entry;
use crate::index::filter::Filter;
use crate::index::key_hash;

/// Entries that do not belong to a block yet.
#[derive(Default)]
struct Pending {
    keys: Vec<u8>,
    ends: Vec<usize>,
    entries: Vec<Entry>,
    /// Whether each is in no index file yet.
    changed: Vec<bool>,
}

impl Pending {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn key(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.keys[start..self.ends[index]]
    }

    fn push(&mut self, key: &[u8], entry: Entry, changed: bool) {
        self.changed.push(changed);
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        self.entries.push(entry);
    }

    /// Takes the first `count` entries, or fewer if their keys are too long for a block, as a
    /// block.
    fn take_block(&mut self, mut count: usize) -> Option<Block> {
        let mut common = common_prefix(self.key(0), self.key(count - 1));
        while self.ends[count - 1] - count * common > BLOCK_SUFFIX_BYTES {
            count /= 2;
            common = common_prefix(self.key(0), self.key(count - 1));
        }
        let taken = self.ends[count - 1];
        let mut bytes = Vec::with_capacity(2 * count + common + taken - count * common);
        for (index, end) in self.ends[..count].iter().enumerate() {
            let suffix_end = end - (index + 1) * common;
            bytes.extend_from_slice(&(suffix_end as u16).to_le_bytes());
        }
        bytes.extend_from_slice(&self.key(0)[..common]);
        for index in 0..count {
            bytes.extend_from_slice(&self.key(index)[common..]);
        }
        let entries = self.entries.drain(..count);
        let bits =
            self.changed.drain(..count).rev().fold(0, |bits, bit| bits << 1 | u64::from(bit));
        let block = Block::from_parts(common, bytes.into_boxed_slice(), entries, bits);
        self.keys.drain(..taken);
        self.ends.drain(..count);
        self.ends.iter_mut().for_each(|end| *end -= taken);
        block
    }
}

/// A sorted region in the making.
pub(crate) struct SortedBuilder {
    blocks: Vec<Arc<Block>>,
    pending: Pending,
    filter: Option<Filter>,
    /// The filter already has the keys of blocks that are pushed whole.
    filter_knows_blocks: bool,
    /// No block that is pushed whole has a tombstone.
    blocks_live: bool,
    /// Tombstones in the blocks.
    tombstones: usize,
}

impl SortedBuilder {
    /// A builder for about `expected` keys (an upper bound, for the filter's size).
    pub(crate) fn new(expected: usize, bloom: bool) -> Self {
        // A quarter more, so that the filter lasts for some merges.
        let filter = bloom.then(|| Filter::new(expected.saturating_add(expected / 4)));
        Self {
            blocks: Vec::with_capacity(expected.min(1 << 32) / BLOCK_ENTRIES + 1),
            pending: Pending::default(),
            filter,
            filter_knows_blocks: false,
            blocks_live: false,
            tombstones: 0,
        }
    }

    /// A builder whose filter, or lack of one, is given; it knows the keys of every block that will
    /// be pushed whole.
    pub(crate) fn with_filter(filter: Option<Filter>) -> Self {
        Self {
            blocks: Vec::new(),
            pending: Pending::default(),
            filter,
            filter_knows_blocks: true,
            blocks_live: false,
            tombstones: 0,
        }
    }

    /// No block that will be pushed whole has a tombstone, so nobody need look for them there.
    pub(crate) fn expect_live_blocks(&mut self) {
        self.blocks_live = true;
    }

    /// Adds an entry whose key is greater than all before. `changed`: it is in no index file yet.
    pub(crate) fn push(&mut self, key: &[u8], entry: Entry, changed: bool) {
        debug_assert!(self.is_beyond_last(key), "keys must ascend");
        if let Some(filter) = &mut self.filter {
            filter.add(key_hash(key));
        }
        if self.pending.len() == 2 * BLOCK_ENTRIES {
            self.emit(BLOCK_ENTRIES);
        }
        self.pending.push(key, entry, changed);
    }

    /// Adds a whole block whose keys are greater than all before, sharing it. Refused (false, and
    /// the caller pushes its entries) when that would leave too small a block before it.
    pub(crate) fn push_block(&mut self, block: &Arc<Block>) -> bool {
        if (1..BLOCK_ENTRIES / 2).contains(&self.pending.len()) {
            return false;
        }
        self.flush();
        if !self.filter_knows_blocks
            && let Some(filter) = &mut self.filter
        {
            let mut key = Vec::new();
            for index in 0..block.count() {
                block.read_key(index, &mut key);
                filter.add(key_hash(&key));
            }
        }
        if !self.blocks_live {
            self.tombstones += block.tombstones();
        }
        self.blocks.push(Arc::clone(block));
        true
    }

    /// The blocks that are complete so far, which leave the builder: for output without a region.
    pub(crate) fn drain_blocks(&mut self) -> std::vec::Drain<'_, Arc<Block>> {
        self.blocks.drain(..)
    }

    /// Makes blocks of all pending entries, of about equal size.
    pub(crate) fn flush(&mut self) {
        while self.pending.len() > 0 {
            let left = self.pending.len();
            self.emit(left.div_ceil(left.div_ceil(BLOCK_ENTRIES)));
        }
    }

    /// The region.
    pub(crate) fn finish(mut self) -> SortedRegion {
        self.flush();
        let blocks = &self.blocks;
        let heads_of = |blocks: &[Arc<Block>], step: usize| {
            Heads::new(blocks.len().div_ceil(step), |at, key| blocks[at * step].read_key(0, key))
        };
        let top = heads_of(blocks, GROUP_BLOCKS);
        let groups: Vec<_> = blocks.chunks(GROUP_BLOCKS).map(|group| heads_of(group, 1)).collect();
        self.blocks.shrink_to_fit();
        let memory = self.blocks.iter().map(|block| block.memory_bytes()).sum::<usize>()
            + self.blocks.len() * size_of::<Arc<Block>>()
            + groups.iter().map(Heads::memory_bytes).sum::<usize>()
            + top.memory_bytes()
            + self.filter.as_ref().map_or(0, Filter::memory_bytes);
        SortedRegion {
            len: self.blocks.iter().map(|block| block.count()).sum(),
            tombstones: AtomicUsize::new(self.tombstones),
            blocks: self.blocks,
            is_joint: false,
            groups,
            top,
            filter: self.filter,
            memory,
        }
    }

    fn emit(&mut self, count: usize) {
        // `take_block` makes parts that fit together.
        if let Some(block) = self.pending.take_block(count) {
            self.tombstones += block.tombstones();
            self.blocks.push(Arc::new(block));
        }
    }

    /// For the debug assertion on the order.
    fn is_beyond_last(&self, key: &[u8]) -> bool {
        match (self.pending.len().checked_sub(1), self.blocks.last()) {
            (Some(last), _) => self.pending.key(last) < key,
            (None, Some(block)) => block.compare(block.count() - 1, key).is_lt(),
            (None, None) => true,
        }
    }
}
