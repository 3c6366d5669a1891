//! The memory between appenders and the flusher: a ring of words, addressed by LSN.
//!
//! Invariants:
//! - the byte of LSN `l` lies at `l % len`; LSNs in use span at most `len` (permits see to it);
//! - a range `[start, end)` belongs to its reservation from reserve until its first word is
//!   published, then to the flusher until its permits return, then to nobody;
//! - what belongs to nobody, or is reserved and not yet written, is zero; a published first word
//!   is not.
//!
//! So nothing is ever written by one and touched by another without the first word's
//! release/acquire, or the permit's, between them: plain copies are no data race.

use crate::sync::primitives::atomic::{AtomicU64, Ordering};

use super::encode::Sink;

/// The ring.
pub(super) struct Ring {
    words: Box<[AtomicU64]>,
    mask: u64,
}

impl Ring {
    /// A zeroed ring; `bytes` is a power of two.
    pub(super) fn new(bytes: usize) -> Self {
        debug_assert!(bytes.is_power_of_two() && bytes >= 64);
        // `vec!` of zeros asks the system for zero pages and touches none of them.
        let zeros: Box<[u64]> = vec![0; bytes / 8].into_boxed_slice();
        // SAFETY: `AtomicU64` has the size, alignment (on the 64-bit targets of this crate) and
        // bit validity of `u64`, and the box is the only owner.
        let words = unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [AtomicU64]) };
        Self { words, mask: bytes as u64 - 1 }
    }

    /// Bytes in the ring.
    pub(super) fn len(&self) -> u64 {
        self.mask + 1
    }

    fn word(&self, lsn: u64) -> &AtomicU64 {
        &self.words[((lsn & self.mask) / 8) as usize]
    }

    /// Publishes a record: everything its owner wrote before is the flusher's from here on.
    /// Release pairs with the acquire in [`published`](Self::published).
    pub(super) fn publish(&self, lsn: u64, first_word: u64) {
        self.word(lsn).store(first_word.to_le(), Ordering::Release);
    }

    /// The first word of the record at `lsn`, or 0 if it is not published. Acquire pairs with the
    /// release in [`publish`](Self::publish): the record's other bytes are there.
    pub(super) fn published(&self, lsn: u64) -> u64 {
        u64::from_le(self.word(lsn).load(Ordering::Acquire))
    }

    /// A word of a range that the caller owns.
    pub(super) fn load_owned(&self, lsn: u64) -> u64 {
        u64::from_le(self.word(lsn).load(Ordering::Relaxed))
    }

    /// Sets a word of a range that the caller owns.
    pub(super) fn store_owned(&self, lsn: u64, value: u64) {
        self.word(lsn).store(value.to_le(), Ordering::Relaxed);
    }

    fn bytes(&self) -> *mut u8 {
        self.words.as_ptr().cast::<u8>().cast_mut()
    }

    /// The up to two runs of memory that `[from, to)` lies in, as (offset, length).
    fn runs(&self, from: u64, to: u64) -> [(usize, usize); 2] {
        debug_assert!(from <= to && to - from <= self.len());
        let start = (from & self.mask) as usize;
        let len = (to - from) as usize;
        let first = len.min(self.words.len() * 8 - start);
        [(start, first), (0, len - first)]
    }

    /// The bytes of `[from, to)`, in up to two pieces.
    ///
    /// # Safety
    /// The range belongs to the caller, who does not write to it while the slices live.
    pub(super) unsafe fn pieces(&self, from: u64, to: u64) -> [&[u8]; 2] {
        self.runs(from, to).map(|(offset, len)| {
            // SAFETY: `runs` stays inside the allocation; nobody writes to the range meanwhile.
            unsafe { std::slice::from_raw_parts(self.bytes().add(offset), len) }
        })
    }

    /// Copies `bytes` to `lsn`.
    ///
    /// # Safety
    /// `[lsn, lsn + bytes.len())` belongs to the caller.
    pub(super) unsafe fn copy_in(&self, lsn: u64, bytes: &[u8]) {
        let [(offset, first), (_, second)] = self.runs(lsn, lsn + bytes.len() as u64);
        let source = bytes.as_ptr();
        // SAFETY: `runs` stays inside the allocation; the target belongs to the caller, so no
        // reference to it exists, and `bytes` cannot overlap it.
        unsafe {
            std::ptr::copy_nonoverlapping(source, self.bytes().add(offset), first);
            std::ptr::copy_nonoverlapping(source.add(first), self.bytes(), second);
        }
    }

    /// Zeroes `[from, to)`.
    ///
    /// # Safety
    /// The range belongs to the caller.
    pub(super) unsafe fn clear(&self, from: u64, to: u64) {
        for (offset, len) in self.runs(from, to) {
            // SAFETY: `runs` stays inside the allocation; the range belongs to the caller.
            unsafe { std::ptr::write_bytes(self.bytes().add(offset), 0, len) };
        }
    }

    /// Where the memory lies, and its bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> (*const u8, usize) {
        (self.bytes(), self.words.len() * 8)
    }

    /// Gives the memory back to the system, which gives zeroed pages again when it is touched.
    ///
    /// # Safety
    /// The whole ring belongs to the caller, and is zero.
    pub(super) unsafe fn give_back(&self) {
        let page = rustix::param::page_size();
        let start = self.bytes();
        let skip = start.align_offset(page);
        let len = (self.words.len() * 8).saturating_sub(skip) / page * page;
        if len > 0 {
            // SAFETY: whole pages inside the allocation, which nobody writes to; all of them are
            // zero, and read as zero after. A refusal costs memory only.
            unsafe { libc::madvise(start.add(skip).cast(), len, libc::MADV_DONTNEED) };
        }
    }
}

/// Writes a record's bytes into the range that it has reserved, and not beyond.
pub(super) struct RingWriter<'a> {
    ring: &'a Ring,
    at: u64,
    end: u64,
}

impl<'a> RingWriter<'a> {
    /// A writer of `[at, end)`.
    ///
    /// # Safety
    /// The range belongs to the caller for as long as the writer lives.
    pub(super) unsafe fn new(ring: &'a Ring, at: u64, end: u64) -> Self {
        Self { ring, at, end }
    }
}

impl Sink for RingWriter<'_> {
    fn put(&mut self, bytes: &[u8]) {
        // `encoded_len` has been compared with the range before; a record that lied writes
        // nothing beyond it.
        let room = (self.end - self.at) as usize;
        let bytes = &bytes[..bytes.len().min(room)];
        // SAFETY: `[at, end)` belongs to the creator, and `bytes` ends inside it.
        unsafe { self.ring.copy_in(self.at, bytes) };
        self.at += bytes.len() as u64;
    }
}
