//! How many records may be moved at once to put them in key order. Pure.
//!
//! Invariant: copies take neither what is kept on the disk for others nor what slows writers down;
//! what they leave behind is dead space like any other, within the same allowance.

/// What a jump costs a scan, in bytes read from a device: about two pages that it reads around
/// the record.
pub(crate) const JUMP_BYTES: u64 = 8 << 10;
/// Most bytes of records of a slice, which is held in memory and moved at once.
const SLICE_BYTES: u64 = 32 << 20;
/// A slice of less is not worth its syncs.
pub(crate) const LEAST_SLICE_BYTES: u64 = 1 << 20;

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
