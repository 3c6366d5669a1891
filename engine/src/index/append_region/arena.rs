//! Memory for the nodes of one append region: handed out by one atomic add, freed all at once.
//!
//! Invariants: a piece is 8-byte aligned, belongs to one caller, and stays where it is until the
//! arena is dropped; nothing in it is dropped, so nodes hold plain numbers and atomics only.

use crate::sync::primitives::atomic::{AtomicUsize, Ordering};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Size of the chunk that a new arena takes: a list's head, and little else, for many a region never
/// gets an entry. Below what an allocator calls large, so that it does not tidy up before it gives it.
const HEAD_CHUNK: usize = 512;
/// Size of the chunk behind that one; each further one is twice the one before.
const FIRST_CHUNK: usize = 32 << 10;
/// More chunks than any machine has memory for.
const MAX_CHUNKS: usize = 26;
/// Pieces are aligned to this.
pub(super) const ALIGN: usize = 8;
/// Longest piece.
const MAX_PIECE: usize = FIRST_CHUNK / 4;
/// Addresses have at most this many bits, so that the hash index can use the rest. True of all
/// user space on Linux unless a mapping asks for more.
pub(super) const ADDRESS_BITS: u32 = 48;

/// One allocation.
struct Chunk {
    base: NonNull<u8>,
    size: usize,
    /// Bytes handed out; may run past `size` when callers found it full.
    used: AtomicUsize,
}

// SAFETY: the chunk owns its memory; the pieces handed out are disjoint, and `used` is atomic.
unsafe impl Send for Chunk {}
// SAFETY: as above; shared use only hands out disjoint pieces.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn layout(size: usize) -> Layout {
        // SAFETY: the alignment is a power of two, and sizes are at most FIRST_CHUNK << MAX_CHUNKS,
        // which does not overflow isize when rounded up.
        unsafe { Layout::from_size_align_unchecked(size, ALIGN) }
    }

    fn new(size: usize) -> Self {
        let layout = Self::layout(size);
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let end = base.as_ptr().addr() + size;
        assert!(end as u64 >> ADDRESS_BITS == 0, "heap above {ADDRESS_BITS}-bit addresses");
        Self { base, size, used: AtomicUsize::new(0) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here.
        unsafe { dealloc(self.base.as_ptr(), Self::layout(self.size)) }
    }
}

/// The size of the chunk at a place.
const fn chunk_size(at: usize) -> usize {
    match at.checked_sub(1) {
        None => HEAD_CHUNK,
        Some(further) => FIRST_CHUNK << further,
    }
}

/// A growing set of chunks.
pub(super) struct Arena {
    chunks: [OnceLock<Chunk>; MAX_CHUNKS],
    /// The chunk that pieces come from.
    current: AtomicUsize,
}

impl Arena {
    pub(super) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; MAX_CHUNKS], current: AtomicUsize::new(0) }
    }

    /// A piece of `bytes` bytes, uninitialised.
    pub(super) fn allocate(&self, bytes: usize) -> NonNull<u8> {
        let bytes = bytes.next_multiple_of(ALIGN);
        assert!(bytes <= MAX_PIECE, "a piece of {bytes} bytes");
        loop {
            // Relaxed: only a hint; the chunk itself is published by its OnceLock.
            let at = self.current.load(Ordering::Relaxed);
            let chunk = self.chunks[at].get_or_init(|| Chunk::new(chunk_size(at)));
            // Relaxed: pieces are disjoint by the atomicity of the add alone; their content is
            // published by whoever publishes the pointer.
            let offset = chunk.used.fetch_add(bytes, Ordering::Relaxed);
            if offset + bytes <= chunk.size {
                // SAFETY: `offset + bytes` lies within the chunk's allocation.
                return unsafe { chunk.base.add(offset) };
            }
            let _ = self.current.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Bytes handed out, with what is lost at the ends of chunks.
    pub(super) fn used_bytes(&self) -> usize {
        let used = |chunk: &Chunk| chunk.used.load(Ordering::Relaxed).min(chunk.size);
        self.chunks.iter().filter_map(OnceLock::get).map(used).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_arena_takes_little_and_any_piece_finds_room() {
        let arena = Arena::new();
        assert_eq!(arena.allocate(HEAD_CHUNK - 8).as_ptr().addr() % ALIGN, 0);
        let taken = |arena: &Arena| arena.chunks.iter().filter(|c| c.get().is_some()).count();
        assert_eq!(taken(&arena), 1);
        let mut end = None;
        for _ in 0..20 {
            let piece = arena.allocate(MAX_PIECE).as_ptr();
            // SAFETY: the piece is this long and nobody else's.
            unsafe { piece.write_bytes(1, MAX_PIECE) };
            assert_ne!(end, Some(piece), "a piece twice");
            end = Some(piece);
        }
        assert_eq!(taken(&arena), 4);
        assert!(arena.used_bytes() >= HEAD_CHUNK - 8 + 20 * MAX_PIECE);
        // The region with it is no large allocation either.
        assert!(size_of::<super::super::AppendRegion>() + 16 < 1024);
    }
}
