//! The regions of a shard at one moment, published as one pointer.
//!
//! Invariants: a bundle never changes; its regions do, as [the index](super) allows. The dirty
//! flag is the active region's.

use std::sync::Arc;

use super::append_region::AppendRegion;
use super::cell::CellRef;
use super::entry::Entry;
use super::key_hash;
use super::sorted_region::SortedRegion;

/// Where an entry was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In the region that takes inserts.
    Active,
    /// In the region that is being merged.
    Frozen,
    /// In the sorted region.
    Sorted,
}

/// The newest entry of a key.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    /// In which region.
    pub(crate) place: Place,
    /// The entry's cell.
    pub(crate) cell: CellRef<'a>,
}

/// The regions of a shard.
pub(crate) struct Bundle {
    /// Takes inserts.
    pub(crate) active: Arc<AppendRegion>,
    /// The active region of before, while it is being merged; immutable once the freeze has passed
    /// every stripe.
    pub(crate) frozen: Option<Arc<AppendRegion>>,
    /// The rest; immutable while `frozen` is there.
    pub(crate) sorted: Arc<SortedRegion>,
}

impl Bundle {
    /// The newest entry of a key, which may be a tombstone. No lock, no allocation.
    pub(crate) fn lookup(&self, key: &[u8]) -> Option<Found<'_>> {
        self.lookup_hashed(key_hash(key), key)
    }

    /// The same with a hash that is known.
    #[inline]
    pub(crate) fn lookup_hashed(&self, hash: u64, key: &[u8]) -> Option<Found<'_>> {
        let found = |place| move |cell| Found { place, cell };
        self.active
            .find_hashed(hash, key)
            .map(found(Place::Active))
            .or_else(|| self.frozen.as_ref()?.find_hashed(hash, key).map(found(Place::Frozen)))
            .or_else(|| self.sorted.find_hashed(hash, key).map(found(Place::Sorted)))
    }

    /// Whether an entry found at `place` may be changed where it is. If not, a change is a new
    /// entry of the active region, which needs a reservation.
    #[inline]
    pub(crate) fn may_change(&self, place: Place) -> bool {
        place == Place::Active || self.frozen.is_none()
    }

    /// Whether [`publish`](Self::publish) of a key found like that inserts.
    #[inline]
    pub(crate) fn needs_room(&self, found: Option<Found<'_>>) -> bool {
        !found.is_some_and(|found| self.may_change(found.place))
    }

    /// Makes `entry` the newest of `key`: in place where that is allowed, else as a new entry of
    /// the active region. Returns whether it inserted, and so used up a reservation on
    /// [`active`](Self::active). Never fails or panics if the caller keeps its duties:
    ///
    /// it holds the key's stripe since before it loaded this bundle, `found` is this bundle's
    /// answer to [`lookup`](Self::lookup) under that same hold, the dirty flag is set
    /// ([`mark_dirty`](Self::mark_dirty)) and, where [`needs_room`](Self::needs_room), an entry
    /// of `self.active` is reserved.
    pub(crate) fn publish(
        &self,
        hash: u64,
        key: &[u8],
        found: Option<Found<'_>>,
        entry: Entry,
    ) -> bool {
        debug_assert!(self.active.was_written(), "mark the bundle dirty before publishing");
        match found {
            Some(found) if self.may_change(found.place) => {
                found.cell.store(entry);
                false
            }
            _ => {
                self.active.insert_hashed(hash, key, entry);
                true
            }
        }
    }

    /// Marks the shard as changed since its last checkpoint. To be called under the stripe, after
    /// loading the bundle, before the log's reserve.
    #[inline]
    pub(crate) fn mark_dirty(&self) {
        self.active.mark_written();
    }

    /// Whether the shard has changed since its last checkpoint, what is frozen included.
    pub(crate) fn is_dirty(&self) -> bool {
        self.active.was_written() || self.frozen.as_ref().is_some_and(|old| old.was_written())
    }

    /// Entries of append regions, the frozen one included.
    pub(crate) fn append_entries(&self) -> usize {
        self.active.len() + self.frozen.as_ref().map_or(0, |frozen| frozen.len())
    }

    /// What a merge of frozen and sorted may come to beyond what the bundle holds, in bytes: every
    /// block that changes, and what a sorted region has besides its blocks.
    pub(crate) fn merge_bytes(&self) -> usize {
        let frozen = self.frozen.as_deref();
        let changes = frozen.map_or(0, AppendRegion::len) + self.sorted.len() - self.sorted.live();
        frozen.map_or(0, AppendRegion::memory_bytes) + self.sorted.rewrite_bytes(changes)
    }

    /// Memory in bytes of the regions that both have.
    pub(crate) fn shared_bytes(&self, other: &Bundle) -> usize {
        let sorted = Arc::ptr_eq(&self.sorted, &other.sorted);
        let frozen = match (&self.frozen, &other.frozen) {
            (Some(mine), Some(theirs)) if Arc::ptr_eq(mine, theirs) => mine.memory_bytes(),
            _ => 0,
        };
        frozen + if sorted { self.sorted.memory_bytes() } else { 0 }
    }

    /// Memory in bytes. Regions that several bundles share are counted in each.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.active.memory_bytes()
            + self.frozen.as_ref().map_or(0, |frozen| frozen.memory_bytes())
            + self.sorted.memory_bytes()
    }
}
