//! Moving records: lay out in key order, fill, seal, repoint.
//!
//! Invariants:
//! - a record is read by `pread` and moved only if its checksum is right; of those that are named
//!   one by one, a bad one is in the report and stays where it is;
//! - nothing points to a copy before all copies of the batch are sealed (durable and base);
//! - a repoint happens under the key's stripe, and only if the entry still says what was copied;
//! - `goes_on`, which may sleep, is called with nothing held but the segments.

use crate::api::DefragmentStep;
use crate::core::Core;
use crate::error::{ErrorKind, Result};
use crate::ops::defragment::Work;
use crate::ops::defragment::survey::Live;
use crate::stats::Counters;
use crate::store::Repointed;
use crate::sync::WordIndex;
use crate::value_log::{CopyBatch, CopySlot, Location, check_record, key_of_record, renew_record};

/// Most bytes of one read.
const READ_BYTES: u64 = 1 << 20;
/// A gap of dead bytes that is read rather than skipped.
const READ_OVER: u64 = 32 << 10;
/// Repoints between two questions whether to go on.
const STEP_REPOINTS: usize = 256;
/// What those count for a throttle.
const REPOINT_BYTES: u64 = STEP_REPOINTS as u64 * 256;
/// Most problems listed in a report.
const MOST_PROBLEMS: usize = 100;

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Everything that could be moved was.
    Done,
    /// The caller ended it.
    Cancelled,
}

impl Core {
    /// Moves the records at `locations`, which are in key order. `DiskFull` when there is no room
    /// for all of them: nothing was moved then.
    pub(super) fn move_records(
        &self,
        locations: &[Location],
        work: &mut Work<'_>,
    ) -> Result<Outcome> {
        let log = &self.store.value_log;
        let mut batch = log.begin_copy();
        let mut slots = Vec::with_capacity(locations.len());
        for location in locations {
            slots.push(batch.place(location.allocated())?);
        }
        let Some(read) = self.read_records(locations, &slots, &mut batch, work) else {
            return Ok(Outcome::Cancelled);
        };
        self.publish_copies(batch, locations, &slots, &read, work)
    }

    /// The same for records that were read and checked.
    pub(super) fn move_live(&self, mut live: Live, work: &mut Work<'_>) -> Result<Outcome> {
        let locations = live.sort();
        let mut batch = self.store.value_log.begin_copy();
        let mut slots = Vec::with_capacity(locations.len());
        for location in &locations {
            slots.push(batch.place(location.allocated())?);
        }
        for (number, slot) in slots.iter().enumerate() {
            let copy = batch.slot(*slot);
            copy.copy_from_slice(live.record(number));
            renew_record(copy);
        }
        let all = vec![true; locations.len()];
        drop(live);
        self.publish_copies(batch, &locations, &slots, &all, work)
    }

    /// Makes the copies durable, and lets the index point to those that were `read`.
    fn publish_copies(
        &self,
        mut batch: CopyBatch<'_>,
        locations: &[Location],
        slots: &[CopySlot],
        read: &[bool],
        work: &mut Work<'_>,
    ) -> Result<Outcome> {
        let log = &self.store.value_log;
        let mut cancelled = false;
        let sealed = batch
            .seal(&mut |bytes| cancelled |= !work.goes_on(DefragmentStep::Write, bytes as u64));
        sealed.inspect_err(|error| {
            if log.sync_has_failed() {
                self.wal.poison(&format!("a defragment failed: {error}; reopen the engine"));
            }
        })?;
        self.check_writable()?;
        for (number, (from, slot)) in locations.iter().zip(slots).enumerate() {
            if number % STEP_REPOINTS == 0 {
                cancelled |= !work.goes_on(DefragmentStep::Repoint, REPOINT_BYTES);
            }
            if cancelled {
                return Ok(Outcome::Cancelled);
            }
            if read[number] {
                self.repoint(&mut batch, *from, *slot, work);
            }
        }
        // The batch goes here: its segments may be reported as empty again.
        Ok(Outcome::Done)
    }

    /// Fills the places; `None` when the caller ended it, else which records are whole.
    fn read_records(
        &self,
        locations: &[Location],
        slots: &[CopySlot],
        batch: &mut CopyBatch<'_>,
        work: &mut Work<'_>,
    ) -> Option<Vec<bool>> {
        let mut order: Vec<usize> = (0..locations.len()).collect();
        order.sort_unstable_by_key(|at| locations[*at].offset());
        let mut read = vec![false; locations.len()];
        let mut bytes = Vec::new();
        let mut rest = &order[..];
        while !rest.is_empty() {
            let count = run_len(locations, rest, |at| self.store.value_log.segment_of(at));
            let (run, behind) = rest.split_at(count);
            rest = behind;
            let (first, last) = (locations[run[0]], locations[run[count - 1]]);
            let len = last.offset() + last.allocated() - first.offset();
            bytes.resize(len as usize, 0);
            let whole = self.read_run(first, &mut bytes).is_ok();
            for &at in run {
                let location = locations[at];
                let slot = batch.slot(slots[at]);
                let checked = if whole {
                    let start = (location.offset() - first.offset()) as usize;
                    slot.copy_from_slice(&bytes[start..][..slot.len()]);
                    Ok(())
                } else {
                    // One bad sector must not hide its neighbours.
                    self.read_run(location, slot)
                };
                let checked = checked.and_then(|()| {
                    check_record(slot)
                        .map_err(|what| self.store.value_log.bad_record(location, what))
                });
                match checked {
                    Ok(()) => {
                        renew_record(slot);
                        read[at] = true;
                    }
                    Err(error) => {
                        slot.fill(0);
                        Counters::add(&self.store.counters.defragment_bad_records, 1);
                        tracing::error!(%error, "defragment leaves a record that it cannot read");
                        work.damaged(self.store.value_log.segment_of(location));
                        if work.report.problems.len() < MOST_PROBLEMS {
                            work.report.problems.push(error.to_string());
                        }
                    }
                }
            }
            work.report.bytes_read += len;
            Counters::add(&self.store.counters.defragment_read_bytes, len);
            if !work.goes_on(DefragmentStep::Read, len) {
                return None;
            }
        }
        Some(read)
    }

    fn read_run(&self, first: Location, out: &mut [u8]) -> Result<()> {
        let log = &self.store.value_log;
        log.read_segment(log.segment_of(first), log.offset_in_segment(first), out)
    }

    fn repoint(
        &self,
        batch: &mut CopyBatch<'_>,
        from: Location,
        slot: CopySlot,
        work: &mut Work<'_>,
    ) {
        let key = key_of_record(batch.slot(slot));
        // Never in flight: a reader gets the same value by either way.
        let held = self.stripes.lock([WordIndex::of(key)]);
        let repointed = self.store.repoint(key, from, slot.location);
        drop(held);
        let counters = &self.store.counters;
        match repointed {
            Repointed::Done => {
                work.report.records_moved += 1;
                work.report.bytes_moved += from.allocated();
                Counters::add(&counters.defragment_records, 1);
                Counters::add(&counters.defragment_copied_bytes, from.allocated());
            }
            Repointed::Outdated | Repointed::NoRoom => {
                work.no_room |= matches!(repointed, Repointed::NoRoom);
                work.report.records_skipped += 1;
                Counters::add(&counters.defragment_skipped, 1);
            }
        }
    }
}

/// How many of the records in `order` (by offset) one read gets: all in one segment, with small
/// gaps only.
fn run_len(locations: &[Location], order: &[usize], segment_of: impl Fn(Location) -> u32) -> usize {
    let first = locations[order[0]];
    let mut end = first.offset() + first.allocated();
    let mut count = 1;
    for next in order[1..].iter().map(|at| locations[*at]) {
        let next_end = next.offset() + next.allocated();
        if segment_of(next) != segment_of(first)
            || next.offset() - end > READ_OVER
            || next_end - first.offset() > READ_BYTES
        {
            break;
        }
        end = next_end;
        count += 1;
    }
    count
}

/// Whether an error leaves the engine as it was, so that fewer records may still be moved.
pub(super) fn is_full(error: &crate::error::Error) -> bool {
    error.kind() == ErrorKind::DiskFull
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_at_once() {
        let at = |offset: u64, len: u64| Location::new(offset, len);
        let locations = [at(4096, 64), at(4160, 64), at(4224 + READ_OVER, 64), at(1 << 20, 64)];
        let order = [0, 1, 2, 3];
        let segment_of = |location: Location| (location.offset() >> 24) as u32;
        assert_eq!(run_len(&locations, &order, segment_of), 3);
        assert_eq!(run_len(&locations, &order[3..], segment_of), 1);
        let small = |location: Location| (location.offset() / 4160) as u32;
        assert_eq!(run_len(&locations, &order, small), 1);
        let large = [at(4096, READ_BYTES), at(4096 + READ_BYTES, 64)];
        assert_eq!(run_len(&large, &order[..2], segment_of), 1);
    }
}
