//! The recent keys of a shard: insert-only, read without locks.
//!
//! A hash index finds a key in O(1) expected; a skip list keeps the order, for scans in both
//! directions and for merges. Both point at the same nodes, which hold the full keys.
//!
//! Invariants: a key is inserted at most once (the caller holds its stripe and has looked for it);
//! a node is visible only complete; entries were reserved before they are inserted, and
//! `len <= reserved <= capacity`; memory is freed with the region.

mod arena;
mod cursor;
mod hash_index;
mod node;
mod skip_list;

#[cfg(test)]
mod append_region_test;

use crate::sync::primitives::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(crate) use cursor::AppendCursor;

use super::cell::CellRef;
use super::entry::Entry;
#[cfg(test)]
use super::key_hash;
use hash_index::HashIndex;
use skip_list::SkipList;

/// An append region.
pub(crate) struct AppendRegion {
    // Declared before the list: dropped first, though it never follows its pointers then.
    index: HashIndex,
    list: SkipList,
    capacity: usize,
    reserved: AtomicUsize,
    len: AtomicUsize,
    tombstones: AtomicUsize,
    written: AtomicBool,
    scanned: AtomicBool,
}

impl AppendRegion {
    /// An empty region for at most `capacity` entries.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            index: HashIndex::new(capacity),
            list: SkipList::new(),
            capacity,
            reserved: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            tombstones: AtomicUsize::new(0),
            written: AtomicBool::new(false),
            scanned: AtomicBool::new(false),
        }
    }

    /// The cell of a key.
    #[cfg(test)]
    pub(crate) fn find(&self, key: &[u8]) -> Option<CellRef<'_>> {
        self.find_hashed(key_hash(key), key)
    }

    /// The cell of a key whose hash is known.
    #[inline]
    pub(crate) fn find_hashed(&self, hash: u64, key: &[u8]) -> Option<CellRef<'_>> {
        // SAFETY: the index holds nodes of the list's arena only, which lives as long as `self`.
        let node = unsafe { self.index.find(hash, key) }?;
        Some(node.cell(&self.tombstones))
    }

    /// Sets room for `n` inserts aside, if there is any. What is not inserted is given back with
    /// [`unreserve`](Self::unreserve).
    #[must_use]
    pub(crate) fn try_reserve(&self, n: usize) -> bool {
        // Relaxed: a counter; nothing is ordered by it.
        self.reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
                reserved.checked_add(n).filter(|&all| all <= self.capacity)
            })
            .is_ok()
    }

    /// Gives back room for `n` inserts that did not happen.
    pub(crate) fn unreserve(&self, n: usize) {
        let before = self.reserved.fetch_sub(n, Ordering::Relaxed);
        debug_assert!(before >= n, "gave back {n} of {before}");
    }

    /// Adds a key that is not in the region, using up one reservation. The caller holds the key's
    /// stripe.
    #[cfg(test)]
    pub(crate) fn insert(&self, key: &[u8], entry: Entry) {
        self.insert_hashed(key_hash(key), key, entry);
    }

    /// The same with a hash that is known.
    pub(crate) fn insert_hashed(&self, hash: u64, key: &[u8], entry: Entry) {
        // Relaxed: counters; nothing is ordered by them.
        let before = self.len.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before < self.reserved.load(Ordering::Relaxed), "insert without reservation");
        if entry.is_tombstone() {
            self.tombstones.fetch_add(1, Ordering::Relaxed);
        }
        let random = scramble(hash ^ std::ptr::from_ref(self).addr() as u64);
        let node = self.list.insert(key, entry, random);
        let found_room = self.index.insert(hash, node);
        assert!(found_room, "more inserts than reservations");
    }

    /// A cursor without a place.
    pub(crate) fn cursor(&self) -> AppendCursor<'_> {
        AppendCursor::new(self)
    }

    /// Remembers that something was written while this region took the shard's inserts: the dirty
    /// flag, see [the index](super). Never taken back.
    #[inline]
    pub(crate) fn mark_written(&self) {
        // The flag only ever rises: whoever sees it set need not set it again, and the line stays
        // shared.
        if !self.written.load(Ordering::Relaxed) {
            // Release: pairs with the Acquire load in `was_written`. That the checkpoint *sees*
            // it follows from the pass over the stripes, or from the log's reserve.
            self.written.store(true, Ordering::Release);
        }
    }

    /// Whether anything was written while this region took the shard's inserts.
    pub(crate) fn was_written(&self) -> bool {
        self.written.load(Ordering::Acquire)
    }

    /// Remembers that a scan went over this region. Relaxed, like the next: a hint for triggers.
    #[inline]
    pub(crate) fn mark_scanned(&self) {
        // Stored once, so that the line stays shared.
        if !self.scanned.load(Ordering::Relaxed) {
            self.scanned.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a scan went over this region.
    pub(crate) fn was_scanned(&self) -> bool {
        self.scanned.load(Ordering::Relaxed)
    }

    /// Entries, tombstones included.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Entries that are tombstones.
    pub(crate) fn tombstones(&self) -> usize {
        self.tombstones.load(Ordering::Relaxed)
    }

    /// Entries reserved, whether inserted or not: what triggers look at.
    #[cfg(test)]
    pub(crate) fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Most entries.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.list.memory_bytes() + self.index.memory_bytes() + size_of::<Self>()
    }
}

/// Spreads the bits of a number over all others (the finisher of splitmix64).
fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
