//! What is live in a segment, found by reading it from end to end.
//!
//! A record says how long it is and has a checksum, and the index says whether it is the newest of
//! its key: so a segment is emptied without a walk over the whole index.
//!
//! Invariants:
//! - only what the index points to at its exact place is taken, so stale bytes (gaps are not
//!   written over when a segment is used again) are never taken for a record that counts;
//! - whether all that is live was found is for the segment's count of live bytes to say: whoever
//!   uses this looks at it afterwards, and walks the index for what was missed (a record that
//!   cannot be read, or one that stale bytes hide);
//! - the segment is base and held, so its bytes do not change meanwhile.

use std::ops::Range;

use crate::api::DefragmentStep;
use crate::core::Core;
use crate::index::Slot;
use crate::ops::defragment::Work;
use crate::stats::Counters;
use crate::value_log::{
    Location, RECORD_ALIGN, SegmentUse, check_record, key_of_record, record_len,
};

/// Bytes of one read.
const READ_BYTES: u64 = 1 << 20;
/// So many times a segment's length may be spent on checksums of what is no record.
const MOST_WASTED: u64 = 4;
/// What a look-up counts for a throttle: about what it costs beside a byte read.
const BYTES_PER_LOOKUP: u64 = 256;

/// Live records, in the order of the disk.
#[derive(Default)]
pub(super) struct Live {
    /// Where each record lies, in the value log and in `bytes`.
    records: Vec<(Location, usize)>,
    bytes: Vec<u8>,
}

impl Live {
    /// The bytes of a record.
    pub(super) fn record(&self, at: usize) -> &[u8] {
        let (location, start) = self.records[at];
        &self.bytes[start..][..location.allocated() as usize]
    }

    /// Puts the records in key order, and answers their places.
    pub(super) fn sort(&mut self) -> Vec<Location> {
        let mut records = std::mem::take(&mut self.records);
        let bytes = &self.bytes;
        let key = |(location, start): &(Location, usize)| {
            key_of_record(&bytes[*start..][..location.allocated() as usize])
        };
        records.sort_unstable_by(|one, other| key(one).cmp(key(other)));
        self.records = records;
        self.records.iter().map(|(location, _)| *location).collect()
    }
}

/// A window that moves over a segment.
struct Window {
    bytes: Vec<u8>,
    /// What part of the segment it shows.
    shown: Range<u64>,
}

impl Core {
    /// Adds the live records of a held segment to `live`; whether to go on. A read that fails ends
    /// it early: the caller's walk will name what cannot be read.
    pub(super) fn survey(&self, of: &SegmentUse, live: &mut Live, work: &mut Work<'_>) -> bool {
        let log = &self.store.value_log;
        if !work.goes_on(DefragmentStep::Walk, 0) {
            return false;
        }
        let Range { start, end } = of.records();
        let mut window = Window { bytes: Vec::new(), shown: start..start };
        let mut at = start;
        let mut lookups = 0;
        let mut wasted = 0;
        while at + RECORD_ALIGN < end {
            // All of the next record, but the header first: it says how long that is.
            let mut needed = at + HEADER_BYTES;
            loop {
                if needed > end {
                    break;
                }
                if needed > window.shown.end {
                    let more = (needed - window.shown.end).max(READ_BYTES);
                    let more = more.min(end - window.shown.end);
                    if self.move_window(of.number, &mut window, at, more).is_err() {
                        return true;
                    }
                    work.report.bytes_read += more;
                    Counters::add(&self.store.counters.defragment_read_bytes, more);
                    let looked = std::mem::take(&mut lookups) * BYTES_PER_LOOKUP;
                    if !work.goes_on(DefragmentStep::Read, more + looked) {
                        return false;
                    }
                }
                let bytes = window.from(at);
                match record_len(bytes) {
                    Some(len) if at + len > needed => needed = at + len,
                    _ => break,
                }
            }
            let bytes = window.from(at);
            let len = record_len(bytes).filter(|len| at + len <= end);
            let record = len.and_then(|len| bytes.get(..len as usize));
            let Some(record) = record.filter(|record| check_record(record).is_ok()) else {
                // A gap, or damage. What looks like a record and is none costs a checksum of all its
                // length, and a gap may hold many such: bytes of values are the users'.
                wasted += len.unwrap_or(0);
                if wasted > MOST_WASTED * of.used_bytes {
                    return true;
                }
                at += RECORD_ALIGN;
                continue;
            };
            let location = log.location_in(of.number, at, record.len() as u64);
            lookups += 1;
            let slot = self.store.slot_of(key_of_record(record));
            if slot.is_ok_and(|slot| slot == Some(Slot::Value(location.0))) {
                live.records.push((location, live.bytes.len()));
                live.bytes.extend_from_slice(record);
            }
            at += record.len() as u64;
        }
        true
    }

    /// Lets a window begin at `at` and end `more` bytes later than before.
    fn move_window(
        &self,
        segment: u32,
        window: &mut Window,
        at: u64,
        more: u64,
    ) -> crate::error::Result<()> {
        let passed = (at - window.shown.start).min(window.bytes.len() as u64);
        window.bytes.drain(..passed as usize);
        window.shown.start += passed;
        let old = window.bytes.len();
        window.bytes.resize(old + more as usize, 0);
        let read = &mut window.bytes[old..];
        self.store.value_log.read_segment(segment, window.shown.end, read)?;
        window.shown.end += more;
        Ok(())
    }
}

/// Bytes that say how long a record is.
const HEADER_BYTES: u64 = 32;

impl Window {
    /// What it shows from `at` on.
    fn from(&self, at: u64) -> &[u8] {
        self.bytes.get((at - self.shown.start) as usize..).unwrap_or_default()
    }
}
