//! Where in a segment the next record goes. Pure.
//!
//! A record of at most one page does not cross a page if the rest of the page is at most
//! [`MAX_WASTE`]; otherwise it does, and larger ones are packed. Thus at most 1/16 of any page is
//! wasted. Measured (the test prints it): records of 1072 B (1 KiB values, 16 B keys) waste 0.6 %
//! and 21 % of them cross a page; if none did, 21 % of the space were wasted.

use super::location::RECORD_ALIGN;

/// The unit of the page cache and of base lengths.
pub(super) const PAGE: u64 = 4096;
/// Most bytes left unused at the end of a page.
const MAX_WASTE: u64 = PAGE / 16;

/// The start of a record of `len` bytes in a segment whose tail is at `tail`; `None` when the
/// segment has no room for it. Both are multiples of 16.
pub(super) fn place(tail: u64, len: u64, segment_bytes: u64) -> Option<u64> {
    debug_assert!(tail.is_multiple_of(RECORD_ALIGN) && len.is_multiple_of(RECORD_ALIGN));
    let left = tail.next_multiple_of(PAGE) - tail;
    let skip = len <= PAGE && len > left && left <= MAX_WASTE;
    let start = if skip { tail + left } else { tail };
    (start + len <= segment_bytes).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::testing::SeededRandom;

    const SEGMENT: u64 = 16 << 20;

    struct Filled {
        waste: f64,
        crossing: f64,
    }

    fn fill(mut len: impl FnMut() -> u64) -> Filled {
        let (mut tail, mut used, mut records, mut crossing) = (PAGE, 0, 0u32, 0u32);
        loop {
            let len = len();
            let Some(start) = place(tail, len, SEGMENT) else { break };
            assert!(start >= tail && start - tail <= MAX_WASTE);
            assert!(start.is_multiple_of(RECORD_ALIGN) && start + len <= SEGMENT);
            let crosses = start / PAGE != (start + len - 1) / PAGE;
            assert!(start == tail || (!crosses && len <= PAGE));
            crossing += u32::from(crosses);
            records += 1;
            used += len;
            tail = start + len;
        }
        let waste = 1.0 - used as f64 / (tail - PAGE) as f64;
        Filled { waste, crossing: f64::from(crossing) / f64::from(records) }
    }

    #[test]
    fn wastes_at_most_a_sixteenth_whatever_the_sizes() {
        for len in (48..=8192).step_by(16) {
            assert!(fill(|| len).waste <= 1.0 / 16.0, "{len}");
        }
        let mut random = SeededRandom(5);
        for limit in [8, 64, 256, 300, 5000] {
            let filled = fill(|| 48 + 16 * random.below(limit));
            assert!(filled.waste <= 1.0 / 16.0, "{limit}");
        }
    }

    #[test]
    fn one_kibibyte_values_do_not_waste_the_page() {
        for (name, len) in [("100 B", 160), ("1 KiB", 1072), ("4 KiB", 4144)] {
            let filled = fill(|| len);
            println!("{name}: wasted {:.4}, crossing {:.3}", filled.waste, filled.crossing);
            assert!(filled.waste < 0.03, "{name}");
        }
        // A record that fits a page exactly never crosses.
        assert!(fill(|| PAGE).crossing < 1e-9);
    }

    #[test]
    fn a_segment_is_used_to_its_end() {
        assert_eq!(place(SEGMENT - 48, 48, SEGMENT), Some(SEGMENT - 48));
        assert_eq!(place(SEGMENT - 48, 64, SEGMENT), None);
        assert_eq!(place(SEGMENT, 48, SEGMENT), None);
        assert_eq!(place(PAGE, SEGMENT - PAGE, SEGMENT), Some(PAGE));
    }
}
