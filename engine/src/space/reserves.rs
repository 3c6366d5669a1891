//! How much disk is kept for what must go on when it is full, how much dead space may lie on a disk
//! that is not, and how limits shrink with a small disk. Pure.
//!
//! Invariants: below the soft reserve no put is taken; the hard reserve, which is a part of it,
//! holds what reclaiming needs until space returns: copies, new index files beside the old ones,
//! and the log up to the commit. Whatever the disk has, a put that would make the files outgrow the
//! allowance is slowed down.

/// Sizes that the reserves follow from, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sizes {
    /// A segment of the value log.
    pub(crate) value_segment: u64,
    /// A segment of the log.
    pub(crate) wal_segment: u64,
    /// The index files that hold every entry, as of the last checkpoint.
    pub(crate) whole_index: u64,
    /// What a checkpoint that is under way has written of its index files.
    pub(crate) index_pending: u64,
    /// The log at which a checkpoint is due when space is short.
    pub(crate) checkpoint: u64,
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
    // of it once more, and what has been added since, which takes less there than in the log.
    let index = sizes.whole_index + sizes.whole_index / 8 + sizes.checkpoint / 2;
    // What is written of them is there already: it must not count twice.
    let index = index.saturating_sub(sizes.index_pending);
    let hard = 2 * sizes.value_segment + 2 * sizes.wal_segment + index + SMALL_FILES;
    // What puts may take before the next look: a segment for each kind of record.
    let soft = hard + 2 * sizes.value_segment + sizes.wal_segment;
    Reserves { soft, hard }
}

/// What happens when headroom gets short: headroom is what may still be written before puts are
/// refused, or before the files outgrow the allowance. In bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Limits {
    /// Puts are slowed down below it.
    pub(crate) slow_below: u64,
    /// Dead space is reclaimed below it; what the next checkpoint brings counts as headroom.
    pub(crate) reclaim_below: u64,
}

/// The limits for these sizes.
pub(crate) fn limits(sizes: &Sizes) -> Limits {
    let slow_below = sizes.value_segment + 2 * sizes.checkpoint;
    // Until a checkpoint frees what was emptied, records, copies and log all take space.
    let reclaim_below = slow_below + sizes.value_segment + 3 * sizes.checkpoint;
    Limits { slow_below, reclaim_below }
}

/// How large the files may become beside `live` bytes of values, on a disk with space to spare.
/// `other`: of index files, and of log that is kept for readers.
pub(crate) fn allowance(sizes: &Sizes, live: u64, other: u64) -> u64 {
    let least = live + live / 5 + limits(sizes).reclaim_below + 2 * sizes.wal_segment + other;
    (live + live / 100 * 48).max(least)
}

/// Longest pause of one put in the slow zone, in microseconds.
const MOST_PAUSE_US: u64 = 4000;

/// How long a put pauses with so much headroom, in microseconds: nothing above `slow_below`, and the
/// longest at the end.
pub(crate) fn pause_us(headroom: u64, slow_below: u64) -> u64 {
    let Some(missing) = slow_below.checked_sub(headroom) else { return 0 };
    let part = missing as f64 / slow_below.max(1) as f64;
    (part * part * MOST_PAUSE_US as f64) as u64
}

/// The smallest scaled value segment: holds the largest record.
const MIN_VALUE_SEGMENT: u64 = (8 << 20) + (64 << 10);
/// Segments are as small as they may be with no more of them than this on a full disk: a few are
/// always partly filled, free or in reserve, which is much beside a few gigabytes of data. Each is
/// mapped twice, and Linux lets a process have 65,530 mappings.
const MOST_SEGMENTS: u64 = 31_000;

/// Size of a new value segment on a disk of `total` bytes.
pub(crate) fn value_segment_bytes(wanted: u64, total: u64) -> u64 {
    wanted.min((total / MOST_SEGMENTS / 4096 * 4096).max(MIN_VALUE_SEGMENT))
}

/// Size of a log segment on a disk of `total` bytes.
pub(crate) fn wal_segment_bytes(wanted: u64, total: u64) -> u64 {
    value_segment_bytes(wanted, total).min((total / 1024 / 4096 * 4096).max(256 << 10))
}

/// Length of the log that makes a checkpoint due, on a disk of `total` bytes with `live` bytes of
/// values: a log that is long beside the values is disk that could hold more of them.
pub(crate) fn most_checkpoint_bytes(wanted: u64, total: u64, live: u64) -> u64 {
    wanted.min((total / 48).max(1 << 20)).min((live / 8).max(64 << 20))
}

/// The same when space is short: space that is freed comes back with a checkpoint only.
pub(crate) fn least_checkpoint_bytes(wanted: u64, total: u64, live: u64) -> u64 {
    wanted.min((total / 256).max(1 << 20)).min((live / 48).max(16 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const SIZES: Sizes = Sizes {
        value_segment: 64 * MIB,
        wal_segment: 16 * MIB,
        whole_index: 40 * MIB,
        index_pending: 0,
        checkpoint: 32 * MIB,
    };

    #[test]
    fn reserves_hold_copies_index_and_log() {
        let Reserves { soft, hard } = reserves(&SIZES);
        assert_eq!(hard, (128 + 32 + 45 + 16) * MIB + SMALL_FILES);
        assert_eq!(soft, hard + 144 * MIB);
        // As they are written.
        let written = |mib: u64| reserves(&Sizes { index_pending: mib * MIB, ..SIZES }).soft;
        assert_eq!(
            (written(20), written(61), written(99)),
            (soft - 20 * MIB, soft - 61 * MIB, soft - 61 * MIB)
        );
    }

    #[test]
    fn a_small_disk_gets_small_segments_and_a_large_one_what_was_asked_for() {
        assert_eq!(value_segment_bytes(64 * MIB, u64::MAX), 64 * MIB);
        assert_eq!(value_segment_bytes(64 * MIB, 2 << 40), 64 * MIB);
        let half = value_segment_bytes(64 * MIB, 500 << 30);
        assert!((16 * MIB..18 * MIB).contains(&half) && half.is_multiple_of(4096), "{half}");
        assert_eq!(value_segment_bytes(64 * MIB, 200 << 30), MIN_VALUE_SEGMENT);
        assert_eq!(value_segment_bytes(64 * MIB, 1 << 27), MIN_VALUE_SEGMENT);
        assert_eq!(wal_segment_bytes(64 * MIB, 3 << 30), 3 * MIB);
        assert_eq!(wal_segment_bytes(64 << 10, 3 << 30), 64 << 10);
    }

    #[test]
    fn the_log_is_short_beside_little_data_on_a_small_disk_and_shorter_when_space_is() {
        let most = |total, live| most_checkpoint_bytes(512 * MIB, total, live);
        assert_eq!(most(3 << 30, 2 << 30), 64 * MIB);
        assert_eq!(most(u64::MAX, 2 << 30), 256 * MIB);
        assert_eq!((most(u64::MAX, 0), most(u64::MAX, 1 << 40)), (64 * MIB, 512 * MIB));
        let least = |total, live| least_checkpoint_bytes(512 * MIB, total, live);
        assert_eq!(least(3 << 30, 2 << 30), 12 * MIB);
        assert_eq!(least(u64::MAX, 0), 16 * MIB);
        for (total, live) in [(1 << 28, 1 << 27), (3 << 30, 2 << 30), (1 << 40, 1 << 39)] {
            assert!(least(total, live) <= most(total, live));
        }
    }

    /// Of the disk that the files may take, what is neither live nor held up by the jobs is for dead
    /// bytes; with less than a fifth of the live bytes most of the work would be copies.
    #[test]
    fn the_allowance_leaves_room_for_dead_bytes() {
        let sizes = Sizes { value_segment: 16 * MIB, checkpoint: 46 * MIB, ..SIZES };
        for live in [0, 100 * MIB, 2000 * MIB, 200_000 * MIB] {
            let allowed = allowance(&sizes, live, 100 * MIB);
            let dead = allowed - live - limits(&sizes).reclaim_below - 100 * MIB;
            assert!(dead >= live / 5, "{live}: {dead}");
        }
        assert!(allowance(&sizes, 2000 * MIB, 100 * MIB) <= 2960 * MIB);
    }

    #[test]
    fn a_put_pauses_the_longer_the_less_is_left() {
        assert_eq!(pause_us(200, 100), 0);
        assert_eq!(pause_us(100, 100), 0);
        assert_eq!(pause_us(50, 100), MOST_PAUSE_US / 4);
        assert_eq!(pause_us(0, 100), MOST_PAUSE_US);
        assert_eq!(pause_us(0, 0), 0);
    }
}
