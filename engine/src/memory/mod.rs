//! How much memory the indexes may take, and how much they take: what the refusal of inserts is
//! decided by.
//!
//! Invariants: `used` is what the regions of all shards took at the last recount, which follows
//! every freeze and merge and every few inserts; a merge under way counts with what it may come to
//! at most, until its result is counted. Reading is two relaxed loads. Nothing but inserts of new
//! keys is ever refused for want of memory.

mod allocator;
mod limit;

use crate::sync::primitives::atomic::{AtomicU64, Ordering};

pub use allocator::keep_heap_small;
pub(crate) use allocator::trim_heap;
pub(crate) use limit::default_budget;

use crate::error::{Error, ErrorKind};

/// The budget and what is used of it. All atomics are relaxed: numbers that order nothing.
#[derive(Debug)]
pub(crate) struct Memory {
    budget_bytes: u64,
    used_bytes: AtomicU64,
    merging_bytes: AtomicU64,
}

impl Memory {
    /// A budget of which nothing is used.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        Self { budget_bytes, used_bytes: 0.into(), merging_bytes: 0.into() }
    }

    /// What the indexes may take, in bytes.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// What they take, merges under way included, in bytes.
    pub(crate) fn used_bytes(&self) -> u64 {
        let used = self.used_bytes.load(Ordering::Relaxed);
        used.saturating_add(self.merging_bytes.load(Ordering::Relaxed))
    }

    /// Whether inserts of new keys are refused.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.used_bytes() >= self.budget_bytes
    }

    /// Takes over a recount of all regions.
    pub(crate) fn set_used(&self, bytes: u64) {
        self.used_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts a merge that may come to `bytes` until the guard is dropped.
    pub(crate) fn begin_merge(&self, bytes: usize) -> Merging<'_> {
        let bytes = bytes as u64;
        self.merging_bytes.fetch_add(bytes, Ordering::Relaxed);
        Merging { memory: self, bytes }
    }

    /// The refusal of an insert.
    pub(crate) fn refusal(&self) -> Error {
        let what = format!(
            "the index takes {} of its memory_budget_bytes = {}: new keys are refused until deletes \
             and a reorganize have freed some; updates, deletes and reads go on",
            self.used_bytes(),
            self.budget_bytes
        );
        Error::new(ErrorKind::MemoryFull, what)
    }
}

/// A merge under way.
pub(crate) struct Merging<'a> {
    memory: &'a Memory,
    bytes: u64,
}

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        self.memory.merging_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_counts_while_it_lasts() {
        let memory = Memory::new(100);
        memory.set_used(60);
        assert!(!memory.is_full());
        {
            let _merging = memory.begin_merge(40);
            assert!(memory.is_full());
            assert_eq!(memory.used_bytes(), 100);
            let refusal = memory.refusal();
            assert_eq!(refusal.kind(), ErrorKind::MemoryFull);
            assert!(refusal.message().contains("memory_budget_bytes = 100"), "{refusal}");
        }
        assert!(!memory.is_full());
        memory.set_used(100);
        assert!(memory.is_full());
    }
}
