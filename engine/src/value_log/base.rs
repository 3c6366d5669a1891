//! The value log's part of a checkpoint: from tail to base.
//!
//! The caller's order: [`begin_base`](ValueLog::begin_base); pass every stripe;
//! [`publish_base`](ValueLog::publish_base); [`sync_base`](ValueLog::sync_base); the manifest with
//! [`bases`](ValueLog::bases). One checkpoint at a time.
//!
//! Invariants: a length in a manifest is synced before; a sync begins at what was synced last, not
//! at the last base, so that a checkpoint that failed leaves no gap; after a failed sync none
//! succeeds, for the kernel shows failed pages as clean.

use crate::sync::primitives::atomic::Ordering;

use super::ValueLog;
use super::placement::PAGE;
use super::segment::{FIRST_RECORD, FOLDER};
use crate::error::{Error, ErrorKind, Result};
use crate::io::sync_in_pieces;

/// The base length of one segment, as the manifest keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentBase {
    pub(crate) segment: u32,
    /// Whole pages.
    pub(crate) base_bytes: u32,
}

/// The base lengths that a checkpoint makes.
#[must_use]
#[derive(Clone, Debug)]
pub(crate) struct BaseMark {
    bases: Vec<SegmentBase>,
    allocated: u64,
}

impl ValueLog {
    /// Ends the tail of every segment at the next page: later allocations start there, and writers
    /// whose stripe is passed from now on change nothing below. `empty`: the answer of
    /// [`empty_segments`](Self::empty_segments) at this checkpoint's start; they are left out, for
    /// nothing points into them.
    pub(crate) fn begin_base(&self, empty: &[u32]) -> BaseMark {
        let tail = self.tail.lock();
        let mut bases = Vec::with_capacity(tail.mapped.len());
        for segment in tail.mapped.iter().filter_map(|number| self.segment(*number)) {
            if segment.free.load(Ordering::Relaxed) || empty.contains(&segment.number) {
                continue;
            }
            let end = segment.tail.load(Ordering::Relaxed);
            let mut floor = segment.floor.load(Ordering::Relaxed);
            if end > floor.max(FIRST_RECORD) {
                floor = end.next_multiple_of(PAGE as u32);
                segment.tail.store(floor, Ordering::Relaxed);
                // Ordered by the stripes, which the caller passes now.
                segment.floor.store(floor, Ordering::Relaxed);
            }
            if floor > 0 {
                bases.push(SegmentBase { segment: segment.number, base_bytes: floor });
            }
        }
        bases.sort_unstable_by_key(|base| base.segment);
        BaseMark { bases, allocated: self.allocated.load(Ordering::Relaxed) }
    }

    /// Lets readers read below the new lengths without the sequence lock. Every stripe has been
    /// passed since [`begin_base`](Self::begin_base): no writer is below any more.
    pub(crate) fn publish_base(&self, mark: &BaseMark) {
        for base in &mark.bases {
            if let Some(segment) = self.segment(base.segment) {
                // With the Acquire of readers: they see all stores below. Never back: copies may
                // have been sealed since the mark.
                segment.base.fetch_max(base.base_bytes, Ordering::Release);
            }
        }
    }

    /// Makes everything below the new lengths durable, and the names of the files. `between` is
    /// called between pieces, and may sleep. An error is for good: the engine must take no more
    /// writes.
    pub(crate) fn sync_base(&self, mark: &BaseMark, between: &dyn Fn()) -> Result<()> {
        // Relaxed: one checkpoint at a time.
        if self.unsynced.failed.load(Ordering::Relaxed) {
            let what = "an earlier sync of the value log failed";
            return Err(Error::new(ErrorKind::ReadOnly, what));
        }
        self.sync_all(mark, between)
            .inspect_err(|_| self.unsynced.failed.store(true, Ordering::Relaxed))?;
        self.settled.fetch_max(mark.allocated, Ordering::Relaxed);
        Ok(())
    }

    fn sync_all(&self, mark: &BaseMark, between: &dyn Fn()) -> Result<()> {
        for base in &mark.bases {
            let Some(segment) = self.segment(base.segment) else { continue };
            let from = segment.synced.load(Ordering::Relaxed);
            if from < base.base_bytes && segment.once.load(Ordering::Relaxed) {
                // Most of it is durable already: it is synced with the log.
                let (from, end) = (u64::from(from), u64::from(base.base_bytes));
                segment
                    .file
                    .sync_range(from, end - from)
                    .map_err(|error| Error::sync(segment.file.path(), &error))?;
                segment.synced.store(base.base_bytes, Ordering::Relaxed);
            } else if from < base.base_bytes {
                sync_in_pieces(
                    &*segment.file,
                    u64::from(from),
                    u64::from(base.base_bytes),
                    between,
                )
                .map_err(|error| Error::sync(segment.file.path(), &error))?;
                segment.synced.store(base.base_bytes, Ordering::Relaxed);
            }
        }
        // Acquire: with the Release of whoever made a file. A file made later is in no mark yet.
        if self.folder_changed.swap(false, Ordering::Acquire) {
            self.disk
                .sync_dir(FOLDER.as_ref())
                .map_err(|error| Error::sync(self.disk.root().join(FOLDER), &error))?;
        }
        Ok(())
    }

    /// What the manifest says of the value log. Synced by [`sync_base`](Self::sync_base).
    pub(crate) fn bases(mark: &BaseMark) -> Vec<SegmentBase> {
        mark.bases.clone()
    }
}
