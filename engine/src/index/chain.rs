//! What a chain of index files, read back, is together: a whole file and the deltas after it.
//!
//! Invariants: of a key in several files the newest entry counts; tombstones have done their work
//! then and are gone; no entry of the result has its changed bit set.

use super::entry::Entry;
use super::merge::{Newer, Tombstones, merge_newer};
use super::sorted_region::{SortedCursor, SortedRegion};
use crate::types::KeyRange;

/// The region of a whole file and its deltas, oldest first.
pub(crate) fn join_chain(
    whole: SortedRegion,
    deltas: &[SortedRegion],
    range: &KeyRange,
    bloom: bool,
) -> SortedRegion {
    let filter_fits = whole.filter().is_some() == bloom || whole.len() == 0;
    if deltas.is_empty() && whole.tombstones() == 0 && filter_fits {
        return whole;
    }
    let count = deltas.iter().map(SortedRegion::len).sum();
    let newer = Deltas::new(deltas);
    merge_newer(Some(newer), count, &whole, range, bloom, Tombstones::Drop, &|| ())
}

/// Goes over the keys of several deltas in order, newest entry of each.
struct Deltas<'a> {
    /// Oldest first.
    cursors: Vec<SortedCursor<'a>>,
    /// The cursors that have a place: by key, of equal keys the newest first.
    order: Vec<usize>,
    /// The key that is being passed over.
    passed: Vec<u8>,
}

impl<'a> Deltas<'a> {
    fn new(deltas: &'a [SortedRegion]) -> Self {
        let cursors = deltas.iter().map(SortedRegion::cursor).collect();
        let mut all = Self { cursors, order: Vec::new(), passed: Vec::new() };
        for at in 0..deltas.len() {
            all.cursors[at].seek_first();
            all.enter(at);
        }
        all
    }

    /// Puts a cursor where it belongs in the order; nowhere when it is at its end.
    fn enter(&mut self, cursor: usize) {
        let Some(key) = self.cursors[cursor].key() else { return };
        let place = self.order.partition_point(|&other| {
            let order = self.cursors[other].key().cmp(&Some(key));
            order.then_with(|| cursor.cmp(&other)).is_lt()
        });
        self.order.insert(place, cursor);
    }
}

impl Newer for Deltas<'_> {
    const CHANGED: bool = false;

    fn key(&self) -> Option<&[u8]> {
        self.cursors[*self.order.first()?].key()
    }

    fn entry(&self) -> Option<Entry> {
        Some(self.cursors[*self.order.first()?].cell()?.load())
    }

    fn next(&mut self) {
        let mut passed = std::mem::take(&mut self.passed);
        passed.clear();
        passed.extend_from_slice(self.key().unwrap_or_default());
        while self.key() == Some(&passed) {
            let first = self.order.remove(0);
            self.cursors[first].next();
            self.enter(first);
        }
        self.passed = passed;
    }
}
