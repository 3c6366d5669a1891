//! Putting records in key order, so that a scan after a random load reads one behind the other.
//!
//! ```text
//! for each slice of the keys: room? -> walk -> does it pay? -> hold its segments, walk again -> move
//! ```
//!
//! The records move as those of victims do (`batch`): the same seal, the same repoint under the
//! key's stripe. What they leave behind is dead, and emptied as usual later.
//!
//! Invariants:
//! - memory is bounded by a slice, whatever the size of a shard;
//! - `defragmenting` is held for a slice only, so that space is reclaimed between two;
//! - locations that are moved were found while their segments were held, so none of these is
//!   another segment by now;
//! - records that lie in the tail, or in a segment that is being written, stay where they are: a
//!   call after the next checkpoint finds them;
//! - copies never take what is kept for deletes and for emptying segments, nor what slows writers
//!   down: a call ends, and says so, before a slice for which there is no room.

use std::collections::HashSet;
use std::time::Instant;

use crate::api::{DefragmentOptions, DefragmentProgress, DefragmentReport, DefragmentStep};
use crate::core::Core;
use crate::error::Result;
use crate::index::{RangeIter, Slot};
use crate::jobs::order_policy::{LEAST_SLICE_BYTES, Room, slice_bytes};
use crate::ops::defragment::batch::{Outcome, is_full};
use crate::ops::defragment::disorder::Disorder;
use crate::ops::defragment::{Control, Work};
use crate::stats::Counters;
use crate::sync::primitives::atomic::Ordering;
use crate::types::KeyRange;
use crate::value_log::Location;

/// Most entries of a slice, those without a record included.
const SLICE_ENTRIES: u64 = 1 << 20;
/// Entries between two questions whether to go on.
const STEP_ENTRIES: u64 = 16 << 10;
/// What an examined entry counts for a throttle.
const BYTES_PER_ENTRY: u64 = 64;

/// The records of one slice.
struct Slice {
    /// In key order.
    locations: Vec<Location>,
    /// The first key behind the slice; `None`: the range ends with it.
    next: Option<Vec<u8>>,
    cancelled: bool,
}

/// What a call does after a slice.
enum Next {
    /// Go on with the keys from here.
    From(Vec<u8>),
    /// The call is over.
    End,
}

impl Core {
    /// Rewrites in key order what of `range` is not, where that pays, until all keys are looked at,
    /// the `max_bytes` of `options` are copied, space gets short, or `control` says so.
    pub(crate) fn put_in_order(
        &self,
        options: &DefragmentOptions,
        range: &KeyRange,
        control: &Control<'_>,
    ) -> Result<DefragmentReport> {
        let started = Instant::now();
        let mut work = Work {
            report: DefragmentReport::default(),
            progress: DefragmentProgress::default(),
            control,
            damaged: Vec::new(),
            no_room: false,
        };
        let mut rest = range.clone();
        let result = loop {
            let before = work.report.clone();
            let next = self.order_next(&rest, options.max_bytes, &mut work);
            let counters = &self.store.counters;
            let report = &work.report;
            Counters::add(&counters.order_records, report.records_moved - before.records_moved);
            Counters::add(&counters.order_bytes, report.bytes_moved - before.bytes_moved);
            match next {
                // With nothing held: others take their turn.
                Ok(Next::From(key)) if work.goes_on(DefragmentStep::Done, 0) => rest.start = key,
                Ok(_) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let mut report = work.report;
        report.duration_us = started.elapsed().as_micros() as u64;
        Counters::add(&self.store.counters.order_runs, 1);
        Counters::add(&self.store.counters.order_us, report.duration_us);
        self.last_order_us.store(report.duration_us, Ordering::Relaxed);
        result.map(|()| report)
    }

    /// The space that there is for copies.
    pub(crate) fn order_room(&self) -> Room {
        let disk = self.look();
        Room {
            beside_reserve: disk
                .stats
                .available_bytes
                .saturating_sub(disk.stats.soft_reserve_bytes),
            headroom: disk.headroom,
            slow_below: disk.limits.slow_below,
            dead: self.store.value_log.stats().dead_bytes,
            segment: self.store.options.value_segment_bytes,
        }
    }

    /// The first slice of `rest`.
    fn order_next(&self, rest: &KeyRange, max_bytes: u64, work: &mut Work<'_>) -> Result<Next> {
        // In no hurry: who has it may well rest.
        let mut state = self.defragmenting.lock();
        self.check_writable()?;
        let moved = work.report.bytes_moved;
        if max_bytes > 0 && moved >= max_bytes {
            return Ok(Next::End);
        }
        let Some(mut most) = slice_bytes(&self.order_room()) else {
            work.report.short_of_space = true;
            return Ok(Next::End);
        };
        if max_bytes > 0 {
            most = most.min((max_bytes - moved).max(LEAST_SLICE_BYTES));
        }
        let mut candidates: HashSet<u32> =
            self.store.value_log.candidates().iter().map(|segment| segment.number).collect();
        candidates.retain(|number| !state.damaged.contains(number));
        let slice = self.slice(rest, &candidates, most, work);
        if slice.cancelled {
            return Ok(Next::End);
        }
        if Disorder::of(&slice.locations).is_worth_a_rewrite() {
            let end = slice.next.as_ref().unwrap_or(&rest.end);
            let range = KeyRange::new(rest.start.clone(), end.clone());
            let moved = self.order_slice(&range, &slice.locations, most, work);
            state.damaged.extend(work.damaged.drain(..));
            match moved {
                Err(error) if is_full(&error) => {
                    work.report.short_of_space = true;
                    return Ok(Next::End);
                }
                Ok(Outcome::Done) => {}
                Ok(Outcome::Cancelled) => return Ok(Next::End),
                Err(error) => return Err(error),
            }
            // Copies take space that puts do not know of.
            self.look_at_disk();
        }
        Ok(slice.next.map_or(Next::End, Next::From))
    }

    /// Rewrites the records of `range` that lie in the segments of `seen`.
    fn order_slice(
        &self,
        range: &KeyRange,
        seen: &[Location],
        most: u64,
        work: &mut Work<'_>,
    ) -> Result<Outcome> {
        let log = &self.store.value_log;
        let numbers: HashSet<u32> = seen.iter().map(|at| log.segment_of(*at)).collect();
        let numbers: Vec<u32> = numbers.into_iter().collect();
        let sources = log.hold_sources(&numbers);
        let held: HashSet<u32> = numbers.into_iter().filter(|one| sources.holds(*one)).collect();
        // Again: before they were held, a segment may have been freed and used anew.
        let slice = self.slice(range, &held, most, work);
        if slice.cancelled {
            return Ok(Outcome::Cancelled);
        }
        let outcome = self.move_records(&slice.locations, work)?;
        for &number in held.iter().filter(|number| log.live_in(**number) == 0) {
            work.report.segments += 1;
            tracing::debug!(segment = number, "emptied by putting records in order");
        }
        Ok(outcome)
    }

    /// The first records of `range` that lie in the segments, in key order: as many as `most` bytes
    /// take.
    fn slice(
        &self,
        range: &KeyRange,
        segments: &HashSet<u32>,
        most: u64,
        work: &mut Work<'_>,
    ) -> Slice {
        let log = &self.store.value_log;
        let mut slice = Slice { locations: Vec::new(), next: None, cancelled: false };
        let mut rest = range.clone();
        let (mut bytes, mut entries) = (0, 0);
        loop {
            let mut examined = 0;
            let mut last_key: Option<Vec<u8>> = None;
            let table = self.store.table.load_full();
            'shards: for shard in table.covering(&rest) {
                let bundle = shard.load();
                let mut items = RangeIter::new(&bundle, rest.intersect(&shard.range), false);
                while let Some(item) = items.next() {
                    if let Slot::Value(at) = item.entry.decode()
                        && segments.contains(&log.segment_of(Location(at)))
                    {
                        slice.locations.push(Location(at));
                        bytes += Location(at).allocated();
                    }
                    examined += 1;
                    if examined == STEP_ENTRIES || bytes >= most {
                        last_key = Some(item.key.to_vec());
                        break 'shards;
                    }
                }
            }
            entries += examined;
            slice.cancelled = !work.goes_on(DefragmentStep::Walk, examined * BYTES_PER_ENTRY);
            let Some(mut key) = last_key else { return slice };
            key.push(0);
            if slice.cancelled || bytes >= most || entries >= SLICE_ENTRIES {
                slice.next = Some(key);
                return slice;
            }
            rest.start = key;
        }
    }
}

#[cfg(test)]
#[path = "order_test.rs"]
mod order_test;
