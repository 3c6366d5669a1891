//! Goes over the entries of a bundle in key order, either way, newest entry of each key.
//!
//! Invariants: of a key in several regions only the newest entry is given; tombstones are given
//! too, since a scan has to examine their stripe words; keys that were there when the iterator was
//! made are neither missed nor repeated, later ones may or may not be met. A step costs O(1)
//! amortised, the start O(log n).

use super::append_region::{AppendCursor, AppendRegion};
use super::bundle::{Bundle, Place};
use super::cell::CellRef;
use super::entry::Entry;
use super::sorted_region::{SortedCursor, SortedRegion};
use crate::types::KeyRange;

/// Regions by age, newest first.
const PLACES: [Place; 3] = [Place::Active, Place::Frozen, Place::Sorted];

/// An entry met.
#[derive(Clone, Copy)]
pub(crate) struct RangeItem<'k> {
    /// The key, in a buffer of the iterator or in its region.
    pub(crate) key: &'k [u8],
    /// The entry, loaded when it was met.
    pub(crate) entry: Entry,
    /// Where it was met.
    #[cfg_attr(not(test), expect(dead_code, reason = "defragment asks for it"))]
    pub(crate) place: Place,
}

/// The cursor of a region.
enum Cursor<'a> {
    Append(AppendCursor<'a>),
    Sorted(SortedCursor<'a>),
}

impl<'a> Cursor<'a> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Append(cursor) => cursor.key(),
            Self::Sorted(cursor) => cursor.key(),
        }
    }

    #[inline]
    fn cell(&self) -> Option<CellRef<'a>> {
        match self {
            Self::Append(cursor) => cursor.cell(),
            Self::Sorted(cursor) => cursor.cell(),
        }
    }

    #[inline]
    fn step(&mut self, reverse: bool) {
        match (self, reverse) {
            (Self::Append(cursor), false) => cursor.next(),
            (Self::Append(cursor), true) => cursor.prev(),
            (Self::Sorted(cursor), false) => cursor.next(),
            (Self::Sorted(cursor), true) => cursor.prev(),
        }
    }

    fn seek(&mut self, range: &KeyRange, reverse: bool) {
        macro_rules! seek {
            ($cursor:expr) => {
                match (reverse, range.end.is_empty()) {
                    (false, _) => $cursor.seek_at_or_after(&range.start),
                    (true, false) => $cursor.seek_before(&range.end),
                    (true, true) => $cursor.seek_last(),
                }
            };
        }
        match self {
            Self::Append(cursor) => seek!(cursor),
            Self::Sorted(cursor) => seek!(cursor),
        }
    }
}

/// An iterator over a range. Lends its keys: not an `Iterator`.
pub(crate) struct RangeIter<'a> {
    /// In the order of [`PLACES`].
    cursors: [Option<Cursor<'a>>; 3],
    /// Cursors that stand at the item given last, as bits.
    given: u8,
    range: KeyRange,
    reverse: bool,
    done: bool,
}

impl<'a> RangeIter<'a> {
    /// Over the entries of `bundle` in `range`, from its end down with `reverse`. The caller cuts
    /// `range` to the shard's own: a bundle may hold more.
    pub(crate) fn new(bundle: &'a Bundle, range: KeyRange, reverse: bool) -> Self {
        Self::over(Some(&bundle.active), bundle.frozen.as_deref(), &bundle.sorted, range, reverse)
    }

    /// The same over single regions.
    pub(crate) fn over(
        active: Option<&'a AppendRegion>,
        frozen: Option<&'a AppendRegion>,
        sorted: &'a SortedRegion,
        range: KeyRange,
        reverse: bool,
    ) -> Self {
        let append = |region: Option<&'a AppendRegion>| {
            region.filter(|region| region.len() > 0).map(|region| Cursor::Append(region.cursor()))
        };
        let mut cursors = [append(active), append(frozen), Some(Cursor::Sorted(sorted.cursor()))];
        let done = range.is_empty();
        if !done {
            cursors.iter_mut().flatten().for_each(|cursor| cursor.seek(&range, reverse));
        }
        Self { cursors, given: 0, range, reverse, done }
    }

    /// The next entry; `None` at the end of the range, and ever after.
    pub(crate) fn next(&mut self) -> Option<RangeItem<'_>> {
        if self.done {
            return None;
        }
        for (at, cursor) in self.cursors.iter_mut().enumerate() {
            if let (true, Some(cursor)) = (self.given >> at & 1 == 1, cursor) {
                cursor.step(self.reverse);
            }
        }
        self.given = 0;
        let mut best: Option<(usize, &[u8])> = None;
        for (at, cursor) in self.cursors.iter().enumerate() {
            let Some(key) = cursor.as_ref().and_then(Cursor::key) else { continue };
            let order =
                best.map(|(_, best)| if self.reverse { best.cmp(key) } else { key.cmp(best) });
            match order {
                None | Some(std::cmp::Ordering::Less) => {
                    best = Some((at, key));
                    self.given = 1 << at;
                }
                // An older entry of the same key: passed over together with the newest.
                Some(std::cmp::Ordering::Equal) => self.given |= 1 << at,
                Some(std::cmp::Ordering::Greater) => {}
            }
        }
        let inside = best.filter(|(_, key)| {
            if self.reverse {
                *key >= self.range.start.as_slice()
            } else {
                self.range.is_before_end(key)
            }
        });
        let Some((at, key)) = inside else {
            self.done = true;
            return None;
        };
        let entry = self.cursors[at].as_ref()?.cell()?.load();
        Some(RangeItem { key, entry, place: PLACES[at] })
    }
}
