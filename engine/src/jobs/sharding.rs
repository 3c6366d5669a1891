//! When shards are split and merged: pure functions of sizes.
//!
//! Invariants: no clock, no I/O, no state; what a split leaves is too large to be merged again, and
//! what a merge leaves is too small to be split.

/// What a shard holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Size {
    /// Bytes of live records.
    pub(crate) bytes: u64,
    /// Entries of the index.
    pub(crate) entries: u64,
}

/// Whether a shard has outgrown the limits.
pub(crate) fn is_too_large(size: Size, max: Size) -> bool {
    size.bytes > max.bytes || size.entries > max.entries
}

/// Whether it is worth a try to split it: `quiet` is what a try in vain has left.
pub(crate) fn split_is_due(size: Size, max: Size, quiet: Size) -> bool {
    let enough =
        Size { bytes: max.bytes.max(quiet.bytes), entries: max.entries.max(quiet.entries) };
    is_too_large(size, enough)
}

/// No other try before the shard has grown by a quarter.
pub(crate) fn quiet_after_refusal(size: Size) -> Size {
    Size {
        bytes: size.bytes.saturating_add(size.bytes / 4),
        entries: size.entries.saturating_add(size.entries / 4),
    }
}

/// Whether two neighbours are small enough together to be one.
pub(crate) fn are_small(left: Size, right: Size, max: Size) -> bool {
    left.bytes.saturating_add(right.bytes) < max.bytes / 4
        && left.entries.saturating_add(right.entries) < max.entries / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Size = Size { bytes: 1000, entries: 100 };

    fn size(bytes: u64, entries: u64) -> Size {
        Size { bytes, entries }
    }

    #[test]
    fn either_limit_makes_a_split_due() {
        assert!(!split_is_due(size(1000, 100), MAX, Size::default()));
        assert!(split_is_due(size(1001, 1), MAX, Size::default()));
        assert!(split_is_due(size(1, 101), MAX, Size::default()));
    }

    #[test]
    fn a_shard_that_cannot_be_split_rests_until_it_has_grown() {
        let stuck = size(2000, 1);
        let quiet = quiet_after_refusal(stuck);
        assert!(!split_is_due(stuck, MAX, quiet));
        assert!(!split_is_due(size(2500, 1), MAX, quiet));
        assert!(split_is_due(size(2501, 1), MAX, quiet));
        assert!(split_is_due(size(2000, 101), MAX, quiet), "the other limit");
        assert!(is_too_large(stuck, MAX), "it is named all the same");
    }

    #[test]
    fn halves_are_not_merged_again_and_merged_ones_not_split() {
        assert!(!are_small(size(500, 50), size(501, 50), MAX));
        assert!(are_small(size(100, 10), size(149, 14), MAX));
        assert!(!are_small(size(100, 10), size(150, 14), MAX));
        assert!(!are_small(size(100, 10), size(149, 15), MAX));
        assert!(!is_too_large(size(249, 24), MAX));
    }
}
