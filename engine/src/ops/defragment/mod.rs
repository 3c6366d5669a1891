//! Defragment: emptying the segments that are mostly dead by moving what is live in them.
//!
//! ```text
//! choose victims -> walk the index -> for each batch: lay out, read, seal, repoint
//! ```
//!
//! A crash at any point leaves records where the last checkpoint's index says they are: a source
//! is freed only by a committed checkpoint whose first step saw it empty, and a moved record's
//! shard is dirty, so that checkpoint's index points to the copy.
//!
//! Invariants: one defragment at a time; memory is bounded by a batch and the locations of a set;
//! a segment that could not be emptied is not tried again by the same call, one with a bad record
//! not before the next open.

mod batch;
mod collect;
mod recount;
mod victims;

use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use crate::api::{
    Continue, DefragmentOptions, DefragmentProgress, DefragmentReport, DefragmentStep,
};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::stats::Counters;
use crate::types::KeyRange;
use crate::value_log::{Location, SegmentUse};
use batch::Outcome;
use victims::Limits;

/// Most live bytes of a batch, which it holds in memory.
const BATCH_BYTES: u64 = 64 << 20;
/// Most batches for one walk over the index.
const SET_BATCHES: usize = 8;
/// The part of a segment that must be dead by default.
const MIN_DEAD_RATIO: f64 = 0.2;

/// What outlives a defragment.
#[derive(Default)]
pub(crate) struct Defragmenting {
    /// Segments with records that cannot be read.
    damaged: BTreeSet<u32>,
}

/// Asked between steps; may sleep.
pub(crate) type Control<'a> = dyn Fn(DefragmentProgress) -> Continue + 'a;

/// A defragment under way.
struct Work<'a> {
    report: DefragmentReport,
    progress: DefragmentProgress,
    control: &'a Control<'a>,
    damaged: Vec<u32>,
}

impl Work<'_> {
    /// Whether to go on, after as much work.
    fn goes_on(&mut self, step: DefragmentStep, step_bytes: u64) -> bool {
        self.progress.step = step;
        self.progress.bytes_read = self.report.bytes_read;
        self.progress.bytes_moved = self.report.bytes_moved;
        self.progress.step_bytes = step_bytes;
        let goes_on = (self.control)(self.progress) == Continue::Yes;
        self.report.cancelled |= !goes_on;
        goes_on
    }

    fn damaged(&mut self, segment: u32) {
        self.damaged.push(segment);
    }
}

impl Core {
    /// Empties segments until none is worth it, `max_bytes` are copied, or `control` says so.
    pub(crate) fn defragment(
        &self,
        options: &DefragmentOptions,
        control: &Control<'_>,
    ) -> Result<DefragmentReport> {
        let ratio = options.min_dead_ratio;
        if !(0.0..=1.0).contains(&ratio) {
            return Err(Error::invalid(format!("min_dead_ratio is {ratio}; it must be 0 to 1")));
        }
        let mut state = self.defragmenting.lock();
        let started = Instant::now();
        let mut work = Work {
            report: DefragmentReport::default(),
            progress: DefragmentProgress::default(),
            control,
            damaged: Vec::new(),
        };
        let result = self.empty_segments(options, &mut state, &mut work);
        state.damaged.extend(&work.damaged);
        let mut report = work.report;
        report.duration_us = started.elapsed().as_micros() as u64;
        let counters = &self.store.counters;
        Counters::add(&counters.defragments, 1);
        Counters::add(&counters.defragment_us, report.duration_us);
        Counters::add(&counters.defragment_segments, report.segments);
        Counters::add(&counters.defragment_freed_bytes, report.bytes_freed);
        result.map(|()| report)
    }

    fn empty_segments(
        &self,
        options: &DefragmentOptions,
        state: &mut Defragmenting,
        work: &mut Work<'_>,
    ) -> Result<()> {
        let mut tried: HashSet<u32> = HashSet::new();
        loop {
            self.check_writable()?;
            let budget_bytes = match options.max_bytes {
                0 => u64::MAX,
                most if most <= work.report.bytes_moved => return Ok(()),
                most => most - work.report.bytes_moved,
            };
            let limits = Limits {
                min_dead_ratio: default_if_zero(options.min_dead_ratio),
                batch_bytes: BATCH_BYTES,
                batches: SET_BATCHES,
                budget_bytes,
            };
            let mut candidates = self.store.value_log.candidates();
            // What is no candidate any more was freed, and is another segment when it comes back.
            state.damaged.retain(|number| candidates.iter().any(|one| one.number == *number));
            candidates
                .retain(|one| !tried.contains(&one.number) && !state.damaged.contains(&one.number));
            let set = victims::choose(candidates, &limits);
            if set.is_empty() {
                return Ok(());
            }
            tried.extend(set.iter().flatten().map(|segment| segment.number));
            if !self.empty_set(set, work)? {
                return Ok(());
            }
            state.damaged.extend(work.damaged.drain(..));
        }
    }

    /// Empties some segments after one walk; whether to go on.
    fn empty_set(&self, set: Vec<Vec<SegmentUse>>, work: &mut Work<'_>) -> Result<bool> {
        let numbers: Vec<u32> = set.iter().flatten().map(|segment| segment.number).collect();
        let mut sources = self.store.value_log.hold_sources(&numbers);
        let chosen: HashSet<u32> = numbers.into_iter().filter(|one| sources.holds(*one)).collect();
        work.progress.segments_chosen += chosen.len() as u64;
        let found = self.collect(&KeyRange::all(), &chosen, &mut |bytes| {
            work.goes_on(DefragmentStep::Walk, bytes)
        });
        if found.cancelled {
            return Ok(false);
        }
        for mut batch in set {
            batch.retain(|segment| chosen.contains(&segment.number));
            let outcome = self.empty_batch(&batch, &found.locations, work)?;
            let numbers: Vec<u32> = batch.iter().map(|segment| segment.number).collect();
            sources.release(&numbers);
            work.progress.segments_done += batch.len() as u64;
            // Copies take space that puts do not know of.
            self.look_at_disk();
            if outcome == Outcome::Cancelled || !work.goes_on(DefragmentStep::Done, 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Empties the segments of one batch, or one after the other if the disk has no room for all.
    fn empty_batch(
        &self,
        batch: &[SegmentUse],
        locations: &[Location],
        work: &mut Work<'_>,
    ) -> Result<Outcome> {
        let log = &self.store.value_log;
        let numbers: HashSet<u32> = batch.iter().map(|segment| segment.number).collect();
        let is_inside = |at: &&Location| numbers.contains(&log.segment_of(**at));
        let inside: Vec<Location> = locations.iter().filter(is_inside).copied().collect();
        match self.move_records(&inside, work) {
            Err(error) if batch::is_full(&error) && batch.len() > 1 => {
                for one in batch.chunks(1) {
                    if self.empty_batch(one, &inside, work)? == Outcome::Cancelled {
                        return Ok(Outcome::Cancelled);
                    }
                }
                Ok(Outcome::Done)
            }
            result => {
                for segment in batch {
                    if log.live_in(segment.number) == 0 {
                        work.report.segments += 1;
                        work.report.bytes_freed += segment.dead_bytes();
                    }
                }
                result
            }
        }
    }
}

fn default_if_zero(ratio: f64) -> f64 {
    if ratio == 0.0 { MIN_DEAD_RATIO } else { ratio }
}
