//! Where new records go, and updates in place.
//!
//! Invariants: an [`Allocation`] is a place that nobody else has; it counts as pending in its
//! segment until it is written or dropped, so the segment is not empty meanwhile. A roll that fails
//! changes nothing. The last numbers below `value_log_max_bytes` are kept for copies, so that dead
//! bytes can be reclaimed when writers have used up the rest.

use std::collections::HashSet;

use crate::sync::primitives::atomic::Ordering;
use std::sync::Arc;

use super::ValueLog;
use super::location::Location;
use super::placement::{PAGE, place};
use super::record::{self, HEADER};
use super::segment::{FIRST_RECORD, Segment, path_of};
use super::seqlock;
use crate::error::{Error, ErrorKind, Result};
use crate::io::File;

/// Most segments kept in mind for having room.
const MOST_WITH_ROOM: usize = 64;
/// Segments below `value_log_max_bytes` that only copies may take.
const KEPT_FOR_COPIES: usize = 2;

/// What a segment is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// New records.
    Records,
    /// New records that the log only refers to.
    Once,
    /// Copies of old ones.
    Copies,
}

/// Segments that are filled with records of one kind.
#[derive(Default)]
pub(super) struct Lane {
    /// Where records go now.
    open: Option<u32>,
    /// That segment, opened for records that are written once.
    file: Option<Arc<dyn File>>,
    /// Partly filled ones, tried before a new one is taken.
    with_room: Vec<u32>,
}

impl Lane {
    /// Notes that `segment` has `room` bytes left.
    pub(super) fn add_room(&mut self, segment: u32, room: u64) {
        if room >= PAGE && self.with_room.len() < MOST_WITH_ROOM {
            self.with_room.push(segment);
        }
    }
}

/// Which segments can take records. Everything is by segment number.
#[derive(Default)]
pub(super) struct Tail {
    /// Where records go that the log has, too.
    pub(super) records: Lane,
    /// Where records go that the log refers to.
    pub(super) once: Lane,
    /// Where defragment's next copies go: sealed up to its tail.
    pub(super) copy: Option<u32>,
    /// The segments of the batch of copies that is under way.
    pub(super) copying: Vec<u32>,
    /// What defragment reads from: not reported as empty meanwhile, so not used anew.
    pub(super) sources: HashSet<u32>,
    /// Mapped, without content.
    pub(super) free: Vec<u32>,
    /// Mapped and without content, the file cut to nothing.
    pub(super) cut: Vec<u32>,
    /// Files found at open that are not in use, highest number first.
    pub(super) files: Vec<u32>,
    /// Files found at open that have not the length of a segment.
    pub(super) unfinished: Vec<u32>,
    /// All that are mapped.
    pub(super) mapped: Vec<u32>,
    /// No segment from here on has been made by this process.
    next: u32,
}

impl Tail {
    fn lane(&mut self, purpose: Purpose) -> &mut Lane {
        if purpose == Purpose::Once { &mut self.once } else { &mut self.records }
    }

    /// Whether somebody writes to the segment, reads it whole, or is about to point into it.
    pub(super) fn is_taken(&self, segment: u32) -> bool {
        self.records.open == Some(segment)
            || self.once.open == Some(segment)
            || self.copying.contains(&segment)
            || self.sources.contains(&segment)
    }

    /// Nothing is allocated in these segments any more.
    pub(super) fn close(&mut self, segments: &[u32]) {
        self.records.with_room.retain(|number| !segments.contains(number));
        self.once.with_room.retain(|number| !segments.contains(number));
        if self.copy.is_some_and(|number| segments.contains(&number)) {
            self.copy = None;
        }
    }
}

/// A place for one record. Dropping it gives it up: its bytes are dead.
#[must_use]
pub(crate) struct Allocation<'a> {
    segment: &'a Segment,
    location: Location,
    /// For a record that is written once.
    file: Option<Arc<dyn File>>,
}

impl<'a> Allocation<'a> {
    pub(super) fn segment(&self) -> &'a Segment {
        self.segment
    }

    pub(super) fn file(&self) -> Option<&Arc<dyn File>> {
        self.file.as_ref()
    }

    pub(super) fn location(&self) -> Location {
        self.location
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        self.segment.end_pending();
    }
}

impl ValueLog {
    /// A place for a record. Under the key's stripe. Fails with [`ErrorKind::DiskFull`] when a new
    /// segment is needed and cannot be made; nothing is changed then.
    pub(crate) fn allocate(&self, key_len: usize, value_len: usize) -> Result<Allocation<'_>> {
        self.allocate_for(Purpose::Records, key_len, value_len)
    }

    /// The same for a purpose.
    pub(super) fn allocate_for(
        &self,
        purpose: Purpose,
        key_len: usize,
        value_len: usize,
    ) -> Result<Allocation<'_>> {
        let len = record::allocated_len(key_len, value_len);
        if len > self.segment_bytes - PAGE {
            let limit = self.segment_bytes - PAGE;
            return Err(Error::invalid(format!(
                "a record of {len} bytes; value_segment_bytes allows {limit}"
            )));
        }
        let mut tail = self.tail.lock();
        if let Some(allocation) = self.allocate_open(&mut tail, purpose, len) {
            return Ok(allocation);
        }
        let rolled = self.roll(&mut tail, purpose, len);
        let full = matches!(&rolled, Err(error) if error.kind() == ErrorKind::DiskFull);
        self.full.store(full, Ordering::Relaxed);
        rolled?;
        self.allocate_open(&mut tail, purpose, len)
            .ok_or_else(|| Error::new(ErrorKind::DiskFull, "the value log has no room"))
    }

    fn allocate_open(&self, tail: &mut Tail, purpose: Purpose, len: u64) -> Option<Allocation<'_>> {
        let segment = self.segment(tail.lane(purpose).open?)?;
        let from = u64::from(segment.tail.load(Ordering::Relaxed));
        let start = place(from, len, self.segment_bytes)?;
        segment.tail.store((start + len) as u32, Ordering::Relaxed);
        segment.begin_pending();
        self.allocated.fetch_add(start + len - from, Ordering::Relaxed);
        let location = Location::new(segment.start + start, len);
        let file = if purpose == Purpose::Once { tail.once.file.clone() } else { None };
        Some(Allocation { segment, location, file })
    }

    /// Opens a segment that has room for `len` bytes.
    fn roll(&self, tail: &mut Tail, purpose: Purpose, len: u64) -> Result<()> {
        let room = |number: u32| {
            let tail = self.segment(number)?.tail.load(Ordering::Relaxed);
            Some((self.segment_bytes - u64::from(tail), u64::from(tail)))
        };
        let fits = |number: &u32| {
            room(*number).is_some_and(|(_, tail)| place(tail, len, self.segment_bytes).is_some())
        };
        // What has only base below its tail may change its lane: so is all that an open has found. Not
        // the floor: until it is base, too, somebody may be changing a record in place.
        let may_change = |number: &u32| {
            self.segment(*number).is_some_and(|segment| {
                let (base, tail) = (&segment.base, &segment.tail);
                tail.load(Ordering::Relaxed) <= base.load(Ordering::Acquire).max(FIRST_RECORD)
            })
        };
        let take = |with_room: &mut Vec<u32>, fits: &dyn Fn(&u32) -> bool| {
            with_room.iter().position(fits).map(|i| with_room.swap_remove(i))
        };
        let found = take(&mut tail.lane(purpose).with_room, &fits).or_else(|| match purpose {
            Purpose::Once => take(&mut tail.records.with_room, &|n| fits(n) && may_change(n)),
            Purpose::Records | Purpose::Copies => None,
        });
        let next = match found {
            Some(number) => number,
            None => match self.take_free(tail, purpose) {
                Err(error) if error.kind() == ErrorKind::DiskFull => {
                    // Better some room that copies have left over than none.
                    let copy = tail.copy.filter(|_| tail.copying.is_empty());
                    let copy = copy.filter(fits).ok_or(error)?;
                    tail.copy = None;
                    copy
                }
                taken => taken?,
            },
        };
        if purpose == Purpose::Once
            && let Some(segment) = self.segment(next)
        {
            let path = path_of(next);
            match self.disk.open(&path) {
                Ok(file) => {
                    segment.once.store(true, Ordering::Relaxed);
                    self.unsynced.add_segment(&file);
                    tail.once.file = Some(file);
                }
                Err(error) => {
                    // It is as good as before for others.
                    tail.records.add_room(next, self.segment_bytes);
                    return Err(Error::io("open", self.disk.root().join(path), &error));
                }
            }
        }
        let lane = tail.lane(purpose);
        if let Some(old) = lane.open.replace(next) {
            lane.add_room(old, room(old).map_or(0, |(room, _)| room));
        }
        Ok(())
    }

    /// An empty segment: a freed one, a file that was found, or a new one.
    pub(super) fn take_free(&self, tail: &mut Tail, purpose: Purpose) -> Result<u32> {
        self.collect_freed(tail);
        if let Some(number) = tail.free.pop() {
            if let Some(segment) = self.segment(number) {
                segment.reset();
            }
            return Ok(number);
        }
        if let Some(&number) = tail.cut.last()
            && let Some(segment) = self.segment(number)
        {
            self.fill_file(&*segment.file, number)
                .map_err(|error| Error::io("allocate", segment.file.path(), &error))?;
            segment.reset();
            tail.cut.pop();
            return Ok(number);
        }
        if let Some(&number) = tail.files.last() {
            self.make_segment(number)?;
            tail.files.pop();
            tail.mapped.push(number);
            return Ok(number);
        }
        while self.segment(tail.next).is_some() {
            tail.next += 1;
        }
        let number = tail.next;
        let kept = if purpose == Purpose::Copies { 0 } else { KEPT_FOR_COPIES };
        if number as usize + kept >= self.segments.len() {
            let what = "the value log has reached value_log_max_bytes";
            return Err(Error::new(ErrorKind::DiskFull, what));
        }
        self.make_segment(number)?;
        tail.mapped.push(number);
        Ok(number)
    }

    /// Writes a record into its place and counts it as live: the caller publishes the location, or
    /// takes it back with [`sub_live`](Self::sub_live). Cannot fail. The lengths are those that were
    /// allocated for, or less. `expiry_ms` 0: never.
    pub(crate) fn write(
        &self,
        allocation: Allocation<'_>,
        key: &[u8],
        value: &[u8],
        expiry_ms: u64,
    ) -> Location {
        let location = allocation.location;
        assert!(Self::fits(location, key.len(), value.len()), "the record outgrew its allocation");
        let header = record::encode_header(key, value, location.allocated(), expiry_ms);
        let mut at = location.offset();
        for bytes in [&header, key, value] {
            // SAFETY: inside an allocation, by the assertion, in a mapped segment. The allocation
            // is the only one of its place and is consumed here; readers come when it is published,
            // which the index orders behind these stores.
            unsafe { self.mapping.copy_in(at, bytes) };
            at += bytes.len() as u64;
        }
        allocation.segment.add_live(location.allocated());
        // Behind the count: in between, the segment must not seem empty.
        drop(allocation);
        location
    }

    /// Whether the record may be changed in place. Under the key's stripe.
    pub(crate) fn is_tail(&self, location: Location) -> bool {
        let Some(segment) = self.segment((location.offset() / self.segment_bytes) as u32) else {
            return false;
        };
        if segment.once.load(Ordering::Relaxed) {
            return false;
        }
        // The stripe orders this: the checkpoint passes it behind its store.
        segment.within(location) >= segment.floor.load(Ordering::Relaxed)
    }

    /// Whether a record of these lengths fits where `location` is.
    pub(crate) fn fits(location: Location, key_len: usize, value_len: usize) -> bool {
        (HEADER + key_len + value_len) as u64 <= location.allocated()
    }

    /// Changes value and expiry in place. Under the key's stripe, for a location of this key from
    /// the index that [`is_tail`](Self::is_tail) and [`fits`](Self::fits) under the same hold.
    /// Cannot fail.
    pub(crate) fn overwrite(&self, location: Location, key: &[u8], value: &[u8], expiry_ms: u64) {
        assert!(Self::fits(location, key.len(), value.len()), "the value does not fit");
        // The floor may have risen since the caller looked, but not what readers see: the checkpoint
        // waits for this stripe in between.
        debug_assert!(self.is_above_base(location), "an immutable record");
        // SAFETY: a published record in a mapped segment, above the base: others access it as words
        // only, and while it is in the index its segment is not reused.
        let words = unsafe { self.mapping.words(location.offset(), location.allocated()) };
        seqlock::overwrite(words, key, value, expiry_ms);
    }
}
