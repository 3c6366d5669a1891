//! When background work is due, and when writers are slowed: pure functions of sizes.
//!
//! Invariant: no clock, no I/O, no state.

use crate::jobs::pace::POLITE;

/// Entries of an append region that a scan may have to go over without a merge being asked for.
const SCANNED_ENTRIES: usize = 1 << 14;
/// A merge for a scan's sake waits until a part like this of the shard is recent, so that each key
/// is merged a bounded number of times.
const SCANNED_PART: usize = 64;
/// A merge for memory's sake must have a part like this of the shard to gain from, and so many
/// entries: else one insert after the other would ask for one.
const MEMORY_PART: usize = 16;
const MEMORY_ENTRIES: usize = 64;
/// Deletes that no index file has yet, and their part of the shard, for whose sake a checkpoint is
/// made early: only then a merge drops them, and until then scans have to pass them.
const WAITING_DELETES: usize = 1 << 16;
const WAITING_PART: usize = 4;
/// Parts of the new append region between which a merge gets ever more urgent.
const MERGE_POLITE_UNTIL: f64 = 0.25;
const MERGE_URGENT_FROM: f64 = 0.5;
/// Times the limit that made a checkpoint due between which it gets ever more urgent.
const LOG_POLITE_UNTIL: f64 = 1.25;
const LOG_URGENT_FROM: f64 = 1.75;
/// The least part of the time while other jobs wait.
const OTHERS_WAIT: f64 = 0.5;
/// The longest pause of a slowed writer.
const SLOWEST_US: u64 = 1000;

/// The sizes of a shard's regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardSizes {
    /// Entries of the append region.
    pub(crate) append_entries: usize,
    /// Most of them.
    pub(crate) append_capacity: usize,
    /// Entries of the sorted region.
    pub(crate) sorted_entries: usize,
    /// Of these, tombstones.
    pub(crate) sorted_tombstones: usize,
    /// A scan went over the append region.
    pub(crate) scanned: bool,
    /// An earlier append region is being merged.
    pub(crate) frozen: bool,
}

/// Why a shard's append region should be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reorganize {
    /// It is half full: writers are to meet its end only when they outrun the merge.
    Filling,
    /// It is large for the scans that go over it.
    Scanned,
    /// Memory is short, and the merge frees some: an entry takes less in a sorted region, and a
    /// tombstone nothing.
    Memory,
}

/// Whether a merge is due, and why.
pub(crate) fn reorganize_is_due(sizes: &ShardSizes, memory_full: bool) -> Option<Reorganize> {
    let ShardSizes { append_entries, append_capacity, sorted_entries, .. } = *sizes;
    if append_entries * 2 >= append_capacity {
        return Some(Reorganize::Filling);
    }
    if sizes.scanned && append_entries >= SCANNED_ENTRIES.max(sorted_entries / SCANNED_PART) {
        return Some(Reorganize::Scanned);
    }
    let gain = append_entries + sizes.sorted_tombstones;
    if memory_full && gain >= MEMORY_ENTRIES.max(sorted_entries / MEMORY_PART) {
        return Some(Reorganize::Memory);
    }
    None
}

/// How long a writer pauses after its write, in microseconds: from three quarters of the append
/// region on, ever longer towards its end, and only while the merge runs that the end is waiting
/// for.
pub(crate) fn writer_pause_us(sizes: &ShardSizes) -> u64 {
    let quarter = (sizes.append_capacity / 4).max(1) as u64;
    let above = (sizes.append_entries as u64).saturating_sub(3 * quarter).min(quarter);
    if !sizes.frozen || above == 0 {
        return 0;
    }
    // The square: gentle at first.
    (SLOWEST_US * above / quarter * above / quarter).max(1)
}

/// The part of the time that the merge of a frozen shard may take beside others: little, until its
/// new append region fills up, memory or disk is short (a checkpoint may wait for the shard), or other
/// jobs wait for the thread.
pub(crate) fn merge_duty(
    append_entries: usize,
    append_capacity: usize,
    short: bool,
    others_wait: bool,
) -> f64 {
    if short {
        return 1.0;
    }
    let filled = append_entries as f64 / append_capacity.max(1) as f64;
    // All of it before the next merge is due, and well before writers are slowed.
    let duty = ramp(filled, MERGE_POLITE_UNTIL, MERGE_URGENT_FROM);
    if others_wait { duty.max(OTHERS_WAIT) } else { duty }
}

/// The part of the time that a checkpoint may take beside others: little, until the log has grown
/// well beyond what made the checkpoint due, or the disk gets tight.
pub(crate) fn checkpoint_duty(
    log_bytes: u64,
    limit_bytes: u64,
    disk_tight: bool,
    others_wait: bool,
) -> f64 {
    if disk_tight {
        return 1.0;
    }
    let grown = log_bytes as f64 / limit_bytes.max(1) as f64;
    let duty = ramp(grown, LOG_POLITE_UNTIL, LOG_URGENT_FROM);
    if others_wait { duty.max(OTHERS_WAIT) } else { duty }
}

/// [`POLITE`] up to `from`, all of the time from `to` on.
fn ramp(at: f64, from: f64, to: f64) -> f64 {
    let part = ((at - from) / (to - from)).clamp(0.0, 1.0);
    POLITE + (1.0 - POLITE) * part
}

/// Whether the memory of all indexes is counted anew after a write that made an append region grow
/// by `grown` to `append_entries`: after a number of entries that grows with what a count costs.
pub(crate) fn recount_is_due(append_entries: usize, grown: usize, shards: usize) -> bool {
    let stride = (2 * shards).max(64).next_power_of_two();
    append_entries / stride != append_entries.saturating_sub(grown) / stride
}

/// Whether a checkpoint is due after a merge that left `tombstones` among `entries`, since no index
/// file has them yet.
pub(crate) fn deletes_want_checkpoint(
    tombstones: usize,
    entries: usize,
    memory_full: bool,
) -> bool {
    let (least, part) = match memory_full {
        true => (MEMORY_ENTRIES, MEMORY_PART),
        false => (WAITING_DELETES, WAITING_PART),
    };
    tombstones >= least.max(entries / part)
}

/// A checkpoint is due when replay would read more than `limit_bytes` of log, or write more than
/// that to the value log.
pub(crate) fn checkpoint_is_due(log_bytes: u64, tail_bytes: u64, limit_bytes: u64) -> bool {
    log_bytes.max(tail_bytes) > limit_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_is_polite_until_somebody_waits_for_it() {
        assert_eq!(merge_duty(0, 1000, false, false), POLITE);
        assert_eq!(merge_duty(250, 1000, false, false), POLITE);
        assert!(merge_duty(300, 1000, false, false) > POLITE);
        assert_eq!(merge_duty(500, 1000, false, false), 1.0);
        assert_eq!(merge_duty(0, 1000, true, false), 1.0);
        assert_eq!(merge_duty(0, 1000, false, true), OTHERS_WAIT);
        assert_eq!(merge_duty(0, 0, false, false), POLITE);
    }

    #[test]
    fn a_checkpoint_is_polite_until_the_log_is_long_or_the_disk_tight() {
        assert_eq!(checkpoint_duty(100, 100, false, false), POLITE);
        assert_eq!(checkpoint_duty(125, 100, false, false), POLITE);
        let later = checkpoint_duty(150, 100, false, false);
        assert!(later > POLITE && later < 1.0, "{later}");
        assert_eq!(checkpoint_duty(175, 100, false, false), 1.0);
        assert_eq!(checkpoint_duty(0, 100, true, false), 1.0);
        assert_eq!(checkpoint_duty(0, 100, false, true), OTHERS_WAIT);
    }

    fn sizes(append_entries: usize, append_capacity: usize) -> ShardSizes {
        ShardSizes { append_entries, append_capacity, ..ShardSizes::default() }
    }

    #[test]
    fn due_at_the_limits_and_not_before() {
        assert_eq!(reorganize_is_due(&sizes(49, 100), false), None);
        assert_eq!(reorganize_is_due(&sizes(50, 100), false), Some(Reorganize::Filling));
        assert!(!checkpoint_is_due(100, 100, 100));
        assert!(checkpoint_is_due(101, 0, 100));
        assert!(checkpoint_is_due(0, 101, 100));
    }

    #[test]
    fn a_scanned_shard_is_merged_earlier_but_not_for_a_few_entries() {
        let scanned = |append, sorted| {
            let sizes = sizes(append, 1 << 20);
            let sizes = ShardSizes { scanned: true, sorted_entries: sorted, ..sizes };
            reorganize_is_due(&sizes, false)
        };
        assert_eq!(scanned(SCANNED_ENTRIES - 1, 0), None);
        assert_eq!(scanned(SCANNED_ENTRIES, 0), Some(Reorganize::Scanned));
        assert_eq!(reorganize_is_due(&sizes(SCANNED_ENTRIES, 1 << 20), false), None);
        assert_eq!(scanned(SCANNED_ENTRIES, 4_000_000), None);
        assert_eq!(scanned(62_500, 4_000_000), Some(Reorganize::Scanned));
    }

    #[test]
    fn short_memory_merges_what_it_gains_from() {
        let full = |append, tombstones, sorted| {
            let sizes = sizes(append, 1 << 20);
            let sizes =
                ShardSizes { sorted_tombstones: tombstones, sorted_entries: sorted, ..sizes };
            reorganize_is_due(&sizes, true)
        };
        assert_eq!(full(63, 0, 0), None);
        assert_eq!(full(64, 0, 0), Some(Reorganize::Memory));
        assert_eq!(full(0, 64, 100), Some(Reorganize::Memory));
        assert_eq!(full(50, 50, 1600), Some(Reorganize::Memory));
        assert_eq!(full(50, 49, 1600), None);
    }

    #[test]
    fn writers_are_slowed_only_near_the_end_of_a_region_that_cannot_be_swapped() {
        let pause =
            |entries, frozen| writer_pause_us(&ShardSizes { frozen, ..sizes(entries, 1000) });
        assert_eq!(pause(750, true), 0);
        assert_eq!(pause(1000, false), 0);
        assert_eq!(pause(751, true), 1);
        assert!(pause(800, true) < pause(900, true));
        assert_eq!(pause(1000, true), SLOWEST_US);
        assert_eq!(pause(2000, true), SLOWEST_US);
        assert_eq!(writer_pause_us(&ShardSizes { frozen: true, ..sizes(0, 0) }), 0);
    }

    #[test]
    fn memory_is_counted_after_every_few_inserts() {
        assert!(recount_is_due(64, 1, 1) && recount_is_due(128, 1, 32));
        assert!(!recount_is_due(65, 1, 1) && recount_is_due(65, 2, 1) && !recount_is_due(64, 0, 1));
        assert!(!recount_is_due(64, 1, 33) && recount_is_due(128, 1, 64));
    }

    #[test]
    fn many_deletes_or_little_memory_bring_a_checkpoint() {
        assert!(!deletes_want_checkpoint(WAITING_DELETES - 1, WAITING_DELETES, false));
        assert!(deletes_want_checkpoint(WAITING_DELETES, WAITING_DELETES, false));
        assert!(!deletes_want_checkpoint(WAITING_DELETES, 5 * WAITING_DELETES, false));
        assert!(deletes_want_checkpoint(1000, 16_000, true));
        assert!(!deletes_want_checkpoint(999, 16_000, true));
        assert!(!deletes_want_checkpoint(63, 100, true));
        assert!(!deletes_want_checkpoint(0, 0, true));
    }
}
