//! A place in a sorted region, movable both ways; rebuilds keys in a buffer of its own.
//!
//! Invariant: while there is a place, the buffer holds the key there.

use std::sync::Arc;

use super::SortedRegion;
use super::block::Block;
use crate::index::cell::CellRef;

/// A cursor. Made without a place: seek first.
pub(crate) struct SortedCursor<'a> {
    region: &'a SortedRegion,
    block: usize,
    index: usize,
    placed: bool,
    key: Vec<u8>,
}

impl<'a> SortedCursor<'a> {
    pub(super) fn new(region: &'a SortedRegion) -> Self {
        Self { region, block: 0, index: 0, placed: false, key: Vec::new() }
    }

    /// To the first entry.
    pub(crate) fn seek_first(&mut self) {
        self.place(Some((0, 0)));
    }

    /// To the first entry of a block.
    pub(super) fn seek_block(&mut self, block: usize) {
        self.place(Some((block, 0)));
    }

    /// To the last entry.
    pub(crate) fn seek_last(&mut self) {
        self.place(self.last_of(self.region.blocks.len()));
    }

    /// To the first entry whose key is not less than `key`.
    pub(crate) fn seek_at_or_after(&mut self, key: &[u8]) {
        let (block, index) = self.region.lower_bound(key);
        match self.region.blocks.get(block) {
            Some(full) if index == full.count() => self.place(Some((block + 1, 0))),
            _ => self.place(Some((block, index))),
        }
    }

    /// To the last entry whose key is less than `key`.
    pub(crate) fn seek_before(&mut self, key: &[u8]) {
        match self.region.lower_bound(key) {
            (block, 0) => self.place(self.last_of(block)),
            (block, index) => self.place(Some((block, index - 1))),
        }
    }

    /// To the next entry; off the end, there is no place.
    #[inline]
    pub(crate) fn next(&mut self) {
        if !self.placed {
            return;
        }
        let block = &self.region.blocks[self.block];
        self.index += 1;
        if self.index < block.count() {
            self.key.truncate(block.prefix().len());
            self.key.extend_from_slice(block.suffix(self.index));
        } else {
            self.skip_block();
        }
    }

    /// To the first entry of the next block.
    pub(crate) fn skip_block(&mut self) {
        self.place(Some((self.block + 1, 0)));
    }

    /// To the entry before; off the start, there is no place.
    #[inline]
    pub(crate) fn prev(&mut self) {
        if !self.placed {
            return;
        }
        if self.index == 0 {
            self.place(self.last_of(self.block));
            return;
        }
        self.index -= 1;
        let block = &self.region.blocks[self.block];
        self.key.truncate(block.prefix().len());
        self.key.extend_from_slice(block.suffix(self.index));
    }

    /// The key here.
    #[inline]
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.placed.then_some(self.key.as_slice())
    }

    /// The entry's cell here.
    #[inline]
    pub(crate) fn cell(&self) -> Option<CellRef<'a>> {
        self.placed
            .then(|| self.region.blocks[self.block].cell(self.index, &self.region.tombstones))
    }

    /// Whether the entry here is in no index file yet. Meaningful while the shard is frozen.
    pub(crate) fn is_changed(&self) -> bool {
        self.placed && self.region.blocks[self.block].changed() >> self.index & 1 == 1
    }

    /// The block here, when the place is its first entry.
    pub(crate) fn whole_block(&self) -> Option<&'a Arc<Block>> {
        (self.placed && self.index == 0).then(|| &self.region.blocks[self.block])
    }

    /// The last entry before a block.
    fn last_of(&self, block: usize) -> Option<(usize, usize)> {
        let before = block.checked_sub(1)?;
        Some((before, self.region.blocks.get(before)?.count() - 1))
    }

    fn place(&mut self, at: Option<(usize, usize)>) {
        let found = at.and_then(|(block, index)| Some((self.region.blocks.get(block)?, index)));
        self.placed = found.is_some();
        if let (Some((block, index)), Some(at)) = (found, at) {
            (self.block, self.index) = at;
            block.read_key(index, &mut self.key);
        }
    }
}
