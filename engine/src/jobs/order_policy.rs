//! When the records of a shard are worth rewriting in key order, and how much at once. Pure.
//!
//! A rewrite is due when scans have paid for jumps what it would cost: until then they might stop,
//! and what they have paid is at most as much again. Updates undo the order, so each record that a
//! rewrite moved has to be paid for once more, by a change of the shard.
//!
//! Invariants:
//! - over time no more is rewritten than scans have lost to jumps, nor, beside each record once
//!   or twice, than has been changed, however scans and updates mix;
//! - copies take neither what is kept on the disk for others nor what slows writers down; what
//!   they leave behind is dead space like any other, within the same allowance.

use std::time::Duration;

/// What a jump costs a scan, in bytes read from a device: about two pages that it reads around
/// the record.
pub(crate) const JUMP_BYTES: u64 = 8 << 10;
/// Less than this, lost to jumps, is not worth any work.
const LEAST_PAID_BYTES: u64 = 8 << 20;
/// No record is smaller: of more entries than that some have their values in the index.
const LEAST_RECORD_BYTES: u64 = 48;
/// Least time from the end of a rewrite of a shard to the next one.
const BETWEEN: Duration = Duration::from_secs(60);
/// Most bytes of records of a slice, which is held in memory and moved at once.
const SLICE_BYTES: u64 = 32 << 20;
/// A slice of less is not worth its syncs.
pub(crate) const LEAST_SLICE_BYTES: u64 = 1 << 20;

/// A shard that scans have gone over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Scanned {
    /// Jumps at which scans waited for the disk, since the last rewrite.
    pub(crate) jumps: u64,
    /// Bytes of its live records.
    pub(crate) bytes: u64,
    /// Entries of its index.
    pub(crate) entries: u64,
    /// Records moved by rewrites that no change has paid for.
    pub(crate) unpaid: u64,
    /// How long ago the last rewrite ended; `None`: there was none.
    pub(crate) since_last: Option<Duration>,
}

impl Scanned {
    /// What jumps have cost its scans, in bytes.
    fn paid_bytes(&self) -> u64 {
        self.jumps.saturating_mul(JUMP_BYTES)
    }

    /// What a rewrite costs at most: a jump for each record, and each byte read and written.
    fn cost_bytes(&self) -> u64 {
        let records = self.entries.min(self.bytes / LEAST_RECORD_BYTES);
        records.saturating_mul(JUMP_BYTES).saturating_add(self.bytes.saturating_mul(2))
    }

    /// How often its scans have paid for a rewrite.
    fn times_paid(&self) -> f64 {
        self.paid_bytes() as f64 / self.cost_bytes().max(1) as f64
    }
}

/// Whether a shard's records should be put in order.
pub(crate) fn is_due(shard: &Scanned) -> bool {
    let has_paid = shard.paid_bytes() >= shard.cost_bytes().max(LEAST_PAID_BYTES);
    // A rewrite that was cut short may be ended without it; one of nearly all of them may not.
    let is_changed = shard.unpaid <= shard.entries / 4 * 3;
    let is_quiet = shard.since_last.is_none_or(|time| time >= BETWEEN);
    has_paid && is_changed && is_quiet
}

/// Of the shards that are due, the number of the one whose scans have paid most beside the cost.
pub(crate) fn choose(shards: &[Scanned]) -> Option<usize> {
    let due = shards.iter().enumerate().filter(|(_, shard)| is_due(shard));
    let most = due.max_by(|one, other| one.1.times_paid().total_cmp(&other.1.times_paid()));
    most.map(|(number, _)| number)
}

/// The space that copies may take, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Room {
    /// What the disk has beside its reserve.
    pub(crate) beside_reserve: u64,
    /// What may be written before puts are refused, or the files outgrow the allowance.
    pub(crate) headroom: u64,
    /// Below so much of either puts are slowed down.
    pub(crate) slow_below: u64,
    /// Dead bytes of the value log.
    pub(crate) dead: u64,
    /// One of its segments.
    pub(crate) segment: u64,
}

/// Most bytes of records that may be moved next; `None`: space is too short for any.
pub(crate) fn slice_bytes(room: &Room) -> Option<u64> {
    // Copies open a segment more than they fill.
    let by_disk = room.beside_reserve.saturating_sub(room.slow_below + 2 * room.segment);
    let by_allowance = room.headroom.saturating_sub(room.slow_below + room.segment);
    // Of so little dead space nothing could be reclaimed: segments fill up one by one.
    let as_waste = (2 * room.segment).saturating_sub(room.dead);
    let bytes = by_disk.min(by_allowance.max(as_waste)).min(SLICE_BYTES);
    (bytes >= LEAST_SLICE_BYTES).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// 64 Ki records of 1 KiB: a rewrite costs 512 MiB of jumps and 128 MiB of bytes.
    const SHARD: Scanned = Scanned {
        jumps: 80 << 10,
        bytes: 64 * MIB,
        entries: 64 << 10,
        unpaid: 0,
        since_last: None,
    };

    #[test]
    fn a_rewrite_is_due_once_scans_have_paid_its_price() {
        assert!(is_due(&SHARD));
        assert!(!is_due(&Scanned { jumps: SHARD.jumps - 1, ..SHARD }));
        assert!(!is_due(&Scanned::default()), "nothing was scanned");
        // Few records: not for some jumps.
        let small = Scanned { entries: 2, bytes: 2048, jumps: 1023, ..SHARD };
        assert!(!is_due(&small) && is_due(&Scanned { jumps: 1024, ..small }));
        // Most values in the index: they have no place that matters.
        let inline = Scanned { entries: 64 << 20, bytes: 48 << 10, jumps: 1040, ..SHARD };
        assert!(is_due(&inline));
        assert!(!is_due(&Scanned { jumps: u64::MAX / JUMP_BYTES, bytes: u64::MAX, ..SHARD }));
    }

    #[test]
    fn not_soon_after_the_last_one_nor_before_much_has_changed() {
        let after =
            |seconds| is_due(&Scanned { since_last: Some(Duration::from_secs(seconds)), ..SHARD });
        assert!(!after(59) && after(60));
        let unpaid = |part: u64| is_due(&Scanned { unpaid: SHARD.entries / 8 * part, ..SHARD });
        assert!(unpaid(6) && !unpaid(7));
    }

    #[test]
    fn the_shard_that_pays_most_comes_first() {
        let twice = Scanned { jumps: 2 * SHARD.jumps, ..SHARD };
        let large = Scanned { bytes: 4 * SHARD.bytes, entries: 4 * SHARD.entries, ..twice };
        let recent = Scanned { since_last: Some(Duration::ZERO), jumps: 1 << 40, ..SHARD };
        assert_eq!(choose(&[SHARD, twice, large, recent]), Some(1));
        assert_eq!(choose(&[large, recent]), None);
    }

    /// Every scan is cold and every update random, for ever.
    #[test]
    fn updates_do_not_make_it_run_for_ever() {
        let entries = SHARD.entries;
        for changes in [0, 10, 1000, entries, 10 * entries] {
            let (mut unpaid, mut moved, mut scanned, mut paid) = (0u64, 0, 0, 0);
            for minute in 0..1000 {
                unpaid = unpaid.saturating_sub(if minute == 0 { 0 } else { changes });
                // Also of records that lie well already: the worst case.
                paid += entries / 2;
                scanned += entries / 2;
                let since_last = (moved > 0).then_some(BETWEEN);
                if is_due(&Scanned { jumps: paid, unpaid, since_last, ..SHARD }) {
                    (moved, unpaid, paid) = (moved + entries, unpaid + entries, 0);
                }
            }
            let most = (2 * entries + 1000 * changes).min(scanned);
            assert!(moved >= entries && moved <= most, "{changes}: {moved} of {most}");
        }
    }

    const ROOM: Room = Room {
        beside_reserve: 1000 * MIB,
        headroom: 500 * MIB,
        slow_below: 100 * MIB,
        dead: 200 * MIB,
        segment: 16 * MIB,
    };

    #[test]
    fn copies_end_before_writers_are_slowed() {
        assert_eq!(slice_bytes(&ROOM), Some(SLICE_BYTES));
        let with = |headroom| slice_bytes(&Room { headroom: headroom * MIB, ..ROOM });
        assert_eq!((with(126), with(117), with(116)), (Some(10 * MIB), Some(MIB), None));
        let disk = |beside| {
            let beside_reserve = beside * MIB;
            slice_bytes(&Room { beside_reserve, headroom: beside_reserve, ..ROOM })
        };
        assert_eq!((disk(133), disk(132)), (Some(MIB), None));
        assert_eq!(slice_bytes(&Room::default()), None);
    }

    #[test]
    fn hardly_any_dead_space_is_nothing_to_wait_for() {
        let young = Room { headroom: 0, dead: 20 * MIB, ..ROOM };
        assert_eq!(slice_bytes(&young), Some(12 * MIB));
        assert_eq!(slice_bytes(&Room { dead: 32 * MIB, ..young }), None);
        // But never on a full disk.
        assert_eq!(slice_bytes(&Room { beside_reserve: 0, ..young }), None);
    }
}
