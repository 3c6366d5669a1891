//! Which segments are worth emptying, and how many at once. Pure.
//!
//! Invariants: most dead bytes first, which for a given number of dead bytes is the least to copy;
//! the copies of a choice fit a batch, except that one segment alone always does.

use crate::value_log::SegmentUse;

/// What a choice is bounded by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// At least this part of a segment is dead, from 0 to 1.
    pub(super) min_dead_ratio: f64,
    /// Most live bytes of a batch.
    pub(super) batch_bytes: u64,
}

/// Whether enough of a segment is dead.
pub(super) fn is_worth(segment: &SegmentUse, min_dead_ratio: f64) -> bool {
    let dead = segment.dead_bytes();
    dead > 0 && dead as f64 >= segment.used_bytes as f64 * min_dead_ratio
}

/// The next segments to empty.
pub(super) fn choose(mut candidates: Vec<SegmentUse>, limits: &Limits) -> Vec<SegmentUse> {
    candidates.retain(|segment| is_worth(segment, limits.min_dead_ratio));
    // By number among equals, so that the choice is one.
    candidates.sort_by_key(|segment| (std::cmp::Reverse(segment.dead_bytes()), segment.number));
    let mut bytes = 0;
    let mut is_first = true;
    let mut fits = |segment: &SegmentUse| {
        bytes += segment.live_bytes;
        std::mem::take(&mut is_first) || bytes <= limits.batch_bytes
    };
    let count = candidates.iter().take_while(|segment| fits(segment)).count();
    candidates.truncate(count);
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(number: u32, live_bytes: u64) -> SegmentUse {
        SegmentUse { number, used_bytes: 100, live_bytes }
    }

    const LIMITS: Limits = Limits { min_dead_ratio: 0.2, batch_bytes: 100 };

    fn numbers(chosen: &[SegmentUse]) -> Vec<u32> {
        chosen.iter().map(|segment| segment.number).collect()
    }

    #[test]
    fn most_dead_first_and_nothing_that_is_hardly_dead() {
        let all = vec![segment(1, 90), segment(2, 60), segment(3, 10), segment(4, 81)];
        assert_eq!(numbers(&choose(all, &LIMITS)), [3, 2]);
        assert!(
            choose(vec![segment(1, 100)], &Limits { min_dead_ratio: 0.0, ..LIMITS }).is_empty()
        );
    }

    #[test]
    fn a_batch_fits_its_buffer_but_one_segment_is_always_taken() {
        let all: Vec<_> = (0..9).map(|number| segment(number, 50)).collect();
        assert_eq!(numbers(&choose(all.clone(), &LIMITS)), [0, 1]);
        // Else a large one would never be.
        assert_eq!(numbers(&choose(all, &Limits { batch_bytes: 10, ..LIMITS })), [0]);
    }
}
