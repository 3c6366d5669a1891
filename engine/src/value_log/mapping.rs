//! The mappings of the segments, and all `unsafe` of the value log.
//!
//! Every segment has its place in two reserved address ranges, so an offset in the value log is an
//! offset from a base address: one readable and writable with random-access advice, one read-only
//! with sequential advice.
//!
//! Invariants: the ranges stay reserved for as long as the value lives; a place, once mapped, stays
//! mapped to the same file; files are allocated in full before they are mapped, and never cut.
//! An address handed out lies in a mapped segment: callers pass offsets within one.

use crate::sync::primitives::atomic::AtomicU64;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;

use super::bus_error::{self, Registration};
use super::placement::PAGE;
use crate::io::File;

/// One reserved range of addresses.
struct Range {
    start: *mut u8,
    len: usize,
}

// SAFETY: the pointer is to memory that belongs to the process, not to a thread; what is done with
// it is subject to the rules of the functions below.
unsafe impl Send for Range {}
// SAFETY: as above; the fields are never changed.
unsafe impl Sync for Range {}

impl Range {
    fn reserve(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new range at an address that the kernel chooses; nothing else is touched.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len })
    }

    /// Maps a whole file of `len` bytes at `offset`.
    fn map(
        &self,
        offset: usize,
        len: usize,
        file: &dyn File,
        protection: i32,
        advice: i32,
    ) -> io::Result<()> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "beyond the range");
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the assertion keeps the address inside the range, which is ours; the caller maps
        // each place once, so nothing that is in use is replaced.
        let mapped = unsafe {
            let fd = file.as_fd().as_raw_fd();
            libc::mmap(self.start.add(offset).cast(), len, protection, flags, fd, 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range that was just mapped. A refusal costs speed only.
        unsafe { libc::madvise(mapped, len, advice) };
        Ok(())
    }

    fn address(&self, offset: u64, len: u64) -> *mut u8 {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len as u64),
            "beyond the mapping"
        );
        // SAFETY: inside the range by the assertion.
        unsafe { self.start.add(offset as usize) }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and whoever borrowed from it is gone with `self`.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// The two mappings of the whole value log.
pub(super) struct Mapping {
    // Dropped first: no fault comes from a range that is given back.
    _registered: [Registration; 2],
    random: Range,
    sequential: Range,
}

impl Mapping {
    /// Reserves addresses for `max_bytes`; takes no memory. The files will lie in `folder`, for
    /// messages.
    pub(super) fn reserve(max_bytes: u64, segment_bytes: u64, folder: &Path) -> io::Result<Self> {
        let len = usize::try_from(max_bytes).map_err(io::Error::other)?;
        let (random, sequential) = (Range::reserve(len)?, Range::reserve(len)?);
        let register = |range: &Range| {
            bus_error::register(range.start.addr(), range.len, segment_bytes, folder)
        };
        let _registered = [register(&random), register(&sequential)];
        Ok(Self { _registered, random, sequential })
    }

    /// Maps a file of `len` allocated bytes at `offset`; once for each place.
    pub(super) fn map(&self, offset: u64, len: u64, file: &dyn File) -> io::Result<()> {
        let (offset, len) = (offset as usize, len as usize);
        let write = libc::PROT_READ | libc::PROT_WRITE;
        self.random.map(offset, len, file, write, libc::MADV_RANDOM)?;
        self.sequential.map(offset, len, file, libc::PROT_READ, libc::MADV_SEQUENTIAL)
    }

    /// A record as atomic words: for published records that may change.
    ///
    /// # Safety
    /// `offset` and `len` are multiples of 8 within a mapped segment, and until the answer is gone
    /// nobody writes there but through such words.
    pub(super) unsafe fn words(&self, offset: u64, len: u64) -> &[AtomicU64] {
        let start = self.random.address(offset, len);
        debug_assert!(start.cast::<AtomicU64>().is_aligned() && len.is_multiple_of(8));
        // SAFETY: mapped and aligned by the caller's promise; any bits are a valid AtomicU64, and
        // all writes meanwhile are atomic ones of the same size.
        unsafe { std::slice::from_raw_parts(start.cast(), (len / 8) as usize) }
    }

    /// A record as plain bytes, from the mapping for scans or the one for random access.
    ///
    /// # Safety
    /// `offset` and `len` lie in a mapped segment, and until the answer is gone nobody writes
    /// there.
    pub(super) unsafe fn bytes(&self, offset: u64, len: u64, sequential: bool) -> &[u8] {
        let range = if sequential { &self.sequential } else { &self.random };
        // SAFETY: mapped and unchanging by the caller's promise.
        unsafe { std::slice::from_raw_parts(range.address(offset, len), len as usize) }
    }

    /// Stores bytes.
    ///
    /// # Safety
    /// The place lies in a mapped segment, and nobody else accesses it until it is published.
    pub(super) unsafe fn copy_in(&self, offset: u64, bytes: &[u8]) {
        let to = self.random.address(offset, bytes.len() as u64);
        // SAFETY: mapped and exclusively the caller's by its promise.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Whether every page of `[offset, offset + len)` is in the page cache. `false` when the
    /// kernel does not say.
    pub(super) fn is_resident(&self, offset: u64, len: u64) -> bool {
        const PAGES_AT_ONCE: u64 = 256;
        let end = offset + len;
        let mut at = offset / PAGE * PAGE;
        let mut pages = [0u8; PAGES_AT_ONCE as usize];
        while at < end {
            let count = (end - at).div_ceil(PAGE).min(PAGES_AT_ONCE);
            let start = self.random.address(at, (end - at).min(count * PAGE));
            // SAFETY: mincore reads no memory of the range (an unmapped one is an error) and writes
            // one byte for each of the `count` pages.
            let failed = unsafe {
                libc::mincore(start.cast(), (count * PAGE) as usize, pages.as_mut_ptr()) != 0
            };
            if failed || pages[..count as usize].iter().any(|page| page & 1 == 0) {
                return false;
            }
            at += count * PAGE;
        }
        true
    }
}
