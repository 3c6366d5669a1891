//! Where a record is, in 64 bits: what the index keeps for a value.
//!
//! Invariant: the lower 20 bits hold the *allocated* length, so a location stays the same over an
//! update in place, and live bytes can be counted from it alone.

/// Records begin and end at multiples of this.
pub(crate) const RECORD_ALIGN: u64 = 16;
const LEN_BITS: u32 = 20;
/// The longest allocation that a location can name.
pub(crate) const MAX_ALLOCATED: u64 = ((1 << LEN_BITS) - 1) * RECORD_ALIGN;
/// Offsets are below this.
pub(crate) const MAX_OFFSET: u64 = (1 << (64 - LEN_BITS)) * RECORD_ALIGN;

/// Most bytes between two records that a scan reads over without another device read.
const NEAR_BYTES: u64 = 4 << 10;

/// The place of a record: global byte offset / 16 in the upper 44 bits, allocated length / 16 in
/// the lower 20. Never 0, for no record is empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Location(pub(crate) u64);

impl Location {
    /// `offset` and `allocated` are multiples of 16 within the limits above.
    pub(crate) fn new(offset: u64, allocated: u64) -> Self {
        debug_assert!(offset.is_multiple_of(RECORD_ALIGN) && offset < MAX_OFFSET);
        debug_assert!(allocated.is_multiple_of(RECORD_ALIGN) && allocated <= MAX_ALLOCATED);
        Self(((offset / RECORD_ALIGN) << LEN_BITS) | (allocated / RECORD_ALIGN))
    }

    /// Byte offset in the whole value log.
    pub(crate) fn offset(self) -> u64 {
        (self.0 >> LEN_BITS) * RECORD_ALIGN
    }

    /// Bytes set aside for the record, header and slack included.
    pub(crate) fn allocated(self) -> u64 {
        (self.0 & ((1 << LEN_BITS) - 1)) * RECORD_ALIGN
    }

    /// Whether it lies so close behind `previous` that one read of the device gets both.
    pub(crate) fn is_close_behind(self, previous: Self) -> bool {
        let end = previous.offset() + previous.allocated();
        (end..=end + NEAR_BYTES).contains(&self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_is_right_behind_or_a_page_further() {
        let first = Location::new(64, 64);
        let is_close = |offset| Location::new(offset, 64).is_close_behind(first);
        assert!(is_close(128) && is_close(128 + NEAR_BYTES));
        assert!(!is_close(144 + NEAR_BYTES) && !is_close(64) && !is_close(0));
    }

    #[test]
    fn keeps_both_numbers_up_to_their_limits() {
        for offset in [0, 16, 4096, MAX_OFFSET - 16] {
            for allocated in [16, 48, MAX_ALLOCATED] {
                let location = Location::new(offset, allocated);
                assert_eq!((location.offset(), location.allocated()), (offset, allocated));
            }
        }
    }
}
