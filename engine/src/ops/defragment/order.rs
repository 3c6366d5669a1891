//! Putting records in key order, so that a scan after a random load reads one behind the other.
//!
//! ```text
//! for each slice of the keys: walk -> does it pay? -> hold its segments, walk again -> move
//! ```
//!
//! The records move as those of victims do (`batch`): the same seal, the same repoint under the
//! key's stripe. What they leave behind is dead, and emptied as usual later.
//!
//! Invariants:
//! - memory is bounded by a slice, whatever the size of a shard;
//! - locations that are moved were found while their segments were held, so none of these is
//!   another segment by now;
//! - records that lie in the tail, or in a segment that is being written, stay where they are: a
//!   call after the next checkpoint finds them;
//! - copies never take what is kept for deletes and for emptying segments: with little disk left
//!   a call ends before the next slice.

use std::collections::HashSet;
use std::time::Instant;

use crate::api::{DefragmentOptions, DefragmentProgress, DefragmentReport, DefragmentStep};
use crate::core::Core;
use crate::error::Result;
use crate::index::{RangeIter, Slot};
use crate::ops::defragment::batch::Outcome;
use crate::ops::defragment::disorder::Disorder;
use crate::ops::defragment::{Control, Work};
use crate::stats::Counters;
use crate::types::KeyRange;
use crate::value_log::Location;

/// Most bytes of records of a slice, which it holds in memory.
const SLICE_BYTES: u64 = 32 << 20;
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

impl Core {
    /// Rewrites in key order what is not, where that pays, until all keys are looked at, the
    /// `max_bytes` of `options` are copied, the disk has little left, or `control` says so.
    pub(crate) fn put_in_order(
        &self,
        options: &DefragmentOptions,
        control: &Control<'_>,
    ) -> Result<DefragmentReport> {
        let mut state = self.defragmenting.lock();
        let started = Instant::now();
        let mut work = Work {
            report: DefragmentReport::default(),
            progress: DefragmentProgress::default(),
            control,
            damaged: Vec::new(),
            no_room: false,
        };
        let damaged = state.damaged.iter().copied().collect();
        let result = self.order_slices(options.max_bytes, &damaged, &mut work);
        state.damaged.extend(&work.damaged);
        let mut report = work.report;
        report.duration_us = started.elapsed().as_micros() as u64;
        Counters::add(&self.store.counters.defragment_us, report.duration_us);
        result.map(|()| report)
    }

    fn order_slices(
        &self,
        max_bytes: u64,
        damaged: &HashSet<u32>,
        work: &mut Work<'_>,
    ) -> Result<()> {
        let mut rest = KeyRange::all();
        loop {
            self.check_writable()?;
            let disk = self.look_at_disk();
            let has_room =
                disk.available_bytes > disk.slow_below_bytes.saturating_add(2 * SLICE_BYTES);
            if !has_room || (max_bytes > 0 && work.report.bytes_moved >= max_bytes) {
                return Ok(());
            }
            let candidates: HashSet<u32> = self
                .store
                .value_log
                .candidates()
                .iter()
                .map(|segment| segment.number)
                .filter(|number| !damaged.contains(number))
                .collect();
            let slice = self.slice(&rest, &candidates, work);
            if slice.cancelled {
                return Ok(());
            }
            if Disorder::of(&slice.locations).is_worth_a_rewrite() {
                let end = slice.next.clone().unwrap_or_default();
                let range = KeyRange::new(rest.start.clone(), end);
                if self.order_slice(&range, &slice.locations, work)? == Outcome::Cancelled {
                    return Ok(());
                }
            }
            match slice.next {
                Some(next) => rest.start = next,
                None => return Ok(()),
            }
        }
    }

    /// Rewrites the records of `range` that lie in the segments of `seen`.
    fn order_slice(
        &self,
        range: &KeyRange,
        seen: &[Location],
        work: &mut Work<'_>,
    ) -> Result<Outcome> {
        let log = &self.store.value_log;
        let numbers: HashSet<u32> = seen.iter().map(|at| log.segment_of(*at)).collect();
        let numbers: Vec<u32> = numbers.into_iter().collect();
        let sources = log.hold_sources(&numbers);
        let held: HashSet<u32> = numbers.into_iter().filter(|one| sources.holds(*one)).collect();
        // Again: before they were held, a segment may have been freed and used anew.
        let slice = self.slice(range, &held, work);
        if slice.cancelled {
            return Ok(Outcome::Cancelled);
        }
        let outcome = self.move_records(&slice.locations, work)?;
        for &number in held.iter().filter(|number| log.live_in(**number) == 0) {
            work.report.segments += 1;
            tracing::debug!(segment = number, "emptied by putting records in order");
        }
        drop(sources);
        let goes_on = work.goes_on(DefragmentStep::Done, 0);
        Ok(if goes_on { outcome } else { Outcome::Cancelled })
    }

    /// The first records of `range` that lie in the segments, in key order.
    fn slice(&self, range: &KeyRange, segments: &HashSet<u32>, work: &mut Work<'_>) -> Slice {
        let log = &self.store.value_log;
        let mut slice = Slice { locations: Vec::new(), next: None, cancelled: false };
        let mut rest = range.clone();
        let mut bytes = 0;
        loop {
            let mut examined = 0;
            let mut last_key: Option<Vec<u8>> = None;
            let table = self.store.table.load_full();
            'shards: for shard in table.covering(&rest) {
                let bundle = shard.load();
                let mut entries = RangeIter::new(&bundle, rest.intersect(&shard.range), false);
                while let Some(item) = entries.next() {
                    if let Slot::Value(at) = item.entry.decode()
                        && segments.contains(&log.segment_of(Location(at)))
                    {
                        slice.locations.push(Location(at));
                        bytes += Location(at).allocated();
                    }
                    examined += 1;
                    if examined == STEP_ENTRIES || bytes >= SLICE_BYTES {
                        last_key = Some(item.key.to_vec());
                        break 'shards;
                    }
                }
            }
            slice.cancelled = !work.goes_on(DefragmentStep::Walk, examined * BYTES_PER_ENTRY);
            let Some(mut key) = last_key else { return slice };
            key.push(0);
            if slice.cancelled || bytes >= SLICE_BYTES {
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
