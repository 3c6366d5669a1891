//! The value log (T2): records in fixed-size segments, written and read through mappings.
//!
//! An offset is `segment number * segment size + offset in the segment`. In each segment:
//!
//! ```text
//! 0        4096                      base              floor     tail           segment end
//! | header | immutable for everybody | for writers too | records | free ...     |
//! ```
//!
//! Below `base` readers copy without the sequence lock; from `base` on under it; writers change
//! records in place from `floor` on only. A checkpoint raises `floor` (`begin_base`), lets every
//! writer pass, then raises `base` (`publish_base`) and syncs up to it (`sync_base`).
//!
//! Invariants:
//! - base and tail never share a page: the floor is whole pages, and allocation goes on from there;
//! - what lies above the base lengths at open is never read, whatever it holds;
//! - a segment is reused only when nothing in the index points into it, no allocation in it is
//!   under way, the caller said so (`free`), and every reader that was pinned then is gone;
//! - in a segment of records that are written once nothing is changed in place: see `once`;
//! - nothing but [`Allocation`]s is stored to without the sequence lock, and each once.
//!
//! Lock order: the tail's lock, then the list of freed segments. Neither is held during a wait,
//! except that a roll to a new segment makes it under the tail's lock.

mod base;
mod bus_error;
mod copy;
#[cfg(all(test, shuttle))]
mod explore_test;
#[cfg(test)]
mod fault_test;
mod location;
mod mapping;
mod once;
mod open;
mod placement;
mod read;
mod read_policy;
mod reclaim;
mod record;
#[cfg(test)]
mod record_test;
mod residency;
mod segment;
mod seqlock;
mod tail;
#[cfg(test)]
mod value_log_test;

use crate::sync::primitives::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sync::primitives::{Mutex, PlainMutex};

pub(crate) use self::base::SegmentBase;
pub use self::bus_error::EXIT_BUS_ERROR;
pub(crate) use self::bus_error::install as install_bus_error_handler;
pub(crate) use self::copy::{CopyBatch, CopySlot};
pub(crate) use self::location::{Location, RECORD_ALIGN};
pub(crate) use self::once::{Adopted, Stored, Unsynced};
pub(crate) use self::open::check_files;
pub(crate) use self::read_policy::Access;
pub(crate) use self::reclaim::SegmentUse;
pub(crate) use self::record::{check_record, key_of_record, record_len, renew_record};
pub(crate) use self::tail::Allocation;

use self::mapping::Mapping;
use self::segment::Segment;
use self::tail::Tail;
use crate::error::{Error, Result};
use crate::io::Disk;
use crate::options::ReadPolicy;
use crate::stats::ValueLogStats;

/// The value log of one engine. Dropping it closes it; what matters then is in the WAL.
pub(crate) struct ValueLog {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    read_policy: ReadPolicy,
    mapping: Mapping,
    /// By number. Set once, when the file is mapped.
    segments: Box<[OnceLock<Box<Segment>>]>,
    tail: Mutex<Tail>,
    /// Segments that no reader can hold any more, on their way to `Tail::free`.
    freed: Arc<PlainMutex<Vec<u32>>>,
    /// Segments given to `free` that have not reached `Tail::free`. Relaxed: a hint.
    freeing: AtomicU32,
    /// Names of files that no sync of the folder covers. Set by whoever makes a file, before any
    /// mark can name it; both under the tail's lock or behind it.
    folder_changed: AtomicBool,
    /// The last segment that was wanted could not be made for lack of space. Relaxed: for show.
    full: AtomicBool,
    /// Records that the log refers to and that are not durable yet; also, whether a sync failed.
    unsynced: Arc<Unsynced>,
    /// Values of at least so many bytes are written once. Relaxed: either way is right.
    once_from: AtomicUsize,
    /// Bytes allocated since the open. Relaxed, like the next: only for triggers.
    allocated: AtomicU64,
    /// What of it was in the last base that was synced.
    settled: AtomicU64,
    /// Scans take all of it for cold: more than fits memory is too much for a test.
    #[cfg(test)]
    pub(crate) all_cold: AtomicBool,
}

impl ValueLog {
    /// What the flusher of the log makes durable.
    pub(crate) fn unsynced(&self) -> Arc<Unsynced> {
        Arc::clone(&self.unsynced)
    }

    fn segment(&self, number: u32) -> Option<&Segment> {
        self.segments.get(number as usize)?.get().map(|segment| &**segment)
    }

    /// The segment of a location and the offset in it; an error if there cannot be a record.
    fn locate(&self, location: Location) -> Result<(&Segment, u64)> {
        let (offset, len) = (location.offset(), location.allocated());
        let number = (offset / self.segment_bytes) as u32;
        let within = offset % self.segment_bytes;
        let wrong = |what| {
            let path = self.disk.root().join(segment::path_of(number));
            Err(Error::corrupt(&path, within, what))
        };
        let Some(segment) = self.segment(number) else {
            return wrong("the index points into a segment that is not there");
        };
        let first = u64::from(segment::FIRST_RECORD);
        if within < first || len <= record::HEADER as u64 || within + len > self.segment_bytes {
            return wrong("the index points where no record can be");
        }
        Ok((segment, within))
    }

    /// Counts a record as live that was not written since the open: for recovery, which loads
    /// locations from the index files. ([`write`](Self::write) counts by itself.)
    pub(crate) fn add_live(&self, location: Location) -> Result<()> {
        let (segment, within) = self.locate(location)?;
        if within + location.allocated() > u64::from(segment.base.load(Ordering::Acquire)) {
            let what = "the index points beyond the base length in the manifest";
            return Err(Error::corrupt(&segment.file.path(), within, what));
        }
        segment.add_live(location.allocated());
        Ok(())
    }

    /// Counts a record as dead: once, by whoever took its location out of the index, or did not
    /// publish it after [`write`](Self::write).
    pub(crate) fn sub_live(&self, location: Location) {
        match self.locate(location) {
            Ok((segment, _)) => segment.sub_live(location.allocated()),
            Err(error) => debug_assert!(false, "{error}"),
        }
    }

    /// Whether the last attempt to get more space failed.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Allocated bytes that are in no synced base yet: for triggers.
    pub(crate) fn tail_bytes_since_base(&self) -> u64 {
        let settled = self.settled.load(Ordering::Relaxed);
        self.allocated.load(Ordering::Relaxed).saturating_sub(settled)
    }

    /// Sizes at this moment.
    pub(crate) fn stats(&self) -> ValueLogStats {
        let mut stats = ValueLogStats::default();
        let tail = self.tail.lock();
        let mut used = 0;
        for segment in tail.mapped.iter().filter_map(|number| self.segment(*number)) {
            if segment.free.load(Ordering::Relaxed) {
                continue;
            }
            stats.segments += 1;
            stats.base_bytes += u64::from(segment.base.load(Ordering::Relaxed));
            stats.tail_bytes += u64::from(segment.tail_bytes());
            stats.live_bytes += segment.live();
            used += u64::from(segment.tail.load(Ordering::Relaxed) - segment::FIRST_RECORD);
        }
        let cut = tail.cut.len();
        let on_disk = tail.mapped.len() + tail.files.len() - cut;
        stats.disk_bytes = on_disk as u64 * self.segment_bytes;
        stats.dead_bytes = used.saturating_sub(stats.live_bytes);
        stats.free_segments = on_disk as u64 - stats.segments;
        stats
    }
}
