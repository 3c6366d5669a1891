//! Merges a frozen append region and a sorted region into a new sorted region.
//!
//! Invariants: of a key in both, the frozen entry wins; tombstones are dropped; keys outside the
//! range are left out (a split gives both children the parent's regions). Blocks in which nothing
//! changes are shared with the old region, so a merge costs what changed, plus one step for each
//! block. The inputs must not change meanwhile: see [the index](super).

use super::append_region::{AppendCursor, AppendRegion};
use super::sorted_region::{SortedBuilder, SortedRegion};
use crate::types::KeyRange;

/// The sorted region that stands for both, within `range`.
pub(crate) fn merge(
    frozen: Option<&AppendRegion>,
    sorted: &SortedRegion,
    range: &KeyRange,
    bloom: bool,
) -> SortedRegion {
    let new = frozen.map_or(0, AppendRegion::len);
    // The old filter goes on while it has room: it knows the keys of shared blocks. It also knows
    // dead ones, which only cost a look in vain.
    let old_filter = sorted.filter().filter(|filter| filter.has_room_for(new));
    let mut builder = match old_filter {
        Some(filter) if bloom => SortedBuilder::with_filter(Some(filter.clone())),
        _ => SortedBuilder::new(new + sorted.len(), bloom),
    };
    merge_into(&mut builder, frozen, sorted, range);
    builder.finish()
}

/// The blocks of two sorted regions as one; all keys of `left` are less than all of `right`.
pub(crate) fn concatenate(left: &SortedRegion, right: &SortedRegion, bloom: bool) -> SortedRegion {
    let mut builder = SortedBuilder::new(left.len() + right.len(), bloom);
    for block in left.blocks().iter().chain(right.blocks()) {
        // Never refused: no entry is pending between whole blocks.
        let taken = builder.push_block(block);
        debug_assert!(taken, "a block was refused");
    }
    builder.finish()
}

/// Adds both regions' live entries within `range` to `builder`, which holds only lesser keys.
/// A builder made by [`SortedBuilder::new`] may take several pairs in key order.
pub(crate) fn merge_into(
    builder: &mut SortedBuilder,
    frozen: Option<&AppendRegion>,
    sorted: &SortedRegion,
    range: &KeyRange,
) {
    let mut new = frozen.map(AppendRegion::cursor);
    if let Some(new) = &mut new {
        new.seek_at_or_after(&range.start);
    }
    let mut old = sorted.cursor();
    old.seek_at_or_after(&range.start);
    loop {
        let new_key = new.as_ref().and_then(AppendCursor::key);
        if let Some(block) = old.whole_block() {
            let last = block.count() - 1;
            let unchanged = new_key.is_none_or(|key| block.compare(last, key).is_lt())
                && (range.end.is_empty() || block.compare(last, &range.end).is_lt())
                && block.tombstones() == 0;
            if unchanged && builder.push_block(block) {
                old.skip_block();
                continue;
            }
        }
        let (key, take_new, take_old) = match (new_key, old.key()) {
            (None, None) => break,
            (Some(key), None) => (key, true, false),
            (None, Some(key)) => (key, false, true),
            (Some(a), Some(b)) => (a.min(b), a <= b, b <= a),
        };
        if !range.is_before_end(key) {
            break;
        }
        let cell = if take_new { new.as_ref().and_then(AppendCursor::cell) } else { old.cell() };
        if let Some(entry) = cell.map(|cell| cell.load())
            && !entry.is_tombstone()
        {
            builder.push(key, entry);
        }
        if take_new && let Some(new) = &mut new {
            new.next();
        }
        if take_old {
            old.next();
        }
    }
}
