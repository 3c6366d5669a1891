//! Defragment: emptying the segments that are mostly dead by moving what is live in them.
//!
//! ```text
//! choose victims -> read them, look each record up -> lay out in key order, seal, repoint
//!                 -> what is left in them: walk the index, then the same
//! ```
//!
//! A crash at any point leaves records where the last checkpoint's index says they are: a source
//! is freed only by a committed checkpoint whose first step saw it empty, and a moved record's
//! shard is dirty, so that checkpoint's index points to the copy.
//!
//! Invariants: one defragment at a time; memory is bounded by twice a batch;
//! a segment that could not be emptied is not tried again by the same call, one with a bad record
//! not before the next open.

mod batch;
mod collect;
mod disorder;
mod order;
mod recount;
mod survey;
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
use crate::value_log::SegmentUse;
use batch::Outcome;
use survey::Live;
use victims::Limits;

/// Most live bytes of a batch, which it holds in memory twice; one segment may have more.
const BATCH_BYTES: u64 = 32 << 20;
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
    /// A record of this batch had to stay for want of room in an append region.
    no_room: bool,
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
        let hurry = self.requests.hurry();
        let mut state = self.defragmenting.lock();
        drop(hurry);
        let started = Instant::now();
        let mut work = Work {
            report: DefragmentReport::default(),
            progress: DefragmentProgress::default(),
            control,
            damaged: Vec::new(),
            no_room: false,
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
            let Some(most_bytes) = self.room_for_copies()? else {
                return Ok(());
            };
            let budget_bytes = match options.max_bytes {
                0 => u64::MAX,
                most if most <= work.report.bytes_moved => return Ok(()),
                most => most - work.report.bytes_moved,
            };
            let limits = Limits {
                min_dead_ratio: default_if_zero(options.min_dead_ratio),
                batch_bytes: most_bytes.min(budget_bytes),
            };
            let mut candidates = self.store.value_log.candidates();
            // What is no candidate any more was freed, and is another segment when it comes back.
            state.damaged.retain(|number| candidates.iter().any(|one| one.number == *number));
            candidates
                .retain(|one| !tried.contains(&one.number) && !state.damaged.contains(&one.number));
            let batch = victims::choose(candidates, &limits);
            if batch.is_empty() {
                return Ok(());
            }
            tried.extend(batch.iter().map(|segment| segment.number));
            if !self.empty_chosen(batch, work)? {
                return Ok(());
            }
            state.damaged.extend(work.damaged.drain(..));
        }
    }

    /// How much may be copied at once, so that there is disk for the checkpoint that gives space back:
    /// copies may take two segments of what is kept, then a checkpoint is made, or must be.
    fn room_for_copies(&self) -> Result<Option<u64>> {
        let segment = self.store.options.value_segment_bytes;
        let is_short = || {
            let disk = self.look_at_disk();
            disk.available_bytes.saturating_sub(disk.soft_reserve_bytes) < 2 * segment
        };
        if !is_short() {
            return Ok(Some(BATCH_BYTES));
        }
        if self.store.value_log.empty_bytes() >= 2 * segment {
            if !self.store.options.background {
                return Ok(None);
            }
            self.checkpoint()?;
        }
        // A segment's worth takes one more at most.
        Ok(Some(BATCH_BYTES.min(segment)))
    }

    /// Empties the segments of a batch; whether to go on.
    fn empty_chosen(&self, mut batch: Vec<SegmentUse>, work: &mut Work<'_>) -> Result<bool> {
        let numbers: Vec<u32> = batch.iter().map(|segment| segment.number).collect();
        let sources = self.store.value_log.hold_sources(&numbers);
        batch.retain(|segment| sources.holds(segment.number));
        work.progress.segments_chosen += batch.len() as u64;
        let outcome = self.empty_batch(&batch, work)?;
        drop(sources);
        work.progress.segments_done += batch.len() as u64;
        // Copies take space that puts do not know of.
        self.look_at_disk();
        Ok(outcome == Outcome::Done && work.goes_on(DefragmentStep::Done, 0))
    }

    /// Empties the segments of one batch, or one after the other if the disk has no room for all.
    fn empty_batch(&self, batch: &[SegmentUse], work: &mut Work<'_>) -> Result<Outcome> {
        work.no_room = false;
        let mut live = Live::default();
        for segment in batch {
            if !self.survey(segment, &mut live, work) {
                return Ok(Outcome::Cancelled);
            }
        }
        let moved = match self.move_live(live, work) {
            Err(error) if batch::is_full(&error) && batch.len() > 1 => {
                for one in batch.chunks(1) {
                    if self.empty_batch(one, work)? == Outcome::Cancelled {
                        return Ok(Outcome::Cancelled);
                    }
                }
                return Ok(Outcome::Done);
            }
            Ok(Outcome::Done) if !work.no_room => self.empty_rest(batch, work),
            moved => moved,
        };
        for segment in batch {
            if self.store.value_log.live_in(segment.number) == 0 {
                work.report.segments += 1;
                work.report.bytes_freed += segment.dead_bytes();
            }
        }
        moved
    }

    /// Moves what is still live in the segments: what reading them did not find.
    fn empty_rest(&self, batch: &[SegmentUse], work: &mut Work<'_>) -> Result<Outcome> {
        let log = &self.store.value_log;
        let find_left = || -> HashSet<u32> {
            let numbers = batch.iter().map(|segment| segment.number);
            numbers.filter(|number| log.live_in(*number) > 0).collect()
        };
        if find_left().is_empty() {
            return Ok(Outcome::Done);
        }
        // A writer that has replaced a record counts it as dead only afterwards.
        self.stripes.pass();
        let left = find_left();
        if left.is_empty() {
            return Ok(Outcome::Done);
        }
        let found = self.collect(&KeyRange::all(), &left, &mut |bytes| {
            work.goes_on(DefragmentStep::Walk, bytes)
        });
        if found.cancelled {
            return Ok(Outcome::Cancelled);
        }
        self.move_records(&found.locations, work)
    }
}

fn default_if_zero(ratio: f64) -> f64 {
    if ratio == 0.0 { MIN_DEAD_RATIO } else { ratio }
}
