//! From empty to free: when a segment may be used again.
//!
//! Invariants: a segment that was reported as empty takes no allocation from then on, so it stays
//! empty; it is freed by the caller, after a checkpoint that leaves it out is committed; it is
//! reused when every reader that was pinned at the time of `free` is gone.

use crate::sync::primitives::atomic::Ordering;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::ValueLog;
use super::location::Location;
use super::segment::{FIRST_RECORD, Segment, path_of};
use super::tail::Tail;
use crate::error::{Error, ErrorKind, Result};

/// How much of a segment is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentUse {
    /// Its number.
    pub(crate) number: u32,
    /// Bytes behind its header, live and dead.
    pub(crate) used_bytes: u64,
    /// Bytes that the index points to.
    pub(crate) live_bytes: u64,
}

impl SegmentUse {
    /// Bytes that nothing points to.
    pub(crate) fn dead_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.live_bytes)
    }

    /// Where in the segment its records lie.
    pub(crate) fn records(&self) -> Range<u64> {
        let first = u64::from(FIRST_RECORD);
        first..first + self.used_bytes
    }
}

/// Segments that are not used anew meanwhile.
#[must_use]
pub(crate) struct Sources<'a> {
    log: &'a ValueLog,
    segments: HashSet<u32>,
}

impl Sources<'_> {
    /// Whether a segment is held.
    pub(crate) fn holds(&self, segment: u32) -> bool {
        self.segments.contains(&segment)
    }

    /// Lets go of some of them.
    pub(crate) fn release(&mut self, segments: &[u32]) {
        let mut tail = self.log.tail.lock();
        for number in segments {
            if self.segments.remove(number) {
                tail.sources.remove(number);
            }
        }
    }
}

impl Drop for Sources<'_> {
    fn drop(&mut self) {
        let rest: Vec<u32> = self.segments.iter().copied().collect();
        self.release(&rest);
    }
}

/// Whether a segment holds, or held, records. Under the tail's lock.
fn is_used(segment: &Segment) -> bool {
    let used = segment.tail.load(Ordering::Relaxed) > FIRST_RECORD;
    used && !segment.free.load(Ordering::Relaxed)
}

impl ValueLog {
    /// The segments that nothing points into and that are not open: a checkpoint asks at its
    /// start and may [`free`](Self::free) them at its end. If it fails, the next one gets them
    /// again.
    pub(crate) fn empty_segments(&self) -> Vec<u32> {
        let mut tail = self.tail.lock();
        let mut empty = Vec::new();
        for &number in &tail.mapped {
            let Some(segment) = self.segment(number) else { continue };
            if is_used(segment) && !tail.is_taken(number) && segment.is_empty() {
                empty.push(number);
            }
        }
        // From here on nothing is allocated there.
        tail.close(&empty);
        empty
    }

    /// The segments that defragment may take records from: all base, nobody writes there, and
    /// something is left in them. One without anything live is a checkpoint's to free, perhaps of
    /// one that is under way and noted it already: it may be another segment at any moment.
    pub(crate) fn candidates(&self) -> Vec<SegmentUse> {
        let tail = self.tail.lock();
        let of = |number: &u32| self.candidate(&tail, *number);
        tail.mapped.iter().filter_map(of).collect()
    }

    fn candidate(&self, tail: &Tail, number: u32) -> Option<SegmentUse> {
        let segment = self.segment(number)?;
        let end = segment.tail.load(Ordering::Relaxed);
        // Acquire: with the Release of the checkpoint. Readers may rely on what is below.
        let is_base = segment.base.load(Ordering::Acquire) == end;
        let is_open = tail.is_taken(number) || tail.copy == Some(number);
        let live_bytes = segment.live();
        let is_candidate = is_used(segment) && is_base && !is_open && live_bytes > 0;
        let used_bytes = u64::from(end.saturating_sub(FIRST_RECORD));
        is_candidate.then_some(SegmentUse { number, used_bytes, live_bytes })
    }

    /// Holds segments that are to be read whole: nothing is allocated in them any more, and they
    /// are not used anew before they are [released](Sources::release). Those that are no
    /// candidates any more are left out: see [`Sources::holds`].
    pub(crate) fn hold_sources(&self, segments: &[u32]) -> Sources<'_> {
        let mut tail = self.tail.lock();
        let is_candidate = |number: &u32| self.candidate(&tail, *number).is_some();
        let segments: Vec<u32> = segments.iter().copied().filter(is_candidate).collect();
        tail.close(&segments);
        tail.sources.extend(&segments);
        Sources { log: self, segments: segments.into_iter().collect() }
    }

    /// Segments have lower numbers than this.
    pub(crate) fn segments_made(&self) -> u32 {
        self.tail.lock().mapped.iter().max().map_or(0, |last| last + 1)
    }

    /// Bytes that the index points to in a segment.
    pub(crate) fn live_in(&self, segment: u32) -> u64 {
        self.segment(segment).map_or(0, Segment::live)
    }

    /// Which segment a location lies in.
    pub(crate) fn segment_of(&self, location: Location) -> u32 {
        (location.offset() / self.segment_bytes) as u32
    }

    /// Where in its segment a location lies.
    pub(crate) fn offset_in_segment(&self, location: Location) -> u64 {
        location.offset() % self.segment_bytes
    }

    /// The location of `allocated` bytes at an offset in a segment.
    pub(crate) fn location_in(&self, segment: u32, offset: u64, allocated: u64) -> Location {
        Location::new(u64::from(segment) * self.segment_bytes + offset, allocated)
    }

    /// Whether a sync has failed: no more writes then.
    pub(crate) fn sync_has_failed(&self) -> bool {
        // Relaxed: whoever sees it late fails at its own next sync.
        self.unsynced.failed.load(Ordering::Relaxed)
    }

    /// Counts a copy as live: its sealed location is about to be published. Under the key's stripe.
    pub(crate) fn add_live_copy(&self, location: Location) {
        match self.locate(location) {
            Ok((segment, _)) => segment.add_live(location.allocated()),
            Err(error) => debug_assert!(false, "{error}"),
        }
    }

    /// Reads `[offset, offset + out.len())` of a segment from the disk: for base records.
    pub(crate) fn read_segment(&self, number: u32, offset: u64, out: &mut [u8]) -> Result<()> {
        let Some(segment) = self.segment(number) else {
            return Err(Error::new(ErrorKind::Io, format!("no value segment {number}")));
        };
        let read = segment.file.read_at(offset, out);
        read.map_err(|error| Error::io("read", segment.file.path(), &error))
    }

    /// The error for a bad record.
    pub(crate) fn bad_record(&self, location: Location, what: &str) -> Error {
        let path = path_of(self.segment_of(location));
        Error::corrupt(&self.disk.root().join(path), location.offset() % self.segment_bytes, what)
    }

    /// Gives the blocks of free segments beyond `keep` back to the disk; answers how many.
    /// Their files stay as names without content, or go.
    pub(crate) fn trim(&self, keep: usize) -> usize {
        let mut trimmed = 0;
        loop {
            let mapped = {
                let mut tail = self.tail.lock();
                self.collect_freed(&mut tail);
                if tail.free.len() + tail.files.len() <= keep {
                    return trimmed;
                }
                match tail.files.pop() {
                    // Under the lock: once its number is no found file, a roll may make it anew.
                    Some(number) => {
                        if let Err(error) = self.disk.remove(&path_of(number)) {
                            tracing::warn!(segment = number, %error, "cannot remove a free value segment");
                        }
                        None
                    }
                    None => tail.free.pop(),
                }
            };
            // Without the lock: it takes a while, and nobody else knows of the segment meanwhile.
            if let Some(number) = mapped
                && let Some(segment) = self.segment(number)
            {
                let cut = segment.file.set_len(0);
                let mut tail = self.tail.lock();
                if let Err(error) = cut {
                    tracing::warn!(segment = number, %error, "cannot cut a free value segment");
                    tail.free.push(number);
                    return trimmed;
                }
                tail.cut.push(number);
            }
            trimmed += 1;
        }
    }

    /// Bytes of disk that new records can take without asking the disk: free segments.
    pub(crate) fn free_bytes(&self) -> u64 {
        let mut tail = self.tail.lock();
        self.collect_freed(&mut tail);
        let freeing = self.freeing.load(Ordering::Relaxed) as usize;
        (tail.free.len() + tail.files.len() + freeing) as u64 * self.segment_bytes
    }

    /// Bytes given out for records since the open. Only grows.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Bytes of segments that the next checkpoint can free.
    pub(crate) fn empty_bytes(&self) -> u64 {
        let tail = self.tail.lock();
        let is_empty = |number: &&u32| {
            let segment = self.segment(**number);
            segment.is_some_and(|s| is_used(s) && !tail.is_taken(**number) && s.is_empty())
        };
        tail.mapped.iter().filter(is_empty).count() as u64 * self.segment_bytes
    }

    /// Gives segments up for reuse, once no reader can hold a location in them: readers keep a
    /// `crossbeam_epoch` guard from the look-up to the end of the read. `segments` are from the
    /// [`empty_segments`](Self::empty_segments) of a checkpoint that is committed now.
    pub(crate) fn free(&self, segments: &[u32]) {
        let guard = crossbeam_epoch::pin();
        for &number in segments {
            let Some(segment) = self.segment(number) else { continue };
            {
                let _tail = self.tail.lock();
                debug_assert!(segment.is_empty(), "segment {number} is not empty");
                if segment.free.swap(true, Ordering::Relaxed) {
                    continue;
                }
            }
            self.freeing.fetch_add(1, Ordering::Relaxed);
            let freed = Arc::clone(&self.freed);
            guard.defer(move || freed.lock().push(number));
        }
        guard.flush();
    }

    /// Moves what no reader can hold to the free list.
    pub(super) fn collect_freed(&self, tail: &mut Tail) {
        if self.freeing.load(Ordering::Relaxed) == 0 {
            return;
        }
        if tail.free.is_empty() && self.freed.lock().is_empty() {
            // Nobody may have been pinned for long enough to run what is due.
            crossbeam_epoch::pin().flush();
        }
        let mut freed = std::mem::take(&mut *self.freed.lock());
        self.freeing.fetch_sub(freed.len() as u32, Ordering::Relaxed);
        tail.free.append(&mut freed);
    }
}
