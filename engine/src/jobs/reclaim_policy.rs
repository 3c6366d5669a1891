//! When dead bytes of the value log are worth the work, and how hard to work. Pure.
//!
//! Dead space is reclaimed just in time, for the longer a segment waits the more of it is dead and the
//! less has to be copied. What there is to write into before puts are refused, or before the files
//! outgrow their allowance, is the headroom; on a full disk and on one with space to spare the rules
//! are the same.
//!
//! Invariants: nothing is copied while there is headroom enough, counting what the next checkpoint
//! brings; most dead bytes first; the work gets all of the time before puts have to be slowed down;
//! of the reserve it takes no more than two segments before a checkpoint gives some back.

/// Sizes at one moment, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Situation {
    /// Dead bytes of the value log.
    pub(crate) dead: u64,
    /// Of those, what lies in segments that can be emptied and is at least [`LEAST_RATIO`] of them.
    pub(crate) reclaimable: u64,
    /// Segments without live bytes, which the next checkpoint frees.
    pub(crate) emptied: u64,
    /// Log since the last checkpoint; the next one gives back what of it is whole segments.
    pub(crate) log: u64,
    pub(crate) log_segment: u64,
    /// Values since the last checkpoint: the next one makes what is dead of them reclaimable.
    pub(crate) tail: u64,
    /// One segment of the value log.
    pub(crate) segment: u64,
    /// What may be written before puts are refused, or the files outgrow the allowance.
    pub(crate) headroom: u64,
    /// Below so much of it puts are slowed down.
    pub(crate) slow_below: u64,
    /// Below so much of it dead space is reclaimed.
    pub(crate) reclaim_below: u64,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Step {
    /// Ask for a checkpoint: it frees what is empty, and makes what is dead in the tail reclaimable.
    pub(crate) checkpoint: bool,
    /// Empty segments meanwhile.
    pub(crate) defragment: Option<Defragment>,
}

/// How to empty segments.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Defragment {
    /// The least part that is dead.
    pub(crate) min_dead_ratio: f64,
    /// About the most to copy.
    pub(crate) max_bytes: u64,
    /// The part of the time that may be spent working while others work, above 0 to 1.
    pub(crate) duty: f64,
}

/// A segment less dead than this is not worth it even on a full disk.
pub(crate) const LEAST_RATIO: f64 = 0.03;
/// The part of the time that is spent when headroom has just become short.
const LEAST_DUTY: f64 = 0.25;

/// What to do next.
pub(crate) fn decide(now: &Situation) -> Step {
    let is_slow = now.headroom < now.slow_below;
    // Segments fill up one by one: less than one is no gain.
    let worth = if now.headroom < now.slow_below / 2 { 1 } else { now.segment };
    let frees = is_slow && now.emptied >= worth || now.emptied >= now.reclaim_below;
    let log = now.log.saturating_sub(now.log_segment);
    let coming = now.headroom.saturating_add(now.emptied).saturating_add(log);
    // With little headroom copies take what is kept for them, and no more: the checkpoint needs the
    // rest.
    let has_room = now.headroom >= 2 * now.segment || now.emptied < 2 * now.segment;
    if has_room && coming < now.reclaim_below && now.reclaimable >= now.segment / 8 {
        let missing = (now.reclaim_below - coming) as f64 / now.reclaim_below.max(1) as f64;
        // All of the time from a third on.
        let duty = if is_slow { 1.0 } else { (LEAST_DUTY + 2.25 * missing).min(1.0) };
        // A segment at a time: the next one may be another by then.
        let work = Defragment { min_dead_ratio: LEAST_RATIO, max_bytes: now.segment, duty };
        return Step { checkpoint: frees, defragment: Some(work) };
    }
    // Perhaps what is dead is in the tail. Not for less than a segment, else a checkpoint follows the
    // other while puts are slowed down; refused, they write nothing, and what is worth emptying will do.
    let least = match now.headroom {
        0 => (now.segment / 8).saturating_sub(now.reclaimable).max(1),
        _ => now.segment,
    };
    let in_tail = is_slow && now.dead >= now.segment && now.tail >= least;
    Step { checkpoint: frees || in_tail, defragment: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ROOMY: Situation = Situation {
        dead: 300 * MIB,
        reclaimable: 250 * MIB,
        emptied: 0,
        log: MIB,
        log_segment: MIB,
        tail: 16 * MIB,
        segment: 16 * MIB,
        headroom: 200 * MIB,
        slow_below: 50 * MIB,
        reclaim_below: 150 * MIB,
    };

    fn duty(now: &Situation) -> f64 {
        let step = decide(now);
        step.defragment.unwrap_or_else(|| panic!("{step:?}")).duty
    }

    const NOTHING: Step = Step { checkpoint: false, defragment: None };
    const CHECKPOINT: Step = Step { checkpoint: true, defragment: None };

    #[test]
    fn nothing_is_copied_before_it_must_be() {
        assert_eq!(decide(&ROOMY), NOTHING);
        let short = Situation { headroom: 149 * MIB, ..ROOMY };
        assert!((LEAST_DUTY..0.3).contains(&duty(&short)));
        // It comes by itself.
        assert_eq!(decide(&Situation { log: 3 * MIB, ..short }), NOTHING);
        assert_eq!(decide(&Situation { emptied: 2 * MIB, ..short }), NOTHING);
        // Nothing to gain yet: a checkpoint will come by itself, too.
        assert_eq!(decide(&Situation { reclaimable: MIB, ..short }), NOTHING);
    }

    #[test]
    fn the_less_there_is_the_more_is_done() {
        let with = |headroom| duty(&Situation { headroom: headroom * MIB, ..ROOMY });
        assert!(with(140) < with(120) && with(120) < with(100));
        assert_eq!((with(99), with(49), with(0)), (1.0, 1.0, 1.0));
    }

    #[test]
    fn what_was_emptied_is_freed_before_puts_wait_for_long() {
        let slow = Situation { headroom: 49 * MIB, emptied: 16 * MIB, ..ROOMY };
        // And emptying goes on.
        let step = decide(&slow);
        assert!(step.checkpoint && step.defragment.is_some(), "{step:?}");
        assert_eq!(decide(&Situation { emptied: 150 * MIB, ..ROOMY }), CHECKPOINT);
        let last = Situation { headroom: MIB, emptied: MIB, ..ROOMY };
        assert!(decide(&last).checkpoint && !decide(&Situation { emptied: 0, ..last }).checkpoint);
        // Not beyond what is kept for copies, else the checkpoint finds no room.
        let none = Situation { headroom: 0, emptied: 32 * MIB, ..ROOMY };
        assert_eq!(decide(&none), CHECKPOINT);
        assert!(decide(&Situation { emptied: 16 * MIB, ..none }).defragment.is_some());
        let tail = Situation { reclaimable: 0, emptied: 0, ..slow };
        assert_eq!(decide(&tail), CHECKPOINT);
        assert_eq!(decide(&Situation { dead: MIB, ..tail }), NOTHING);
        // Each segment of values brings one; when nothing is written any more, what there is.
        assert_eq!(decide(&Situation { tail: 16 * MIB - 1, ..tail }), NOTHING);
        let refused = Situation { headroom: 0, ..tail };
        assert_eq!(decide(&Situation { tail: 2 * MIB, ..refused }), CHECKPOINT);
        assert_eq!(decide(&Situation { tail: 2 * MIB - 1, ..refused }), NOTHING);
        assert_eq!(decide(&Situation { tail: 0, reclaimable: MIB, ..refused }), NOTHING);
    }
}
