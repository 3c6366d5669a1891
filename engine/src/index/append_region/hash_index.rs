//! From a key's hash to its node: open addressing in a table that never grows.
//!
//! Invariants: slots go from empty to a node once; a slot's upper 16 bits repeat the hash's upper
//! 16, so that a foreign node is seldom touched; keys are compared in full before a node is
//! answered. The table has at least twice as many slots as the region has room for nodes; it is made
//! with the first node, for many regions never get one.

use crate::sync::primitives::atomic::{AtomicPtr, Ordering};
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::sync::OnceLock;

use super::arena::ADDRESS_BITS;
use super::node::{Node, NodeRef};

/// The table.
pub(super) struct HashIndex {
    /// A power of two.
    count: usize,
    slots: OnceLock<Box<[AtomicPtr<Node>]>>,
}

impl HashIndex {
    /// A table for `capacity` nodes.
    pub(super) fn new(capacity: usize) -> Self {
        Self { count: (2 * capacity).next_power_of_two().max(16), slots: OnceLock::new() }
    }

    /// The node of a key.
    ///
    /// # Safety
    /// Every node inserted belongs to an arena that lives for `'a`.
    #[inline]
    pub(super) unsafe fn find<'a>(&self, hash: u64, key: &[u8]) -> Option<NodeRef<'a>> {
        let slots = self.slots.get()?;
        let mask = slots.len() - 1;
        let mut at = hash as usize & mask;
        for _ in 0..=mask {
            // Acquire: pairs with the Release exchange in `insert`: the node is complete.
            let slot = slots[at].load(Ordering::Acquire);
            if slot.is_null() {
                return None;
            }
            if slot.addr() as u64 >> ADDRESS_BITS == hash >> ADDRESS_BITS {
                // SAFETY: the slot holds a node that `insert` published; the mark is taken off.
                let node = unsafe { NodeRef::from_ptr(slot.map_addr(unmark)) }?;
                if node.key() == key {
                    return Some(node);
                }
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Publishes a complete node whose key is not in the table. Returns false when there is no
    /// slot left.
    pub(super) fn insert(&self, hash: u64, node: NodeRef<'_>) -> bool {
        let slots = self.slots.get_or_init(|| zeroed_slots(self.count));
        let mask = slots.len() - 1;
        let mark = (hash >> ADDRESS_BITS << ADDRESS_BITS) as usize;
        let marked = node.as_ptr().map_addr(|address| address | mark);
        let mut at = hash as usize & mask;
        for _ in 0..=mask {
            let empty = std::ptr::null_mut();
            // Release: pairs with the Acquire load in `find`. Relaxed on failure: the slot is
            // another key's, its node is not looked at.
            let free = slots[at].load(Ordering::Relaxed).is_null()
                && slots[at]
                    .compare_exchange(empty, marked, Ordering::Release, Ordering::Relaxed)
                    .is_ok();
            if free {
                return true;
            }
            at = (at + 1) & mask;
        }
        false
    }

    /// Memory in bytes, also before the first node: any insert may take it.
    pub(super) fn memory_bytes(&self) -> usize {
        self.count * size_of::<AtomicPtr<Node>>()
    }
}

/// The address without the hash bits.
#[inline]
fn unmark(address: usize) -> usize {
    address & ((1 << ADDRESS_BITS) - 1)
}

/// Empty slots, from zeroed pages: untouched parts of a large table cost nothing.
fn zeroed_slots(slots: usize) -> Box<[AtomicPtr<Node>]> {
    let Ok(layout) = Layout::array::<AtomicPtr<Node>>(slots) else {
        return Box::default();
    };
    // SAFETY: there is at least one slot, so the size is not zero.
    let memory = unsafe { alloc_zeroed(layout) }.cast::<AtomicPtr<Node>>();
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: the memory comes from the global allocator with the layout of this slice, and
    // all-zero bytes are null pointers.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(memory, slots)) }
}
