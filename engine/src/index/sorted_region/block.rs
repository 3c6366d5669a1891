//! Up to 64 neighbouring entries: keys cut to what they do not have in common, and their cells.
//!
//! Invariants: a key is the block's prefix followed by its suffix; keys ascend strictly and never
//! change; a block is never empty. Blocks are shared by `Arc` between a region and the one that
//! replaces it. A changed bit is set while its entry is in no index file of the shard.

use std::cmp::Ordering as Order;

use crate::index::cell::{CellRef, Sequence};
use crate::index::entry::{Entry, Tag};
use crate::index::key_hash;
use crate::sync::primitives::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Most entries of a block.
pub(crate) const BLOCK_ENTRIES: usize = 64;
/// Most bytes of suffixes in a block; `u16` offsets reach them.
pub(crate) const BLOCK_SUFFIX_BYTES: usize = 60_000;

const _: () = assert!(BLOCK_SUFFIX_BYTES <= u16::MAX as usize);
// A bit for each entry.
const _: () = assert!(BLOCK_ENTRIES <= u64::BITS as usize);

/// A block.
pub(crate) struct Block {
    /// One sequence lock for all cells of the block.
    sequence: Sequence,
    count: u16,
    prefix_len: u16,
    /// A bit for each entry: it is in no index file yet.
    changed: AtomicU64,
    /// Where each suffix ends (`u16`, little-endian, counted from the first suffix), then the
    /// prefix, then the suffixes.
    keys: Box<[u8]>,
    payloads: Box<[AtomicU64]>,
    tags: [AtomicU8; BLOCK_ENTRIES],
    /// A byte of each key's hash.
    marks: [[u8; 8]; BLOCK_ENTRIES / 8],
}

/// The byte of a hash that marks its key.
#[inline]
fn mark_of(hash: u64) -> u8 {
    (hash >> 24) as u8
}

impl Block {
    /// A block of parts that fit together: `keys` as in the field, one entry for each key, the
    /// changed bits.
    ///
    /// Checked: what memory safety and freedom from panics need; ascending keys are the caller's
    /// duty.
    pub(crate) fn from_parts(
        prefix_len: usize,
        keys: Box<[u8]>,
        entries: impl ExactSizeIterator<Item = Entry>,
        changed: u64,
    ) -> Option<Self> {
        let count = entries.len();
        if count == 0 || count > BLOCK_ENTRIES || prefix_len > u16::MAX as usize {
            return None;
        }
        let suffixes = keys.len().checked_sub(2 * count + prefix_len)?;
        let mut end = 0;
        for at in keys[..2 * count].as_chunks::<2>().0 {
            let next = usize::from(u16::from_le_bytes(*at));
            if next < end {
                return None;
            }
            end = next;
        }
        if end != suffixes {
            return None;
        }
        let tags = [const { AtomicU8::new(0) }; BLOCK_ENTRIES];
        let mut payloads = Vec::with_capacity(count);
        for (entry, tag) in entries.zip(&tags) {
            // Relaxed: the block is published by whoever publishes its region.
            tag.store(entry.tag.bits(), Ordering::Relaxed);
            payloads.push(AtomicU64::new(entry.payload));
        }
        let mut block = Self {
            sequence: Sequence::default(),
            count: count as u16,
            prefix_len: prefix_len as u16,
            changed: AtomicU64::new(changed),
            keys,
            payloads: payloads.into_boxed_slice(),
            tags,
            marks: [[0; 8]; BLOCK_ENTRIES / 8],
        };
        let mut key = Vec::new();
        for index in 0..count {
            block.read_key(index, &mut key);
            block.marks[index / 8][index % 8] = mark_of(key_hash(&key));
        }
        Some(block)
    }

    /// Entries.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// What all keys begin with.
    #[inline]
    pub(crate) fn prefix(&self) -> &[u8] {
        let start = 2 * self.count();
        &self.keys[start..start + usize::from(self.prefix_len)]
    }

    /// The ends, prefix and suffixes, as stored.
    pub(crate) fn key_bytes(&self) -> &[u8] {
        &self.keys
    }

    /// Where a suffix ends.
    #[inline]
    fn end(&self, index: usize) -> usize {
        usize::from(u16::from_le_bytes([self.keys[2 * index], self.keys[2 * index + 1]]))
    }

    /// What a key has behind the prefix.
    #[inline]
    pub(crate) fn suffix(&self, index: usize) -> &[u8] {
        let base = 2 * self.count() + usize::from(self.prefix_len);
        let start = if index == 0 { 0 } else { self.end(index - 1) };
        &self.keys[base + start..base + self.end(index)]
    }

    /// How the key at `index` compares to `key`.
    pub(crate) fn compare(&self, index: usize, key: &[u8]) -> Order {
        let prefix = self.prefix();
        match key.strip_prefix(prefix) {
            Some(rest) => self.suffix(index).cmp(rest),
            // `key` does not begin with the prefix, so the prefix alone decides.
            None => prefix.cmp(key),
        }
    }

    /// Where the key with this hash is. Seldom touches another key than the one looked for.
    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let mut candidates = self.marked(mark_of(hash));
        while candidates != 0 {
            let index = candidates.trailing_zeros() as usize;
            if index >= self.count() {
                break;
            }
            let suffix = self.suffix(index);
            if key.ends_with(suffix) && self.compare(index, key).is_eq() {
                return Some(index);
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// The entries with this mark, a bit for each; bits beyond the count mean nothing. Without
    /// branches, since where a mark is cannot be foreseen.
    #[inline]
    fn marked(&self, mark: u8) -> u64 {
        const LOW: u64 = u64::from_le_bytes([0x7f; 8]);
        /// Moves bits 0, 8, 16, .. 56 to bits 56, 57, .. 63.
        const GATHER: u64 = 0x0102_0408_1020_4080;
        let mark = u64::from_le_bytes([mark; 8]);
        self.marks.iter().rev().fold(0, |all, marks| {
            let differ = u64::from_le_bytes(*marks) ^ mark;
            // The top bit of each byte that is zero, and of no other.
            let equal = !(((differ & LOW) + LOW) | differ | LOW);
            all << 8 | (equal >> 7).wrapping_mul(GATHER) >> 56
        })
    }

    /// Where `key` is (`Ok`), or where it would be (`Err`).
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        let Some(rest) = key.strip_prefix(prefix) else {
            return Err(if key < prefix { 0 } else { self.count() });
        };
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.suffix(middle).cmp(rest) {
                Order::Less => low = middle + 1,
                Order::Greater => high = middle,
                Order::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Writes the key at `index` into `key`.
    pub(crate) fn read_key(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.suffix(index));
    }

    /// The cell at `index`; `tombstones` is the region's count.
    #[inline]
    pub(crate) fn cell<'a>(&'a self, index: usize, tombstones: &'a AtomicUsize) -> CellRef<'a> {
        CellRef::new(&self.sequence, &self.payloads[index], &self.tags[index], tombstones)
            .with_changed(&self.changed, index)
    }

    /// The changed bits. Final only while the shard is frozen and the stripes have been passed.
    #[inline]
    pub(crate) fn changed(&self) -> u64 {
        // Relaxed, here and below: ordered by that pass, see the cell.
        self.changed.load(Ordering::Relaxed)
    }

    /// Clears the changed bits, and tells which were set.
    pub(crate) fn take_changed(&self) -> u64 {
        self.changed.swap(0, Ordering::Relaxed)
    }

    /// Sets these changed bits again.
    pub(crate) fn restore_changed(&self, bits: u64) {
        self.changed.fetch_or(bits, Ordering::Relaxed);
    }

    /// The entry at `index`.
    pub(crate) fn entry(&self, index: usize) -> Entry {
        static UNUSED: AtomicUsize = AtomicUsize::new(0);
        self.cell(index, &UNUSED).load()
    }

    /// Whether a merge would drop tombstones of this block: all of them, or those that are in an
    /// index file.
    pub(crate) fn loses_tombstones(&self, all: bool) -> bool {
        let keep = if all { 0 } else { self.changed() };
        (0..self.count()).any(|at| keep >> at & 1 == 0 && self.is_tombstone(at))
    }

    /// Entries that are tombstones now.
    pub(crate) fn tombstones(&self) -> usize {
        (0..self.count()).filter(|&index| self.is_tombstone(index)).count()
    }

    /// Whether the entry at `index` is a tombstone now. Looks at its tag alone, which is one cache line
    /// for the whole block; relaxed, as the bits above.
    fn is_tombstone(&self, index: usize) -> bool {
        Tag::trusted(self.tags[index].load(Ordering::Relaxed)).is_tombstone()
    }

    /// Memory in bytes, with the counts of its `Arc`.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + 16 + self.keys.len() + size_of_val(&*self.payloads)
    }
}
