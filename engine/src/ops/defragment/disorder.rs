//! How far records lie from key order, and whether putting them in order pays. Pure.
//!
//! Invariants: records that a rewrite has just laid out one behind the other have no jumps but
//! where a segment ends, so a second look does not ask for a second rewrite; large records, which
//! a scan reads one by one at little more than their own cost, never ask for one.

use crate::jobs::order_policy::JUMP_BYTES;
use crate::value_log::Location;

/// What a scan over some records meets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Disorder {
    /// Records looked at.
    pub(super) records: u64,
    /// Bytes of those.
    pub(super) bytes: u64,
    /// Records that do not lie close behind the one with the key before.
    pub(super) jumps: u64,
}

impl Disorder {
    /// Of records in key order.
    pub(super) fn of(locations: &[Location]) -> Self {
        let is_jump = |pair: &&[Location]| !pair[1].is_close_behind(pair[0]);
        Self {
            records: locations.len() as u64,
            bytes: locations.iter().map(|location| location.allocated()).sum(),
            jumps: locations.windows(2).filter(is_jump).count() as u64,
        }
    }

    /// Whether scans pay so much for jumps, beside the bytes that they are after, that these
    /// bytes are worth a rewrite: at 1 KiB a record, from one jump in eight records on.
    pub(super) fn is_worth_a_rewrite(&self) -> bool {
        self.jumps.saturating_mul(JUMP_BYTES) > self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many records of `len` bytes, every `each`th far away from the one before.
    fn records(count: u64, len: u64, each: u64) -> Vec<Location> {
        let far = |number: u64| (number / each) << 20;
        (0..count).map(|number| Location::new(far(number) + number * len, len)).collect()
    }

    #[test]
    fn only_records_far_from_their_neighbours_are_jumps() {
        assert_eq!(Disorder::of(&[]), Disorder::default());
        let found = Disorder::of(&records(100, 1024, 10));
        assert_eq!(found, Disorder { records: 100, bytes: 100 << 10, jumps: 9 });
        let near = [Location::new(0, 64), Location::new(4096 + 64, 64)];
        assert_eq!(Disorder::of(&near).jumps, 0);
        let far = [Location::new(0, 64), Location::new(4096 + 80, 64)];
        assert_eq!(Disorder::of(&far).jumps, 1);
        let backward = [Location::new(64, 64), Location::new(0, 64)];
        assert_eq!(Disorder::of(&backward).jumps, 1);
    }

    #[test]
    fn a_rewrite_pays_for_many_jumps_between_small_records() {
        assert!(!Disorder::of(&[]).is_worth_a_rewrite());
        assert!(!Disorder::of(&records(1000, 1024, 1000)).is_worth_a_rewrite());
        assert!(!Disorder::of(&records(1000, 1024, 10)).is_worth_a_rewrite());
        assert!(Disorder::of(&records(1000, 1024, 5)).is_worth_a_rewrite());
        assert!(Disorder::of(&records(1000, 1024, 1)).is_worth_a_rewrite());
        assert!(!Disorder::of(&records(1000, 64 << 10, 1)).is_worth_a_rewrite());
    }
}
