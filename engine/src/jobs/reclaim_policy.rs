//! When dead bytes of the value log are worth the work, and how hard to work. Pure.
//!
//! Invariants: with disk to spare, files of values and log stay within about one and a half times
//! the live bytes; on a tight disk everything that can be freed is, most dead bytes first.

/// Sizes at one moment, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Situation {
    /// Live bytes of the value log.
    pub(crate) live: u64,
    /// Dead bytes of it.
    pub(crate) dead: u64,
    /// Of those, what lies in segments that can be emptied and is at least [`LEAST_RATIO`] of them.
    pub(crate) reclaimable: u64,
    /// Segments without live bytes, which the next checkpoint frees.
    pub(crate) emptied: u64,
    /// Files of value log and log.
    pub(crate) files: u64,
    /// One segment of the value log.
    pub(crate) segment: u64,
    /// What is left on the disk, what puts need at least, and below what it is tight.
    pub(crate) available: u64,
    pub(crate) soft_reserve: u64,
    pub(crate) tight_below: u64,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Step {
    /// Nothing.
    Nothing,
    /// Free what is empty, and make what is dead in the tail reclaimable.
    Checkpoint,
    /// Empty segments.
    Defragment {
        /// The least part that is dead.
        min_dead_ratio: f64,
        /// About the most to copy.
        max_bytes: u64,
        /// The part of the time that may be spent working while others work, above 0 to 1.
        duty: f64,
    },
}

/// A segment less dead than this is not worth it even on a tight disk.
pub(crate) const LEAST_RATIO: f64 = 0.03;
/// Most bytes copied between two looks.
const MOST_BYTES: u64 = 64 << 20;
/// Dead bytes of all bytes, in percent, that are left alone.
const DEAD_PERCENT: u64 = 18;
/// The same when the files are large beside what is live.
const DEAD_PERCENT_LARGE: u64 = 8;
/// Files are large from this percentage of the live bytes on.
const LARGE_PERCENT: u64 = 140;

/// What to do next.
pub(crate) fn decide(now: &Situation) -> Step {
    if now.available < now.tight_below { tight(now) } else { roomy(now) }
}

fn tight(now: &Situation) -> Step {
    let refused = now.available < now.soft_reserve;
    if now.emptied >= if refused { now.segment } else { 4 * now.segment } {
        return Step::Checkpoint;
    }
    if now.reclaimable >= now.segment / 8 {
        // The copies must fit, and leave the log some.
        let max_bytes = (now.available / 2).clamp(now.segment, MOST_BYTES);
        return Step::Defragment { min_dead_ratio: LEAST_RATIO, max_bytes, duty: 1.0 };
    }
    // What is dead is in the tail, or in what has just been emptied.
    if now.emptied > 0 || now.dead >= now.segment { Step::Checkpoint } else { Step::Nothing }
}

fn roomy(now: &Situation) -> Step {
    let used = now.live + now.dead;
    if now.emptied >= (now.live / 16).max(4 * now.segment) {
        return Step::Checkpoint;
    }
    let is_large = now.files.saturating_mul(100) > now.live.saturating_mul(LARGE_PERCENT);
    let percent = if is_large { DEAD_PERCENT_LARGE } else { DEAD_PERCENT };
    let is_due = now.dead.saturating_mul(100) > used.saturating_mul(percent);
    if !is_due || now.dead < 2 * now.segment || now.reclaimable < now.segment {
        return Step::Nothing;
    }
    // From a quarter of the time just above the limit to all of it a tenth of the bytes later.
    let dead_percent = now.dead as f64 * 100.0 / used.max(1) as f64;
    let duty = (0.25 + (dead_percent - percent as f64) * 0.075).clamp(0.25, 1.0);
    Step::Defragment { min_dead_ratio: 0.05, max_bytes: MOST_BYTES, duty }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ROOMY: Situation = Situation {
        live: 1000 * MIB,
        dead: 100 * MIB,
        reclaimable: 90 * MIB,
        emptied: 0,
        files: 1200 * MIB,
        segment: 16 * MIB,
        available: 5000 * MIB,
        soft_reserve: 200 * MIB,
        tight_below: 400 * MIB,
    };

    #[test]
    fn with_disk_to_spare_some_dead_bytes_are_left_alone() {
        assert_eq!(decide(&ROOMY), Step::Nothing);
        let more = Situation { dead: 300 * MIB, reclaimable: 290 * MIB, ..ROOMY };
        let Step::Defragment { duty, .. } = decide(&more) else { panic!("{:?}", decide(&more)) };
        assert!((0.25..1.0).contains(&duty), "{duty}");
        let much = Situation { dead: 900 * MIB, ..more };
        assert!(matches!(decide(&much), Step::Defragment { duty: 1.0, .. }));
        let large = Situation { files: 1500 * MIB, ..ROOMY };
        assert!(matches!(decide(&large), Step::Defragment { .. }));
        // In the tail: a checkpoint will come by itself.
        assert_eq!(decide(&Situation { reclaimable: 0, ..more }), Step::Nothing);
        assert_eq!(decide(&Situation { emptied: 100 * MIB, ..more }), Step::Checkpoint);
    }

    #[test]
    fn on_a_tight_disk_everything_is_freed() {
        let tight = Situation { available: 300 * MIB, ..ROOMY };
        let Step::Defragment { max_bytes, duty, .. } = decide(&tight) else { panic!("idle") };
        assert!(max_bytes <= 150 * MIB && duty >= 1.0);
        assert_eq!(decide(&Situation { emptied: 64 * MIB, ..tight }), Step::Checkpoint);
        let refused = Situation { available: 100 * MIB, emptied: 16 * MIB, ..ROOMY };
        assert_eq!(decide(&refused), Step::Checkpoint);
        let tail = Situation { reclaimable: 0, ..tight };
        assert_eq!(decide(&tail), Step::Checkpoint);
        assert_eq!(decide(&Situation { dead: MIB, ..tail }), Step::Nothing);
    }
}
