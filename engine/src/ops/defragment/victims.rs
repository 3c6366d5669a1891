//! Which segments are worth emptying, and how many at once. Pure.
//!
//! Invariants: most dead bytes first, which for a given number of dead bytes is the least to copy;
//! a set's copies fit the batches that it is cut into, except that one segment alone always does.

use crate::value_log::SegmentUse;

/// What a choice is bounded by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// At least this part of a segment is dead, from 0 to 1.
    pub(super) min_dead_ratio: f64,
    /// Most live bytes of one batch.
    pub(super) batch_bytes: u64,
    /// Most batches of a set.
    pub(super) batches: usize,
    /// Most live bytes of all.
    pub(super) budget_bytes: u64,
}

/// Whether enough of a segment is dead.
pub(super) fn is_worth(segment: &SegmentUse, min_dead_ratio: f64) -> bool {
    let dead = segment.dead_bytes();
    dead > 0 && dead as f64 >= segment.used_bytes as f64 * min_dead_ratio
}

/// The next segments to empty, in batches.
pub(super) fn choose(mut candidates: Vec<SegmentUse>, limits: &Limits) -> Vec<Vec<SegmentUse>> {
    candidates.retain(|segment| is_worth(segment, limits.min_dead_ratio));
    // By number among equals, so that the choice is one.
    candidates.sort_by_key(|segment| (std::cmp::Reverse(segment.dead_bytes()), segment.number));
    let mut batches: Vec<Vec<SegmentUse>> = Vec::new();
    let (mut batch_bytes, mut all_bytes) = (0, 0);
    for segment in candidates {
        all_bytes += segment.live_bytes;
        if !batches.is_empty() && all_bytes > limits.budget_bytes {
            break;
        }
        batch_bytes += segment.live_bytes;
        let is_last = batches.len() == limits.batches;
        match batches.last_mut() {
            Some(batch) if batch_bytes <= limits.batch_bytes => batch.push(segment),
            _ if is_last => break,
            _ => {
                batch_bytes = segment.live_bytes;
                batches.push(vec![segment]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(number: u32, live_bytes: u64) -> SegmentUse {
        SegmentUse { number, used_bytes: 100, live_bytes }
    }

    const LIMITS: Limits =
        Limits { min_dead_ratio: 0.2, batch_bytes: 100, batches: 2, budget_bytes: u64::MAX };

    fn numbers(chosen: &[Vec<SegmentUse>]) -> Vec<Vec<u32>> {
        chosen.iter().map(|batch| batch.iter().map(|segment| segment.number).collect()).collect()
    }

    #[test]
    fn most_dead_first_and_nothing_that_is_hardly_dead() {
        let all = vec![segment(1, 90), segment(2, 60), segment(3, 10), segment(4, 81)];
        assert_eq!(numbers(&choose(all, &LIMITS)), [[3, 2]]);
        assert!(
            choose(vec![segment(1, 100)], &Limits { min_dead_ratio: 0.0, ..LIMITS }).is_empty()
        );
    }

    #[test]
    fn a_batch_fits_its_buffer_and_a_set_is_bounded() {
        let all: Vec<_> = (0..9).map(|number| segment(number, 50)).collect();
        assert_eq!(numbers(&choose(all.clone(), &LIMITS)), [[0, 1], [2, 3]]);
        let tight = Limits { budget_bytes: 120, ..LIMITS };
        assert_eq!(numbers(&choose(all.clone(), &tight)), [[0, 1]]);
        // One is always taken: else a large one would never be.
        let tiny = Limits { batch_bytes: 10, budget_bytes: 10, ..LIMITS };
        assert_eq!(numbers(&choose(all, &tiny)), [[0]]);
    }
}
