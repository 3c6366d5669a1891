//! A place in an append region's order, movable both ways.
//!
//! Invariant: keys that were there when the cursor was placed are neither missed nor repeated;
//! keys inserted since may or may not be met.

use super::AppendRegion;
use super::node::NodeRef;
use crate::index::cell::CellRef;

/// A cursor. Made without a place: seek first.
pub(crate) struct AppendCursor<'a> {
    region: &'a AppendRegion,
    at: Option<NodeRef<'a>>,
}

impl<'a> AppendCursor<'a> {
    pub(super) fn new(region: &'a AppendRegion) -> Self {
        Self { region, at: None }
    }

    /// To the first entry.
    #[cfg(test)]
    pub(crate) fn seek_first(&mut self) {
        self.at = self.region.list.first();
    }

    /// To the last entry.
    pub(crate) fn seek_last(&mut self) {
        self.at = self.region.list.last();
    }

    /// To the first entry whose key is not less than `key`.
    pub(crate) fn seek_at_or_after(&mut self, key: &[u8]) {
        self.at = self.region.list.seek(key).1;
    }

    /// To the last entry whose key is less than `key`.
    pub(crate) fn seek_before(&mut self, key: &[u8]) {
        self.at = self.region.list.seek(key).0;
    }

    /// To the next entry; off the end, there is no place.
    pub(crate) fn next(&mut self) {
        self.at = self.at.and_then(|node| self.region.list.behind(node));
    }

    /// To the entry before; off the start, there is no place.
    pub(crate) fn prev(&mut self) {
        self.at = self.at.and_then(|node| self.region.list.before(node));
    }

    /// The key here. Lives as long as the region.
    #[inline]
    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        self.at.map(NodeRef::key)
    }

    /// The entry's cell here.
    #[inline]
    pub(crate) fn cell(&self) -> Option<CellRef<'a>> {
        self.at.map(|node| node.cell(&self.region.tombstones))
    }
}
