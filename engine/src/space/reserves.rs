//! How much disk is kept for what must go on when it is full, and how limits shrink with a small
//! disk. Pure.
//!
//! Invariants: below the soft reserve no put is taken; the hard reserve, which is a part of it,
//! holds what reclaiming needs until space returns: copies, new index files beside the old ones,
//! and the log up to the commit.

/// Sizes that the reserves follow from, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sizes {
    /// A segment of the value log.
    pub(crate) value_segment: u64,
    /// A segment of the log.
    pub(crate) wal_segment: u64,
    /// The index files of the last checkpoint.
    pub(crate) index_files: u64,
}

/// Disk that is kept, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reserves {
    /// Below this much, puts are refused.
    pub(crate) soft: u64,
    /// Of this: what is for deletes, defragment, checkpoints and restart.
    pub(crate) hard: u64,
}

/// Manifest, identity, and folders that grow.
const SMALL_FILES: u64 = 256 << 10;

/// The reserves for these sizes.
pub(crate) fn reserves(sizes: &Sizes) -> Reserves {
    // Copies: a segment that is filled, and the next one. Log: the spare, and one more. Index: all
    // of it once more, and what has been added since.
    let index = sizes.index_files + sizes.index_files / 4;
    let hard = 2 * sizes.value_segment + 2 * sizes.wal_segment + index + SMALL_FILES;
    // What puts may take before the next look.
    let soft = hard + sizes.value_segment + sizes.wal_segment;
    Reserves { soft, hard }
}

/// Puts are slowed down, and dead space is reclaimed with priority, while less than this is left
/// above the soft reserve.
pub(crate) fn slow_zone(sizes: &Sizes, checkpoint_bytes: u64) -> u64 {
    2 * sizes.value_segment + 2 * checkpoint_bytes
}

/// Longest pause of one put in the slow zone, in microseconds.
const MOST_PAUSE_US: u64 = 4000;

/// How long a put pauses with `available` bytes left, in microseconds: nothing above the zone, and
/// the longest at its end.
pub(crate) fn pause_us(available: u64, soft: u64, zone: u64) -> u64 {
    let Some(above) = available.checked_sub(soft) else { return MOST_PAUSE_US };
    let Some(missing) = zone.checked_sub(above) else { return 0 };
    let part = missing as f64 / zone.max(1) as f64;
    (part * part * MOST_PAUSE_US as f64) as u64
}

/// The smallest scaled value segment: holds the largest record.
const MIN_VALUE_SEGMENT: u64 = (8 << 20) + (64 << 10);

/// Size of a new value segment on a disk of `total` bytes.
pub(crate) fn value_segment_bytes(wanted: u64, total: u64) -> u64 {
    wanted.min((total / 256 / 4096 * 4096).max(MIN_VALUE_SEGMENT))
}

/// Size of a log segment on a disk of `total` bytes.
pub(crate) fn wal_segment_bytes(wanted: u64, total: u64) -> u64 {
    wanted.min((total / 512 / 4096 * 4096).max(256 << 10))
}

/// Length of the log that makes a checkpoint due, on a disk of `total` bytes with `live` bytes of
/// values: a log that is long beside the values is disk that could hold more of them.
pub(crate) fn checkpoint_bytes(wanted: u64, total: u64, live: u64) -> u64 {
    wanted.min((total / 48).max(1 << 20)).min((live / 8).max(64 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn reserves_hold_copies_index_and_log() {
        let sizes = Sizes { value_segment: 64 * MIB, wal_segment: 16 * MIB, index_files: 40 * MIB };
        let Reserves { soft, hard } = reserves(&sizes);
        assert_eq!(hard, (128 + 32 + 50) * MIB + SMALL_FILES);
        assert_eq!(soft, hard + 80 * MIB);
    }

    #[test]
    fn a_small_disk_gets_small_segments_and_a_large_one_what_was_asked_for() {
        assert_eq!(value_segment_bytes(64 * MIB, u64::MAX), 64 * MIB);
        assert_eq!(value_segment_bytes(64 * MIB, 3 << 30), 12 * MIB);
        assert_eq!(value_segment_bytes(64 * MIB, 1 << 27), MIN_VALUE_SEGMENT);
        assert_eq!(wal_segment_bytes(64 * MIB, 3 << 30), 6 * MIB);
        assert_eq!(wal_segment_bytes(64 << 10, 3 << 30), 64 << 10);
        assert_eq!(checkpoint_bytes(512 * MIB, 3 << 30, 2 << 30), 64 * MIB);
        assert_eq!(checkpoint_bytes(512 * MIB, u64::MAX, 2 << 30), 256 * MIB);
        assert_eq!(checkpoint_bytes(512 * MIB, u64::MAX, 0), 64 * MIB);
        assert_eq!(checkpoint_bytes(512 * MIB, u64::MAX, 1 << 40), 512 * MIB);
    }

    #[test]
    fn a_put_pauses_the_longer_the_less_is_left() {
        assert_eq!(pause_us(300, 100, 100), 0);
        assert_eq!(pause_us(200, 100, 100), 0);
        assert_eq!(pause_us(150, 100, 100), MOST_PAUSE_US / 4);
        assert_eq!(pause_us(100, 100, 100), MOST_PAUSE_US);
        assert_eq!(pause_us(0, 100, 100), MOST_PAUSE_US);
    }
}
