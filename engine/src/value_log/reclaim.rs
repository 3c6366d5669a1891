//! From empty to free: when a segment may be used again.
//!
//! Invariants: a segment that was reported as empty takes no allocation from then on, so it stays
//! empty; it is freed by the caller, after a checkpoint that leaves it out is committed; it is
//! reused when every reader that was pinned at the time of `free` is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ValueLog;
use super::segment::FIRST_RECORD;
use super::tail::Tail;

impl ValueLog {
    /// The segments that nothing points into and that are not open: a checkpoint asks at its
    /// start and may [`free`](Self::free) them at its end. If it fails, the next one gets them
    /// again.
    pub(crate) fn empty_segments(&self) -> Vec<u32> {
        let mut tail = self.tail.lock();
        let mut empty = Vec::new();
        for &number in &tail.mapped {
            let Some(segment) = self.segment(number) else { continue };
            let used = segment.tail.load(Ordering::Relaxed) > FIRST_RECORD;
            let free = segment.free.load(Ordering::Relaxed);
            if used && !free && tail.open != Some(number) && segment.is_empty() {
                empty.push(number);
            }
        }
        // From here on nothing is allocated there.
        tail.with_room.retain(|number| !empty.contains(number));
        empty
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
        let mut freed = self.freed.lock();
        self.freeing.fetch_sub(freed.len() as u32, Ordering::Relaxed);
        tail.free.append(&mut freed);
    }
}
