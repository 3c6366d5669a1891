//! Merges newer entries (a frozen append region, or index files read back) and a sorted region into
//! a new sorted region.
//!
//! Invariants: of a key in both, the newer entry wins; keys outside the range are left out (a split
//! gives both children the parent's regions). Blocks in which nothing changes are shared with the
//! old region, so a merge costs what changed, plus one step for each block. The inputs must not
//! change meanwhile: see [the index](super).
//!
//! # Tombstones
//!
//! A key that the shard's index files have alive always has an entry in the sorted region, or a
//! newer one: only then can a delete reach the files. So with [`Tombstones::KeepUnsaved`] a
//! tombstone that is in no file yet stays, unless the sorted region knows nothing of its key, and
//! then no file has it alive. One that is in a file goes.

use super::append_region::{AppendCursor, AppendRegion};
use super::entry::Entry;
use super::filter::Filter;
use super::sorted_region::{Block, SortedBuilder, SortedRegion};
use crate::types::KeyRange;

/// What becomes of deleted keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tombstones {
    /// They go, if the index files know of the delete.
    KeepUnsaved,
    /// They go: the shard's next index file is a whole one.
    Drop,
}

/// Ascending entries that are newer than a sorted region's.
pub(super) trait Newer {
    /// The key here; `None` at the end.
    fn key(&self) -> Option<&[u8]>;
    /// The entry here.
    fn entry(&self) -> Option<Entry>;
    /// To the next key.
    fn next(&mut self);
    /// Whether the entries are in no index file yet.
    const CHANGED: bool;
}

impl Newer for AppendCursor<'_> {
    const CHANGED: bool = true;

    #[inline]
    fn key(&self) -> Option<&[u8]> {
        AppendCursor::key(self)
    }

    #[inline]
    fn entry(&self) -> Option<Entry> {
        Some(self.cell()?.load())
    }

    #[inline]
    fn next(&mut self) {
        AppendCursor::next(self);
    }
}

/// Steps of a merge between two calls of `between`.
const STEPS: usize = 256;

/// The sorted region that stands for both, within `range`. `between` is called every so often, and
/// may sleep.
pub(crate) fn merge(
    frozen: Option<&AppendRegion>,
    sorted: &SortedRegion,
    range: &KeyRange,
    bloom: bool,
    tombstones: Tombstones,
    between: &dyn Fn(),
) -> SortedRegion {
    let newer = frozen.map(|frozen| {
        let mut cursor = frozen.cursor();
        cursor.seek_at_or_after(&range.start);
        cursor
    });
    let count = frozen.map_or(0, AppendRegion::len);
    merge_newer(newer, count, sorted, range, bloom, tombstones, between)
}

/// The same with other newer entries, at most `count` of them, from the range's start on.
pub(super) fn merge_newer(
    newer: Option<impl Newer>,
    count: usize,
    sorted: &SortedRegion,
    range: &KeyRange,
    bloom: bool,
    tombstones: Tombstones,
    between: &dyn Fn(),
) -> SortedRegion {
    // The old filter goes on while it has room: it knows the keys of shared blocks. It also knows
    // dead ones, which only cost a look in vain.
    // But not one that is large beside the keys: the part of a split would keep the whole shard's.
    let old_keys = keys_within(sorted, range);
    let old_filter = sorted
        .filter()
        .filter(|filter| filter.has_room_for(count) && !filter.is_large_for(count + old_keys));
    let mut builder = match old_filter {
        Some(filter) if bloom => SortedBuilder::with_filter(Some(filter.clone())),
        _ => SortedBuilder::new(count + old_keys, bloom),
    };
    merge_into(&mut builder, newer, sorted, range, tombstones, between);
    builder.finish()
}

/// Whether a merge of these comes to the sorted region as it is. Then nothing need be built: what is
/// written over and over without new keys costs no merge.
pub(crate) fn changes_nothing(
    frozen: Option<&AppendRegion>,
    sorted: &SortedRegion,
    range: &KeyRange,
    bloom: bool,
    tombstones: Tombstones,
) -> bool {
    let fits = |filter: &Filter| bloom && !filter.is_large_for(sorted.len());
    let no_newer = || {
        let Some(frozen) = frozen.filter(|frozen| frozen.len() > 0) else { return true };
        let mut cursor = frozen.cursor();
        cursor.seek_at_or_after(&range.start);
        cursor.key().is_none_or(|key| !range.is_before_end(key))
    };
    let drop_all = tombstones == Tombstones::Drop;
    let loses = || sorted.blocks().iter().any(|block| block.loses_tombstones(drop_all));
    sorted.filter().map_or(!bloom || sorted.len() == 0, fits)
        && sorted.is_within(range)
        && no_newer()
        && !sorted.is_joint()
        && !(sorted.tombstones() > 0 && loses())
}

/// About how many keys of a region lie within a range: those of all blocks that reach into it.
fn keys_within(sorted: &SortedRegion, range: &KeyRange) -> usize {
    if sorted.is_within(range) {
        return sorted.len();
    }
    let reaches = |block: &Block| {
        block.compare(block.count() - 1, &range.start).is_ge()
            && (range.end.is_empty() || block.compare(0, &range.end).is_lt())
    };
    let blocks = sorted.blocks().iter().filter(|block| reaches(block));
    blocks.map(|block| block.count()).sum()
}

/// The blocks of two sorted regions as one; all keys of `left` are less than all of `right`.
pub(crate) fn concatenate(left: &SortedRegion, right: &SortedRegion, bloom: bool) -> SortedRegion {
    let mut builder = SortedBuilder::new(left.len() + right.len(), bloom);
    for block in left.blocks().iter().chain(right.blocks()) {
        // Never refused: no entry is pending between whole blocks.
        let taken = builder.push_block(block);
        debug_assert!(taken, "a block was refused");
    }
    builder.finish().joint()
}

/// Adds both sides' entries within `range` to `builder`, which holds only lesser keys.
fn merge_into<N: Newer>(
    builder: &mut SortedBuilder,
    mut newer: Option<N>,
    sorted: &SortedRegion,
    range: &KeyRange,
    tombstones: Tombstones,
    between: &dyn Fn(),
) {
    let any_tombstones = sorted.may_have_tombstones();
    if !any_tombstones {
        builder.expect_live_blocks();
    }
    let mut old = sorted.cursor();
    old.seek_at_or_after(&range.start);
    for step in 0.. {
        if step % STEPS == STEPS - 1 {
            between();
        }
        let new_key = newer.as_ref().and_then(Newer::key);
        if let Some(block) = old.whole_block() {
            let last = block.count() - 1;
            let unchanged = new_key.is_none_or(|key| block.compare(last, key).is_lt())
                && (range.end.is_empty() || block.compare(last, &range.end).is_lt())
                && !(any_tombstones && block.loses_tombstones(tombstones == Tombstones::Drop));
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
        let entry = match &newer {
            Some(newer) if take_new => newer.entry(),
            _ => old.cell().map(|cell| cell.load()),
        };
        if let Some(entry) = entry {
            // An old entry's bit stays set when a newer one comes over it.
            let changed = take_new && N::CHANGED || take_old && old.is_changed();
            let kept = tombstones == Tombstones::KeepUnsaved && changed && take_old;
            if kept || !entry.is_tombstone() {
                builder.push(key, entry, changed);
            }
        }
        if take_new && let Some(newer) = &mut newer {
            newer.next();
        }
        if take_old {
            old.next();
        }
    }
}
