//! One entry of an append region: a header, a tower of links, and the key, in one piece of the
//! arena.
//!
//! Invariants: key, height and tower length never change after [`NodeRef::create`]; a node is
//! reached by others only through a Release store of its pointer, after it is complete.

use crate::sync::primitives::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize};
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::arena::{ALIGN, Arena};
use crate::index::cell::{CellRef, Sequence};
use crate::index::entry::Entry;

/// Most levels of the skip list: enough for 16 million nodes at one in four.
pub(super) const MAX_HEIGHT: usize = 12;

/// The fixed part of a node. Behind it: `height` links of type `AtomicPtr<Node>`, then the key.
#[repr(C)]
pub(super) struct Node {
    payload: AtomicU64,
    /// A node before this one, and nearly always the last one before it; see `SkipList::before`.
    prev: AtomicPtr<Node>,
    sequence: Sequence,
    key_len: u16,
    height: u8,
    tag: AtomicU8,
}

const _: () = {
    assert!(align_of::<Node>() <= ALIGN && align_of::<AtomicPtr<Node>>() <= ALIGN);
    assert!(size_of::<Node>().is_multiple_of(align_of::<AtomicPtr<Node>>()));
    assert!(crate::options::MAX_KEY_BYTES <= u16::MAX as usize);
};

/// A complete node of an arena that lives for `'a`.
#[derive(Clone, Copy)]
pub(super) struct NodeRef<'a> {
    node: NonNull<Node>,
    arena: PhantomData<&'a Arena>,
}

// SAFETY: a node is plain immutable data and atomics, in memory that lives for `'a`.
unsafe impl Send for NodeRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for NodeRef<'_> {}

impl PartialEq for NodeRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.node == other.node
    }
}

impl<'a> NodeRef<'a> {
    /// Makes a node, with empty links.
    pub(super) fn create(arena: &'a Arena, key: &[u8], entry: Entry, height: usize) -> Self {
        assert!(key.len() <= crate::options::MAX_KEY_BYTES && (1..=MAX_HEIGHT).contains(&height));
        let links = size_of::<Node>();
        let key_at = links + height * size_of::<AtomicPtr<Node>>();
        let piece = arena.allocate(key_at + key.len());
        let node = piece.cast::<Node>();
        // SAFETY: the piece is ours alone, aligned for Node and AtomicPtr (asserted above), and
        // has room for the header, `height` links and the key, which do not overlap.
        unsafe {
            node.write(Node {
                payload: AtomicU64::new(entry.payload),
                prev: AtomicPtr::default(),
                sequence: Sequence::default(),
                key_len: key.len() as u16,
                height: height as u8,
                tag: AtomicU8::new(entry.tag.bits()),
            });
            let tower = piece.add(links).cast::<AtomicPtr<Node>>();
            for level in 0..height {
                tower.add(level).write(AtomicPtr::default());
            }
            piece.add(key_at).copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
        }
        Self { node, arena: PhantomData }
    }

    /// The node behind a pointer that was published, or `None` for null.
    ///
    /// # Safety
    /// A pointer that is not null came from [`as_ptr`](Self::as_ptr) of a node of an arena that
    /// lives for `'a`, and was obtained so that the node's creation happens before.
    #[inline]
    pub(super) unsafe fn from_ptr(node: *mut Node) -> Option<Self> {
        NonNull::new(node).map(|node| Self { node, arena: PhantomData })
    }

    #[inline]
    pub(super) fn as_ptr(self) -> *mut Node {
        self.node.as_ptr()
    }

    #[inline]
    fn header(self) -> &'a Node {
        // SAFETY: a NodeRef points at an initialised node that lives for `'a` and is only changed
        // through its atomics.
        unsafe { self.node.as_ref() }
    }

    /// Levels of the node.
    #[inline]
    pub(super) fn height(self) -> usize {
        usize::from(self.header().height)
    }

    /// The link to the next node of a level.
    #[inline]
    pub(super) fn next(self, level: usize) -> &'a AtomicPtr<Node> {
        debug_assert!(level < self.height());
        // SAFETY: `create` initialised `height` links right behind the header, in the same piece;
        // callers come by a level only through a link of that level (checked in debug builds).
        unsafe { self.node.add(1).cast::<AtomicPtr<Node>>().add(level).as_ref() }
    }

    /// The link to a node before.
    #[inline]
    pub(super) fn prev(self) -> &'a AtomicPtr<Node> {
        &self.header().prev
    }

    /// The key.
    #[inline]
    pub(super) fn key(self) -> &'a [u8] {
        let header = self.header();
        // SAFETY: `create` wrote `key_len` bytes behind `height` links, in the same piece, and
        // nobody changes them.
        unsafe {
            let key = self.node.add(1).cast::<AtomicPtr<Node>>().add(usize::from(header.height));
            std::slice::from_raw_parts(key.cast::<u8>().as_ptr(), usize::from(header.key_len))
        }
    }

    /// The entry's cell.
    #[inline]
    pub(super) fn cell(self, tombstones: &'a AtomicUsize) -> CellRef<'a> {
        let header = self.header();
        CellRef::new(&header.sequence, &header.payload, &header.tag, tombstones)
    }
}
