//! Which segments the log needs, which it keeps for readers that lag, and which files wait to be
//! used again.
//!
//! Invariants: `live` is ordered by `start_lsn` and `seq`, covers everything from the last
//! checkpoint on, and ends with the segment that is being written, which is never retired; `kept`
//! lies before it in the same order, is needed by no recovery, has at most `keep_bytes`, and is
//! given up, oldest first, before anything is refused for want of disk; a free file keeps its old
//! name and header until it is reused, so it only ever holds what lies below a durable checkpoint
//! or was never started; `free <= limit`, and all free files have one length.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use crate::sync::primitives::Mutex;
use crate::sync::primitives::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::WAL_FOLDER;
use super::segment::{HEADER_BLOCK_BYTES, MakeError, make_file, segment_path};
use crate::error::{Error, ErrorKind};
use crate::io::{Disk, File};
use crate::options::Options;

/// Most files kept for reuse, beside two.
const MOST_FREE: usize = 62;

/// A segment that the log needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LiveSegment {
    pub(super) seq: u64,
    pub(super) start_lsn: u64,
    /// Length of the file.
    pub(super) bytes: u64,
}

/// A file that was made for a segment and is not started.
pub(super) struct NewFile {
    pub(super) seq: u64,
    pub(super) file: Arc<dyn File>,
    /// Length of the file.
    pub(super) bytes: u64,
}

/// Bytes of the log's files, by what they are for; the spare is not among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FileBytes {
    /// Segments that the log needs.
    pub(crate) live: u64,
    /// Segments that are kept for readers that lag.
    pub(crate) kept: u64,
    /// Files that wait to be used again.
    pub(crate) free: u64,
}

/// The log's files.
pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    /// Most free files. Relaxed, like the next: numbers that order nothing.
    limit: AtomicUsize,
    /// Most bytes of kept segments.
    keep_bytes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: VecDeque<LiveSegment>,
    live: VecDeque<LiveSegment>,
    free: Vec<u64>,
    next_seq: u64,
}

impl Segments {
    /// No segments yet; numbers start at `next_seq`.
    pub(super) fn new(disk: Arc<dyn Disk>, options: &Options, next_seq: u64) -> Self {
        let between_checkpoints = options.checkpoint_wal_bytes / options.wal_segment_bytes;
        Self {
            disk,
            segment_bytes: options.wal_segment_bytes,
            limit: AtomicUsize::new(between_checkpoints.min(MOST_FREE as u64) as usize + 2),
            keep_bytes: options.wal_keep_bytes.into(),
            state: Mutex::new(State { next_seq, ..State::default() }),
        }
    }

    /// Adds the newest live segment.
    pub(super) fn push_live(&self, segment: LiveSegment) {
        self.state.lock().live.push_back(segment);
    }

    /// Adds a segment behind the kept ones, which hold what lies directly before it. Of what is
    /// too much, the oldest goes.
    pub(super) fn push_kept(&self, segment: LiveSegment) {
        self.state.lock().kept.push_back(segment);
        self.trim();
    }

    /// Gives up the oldest kept segments, down to `keep_bytes`.
    fn trim(&self) {
        loop {
            let oldest = {
                let mut state = self.state.lock();
                let bytes: u64 = state.kept.iter().map(|segment| segment.bytes).sum();
                if bytes <= self.keep_bytes.load(Ordering::Relaxed) {
                    return;
                }
                state.kept.pop_front()
            };
            let Some(LiveSegment { seq, bytes, .. }) = oldest else { return };
            self.push_free(seq, bytes);
        }
    }

    /// Gives up every kept segment that starts at or below `lsn`: one of them is not what it
    /// should be.
    pub(super) fn give_up_kept(&self, lsn: u64) {
        loop {
            let oldest = {
                let mut state = self.state.lock();
                let due = state.kept.front().is_some_and(|segment| segment.start_lsn <= lsn);
                if due { state.kept.pop_front() } else { None }
            };
            let Some(LiveSegment { seq, bytes, .. }) = oldest else { return };
            self.push_free(seq, bytes);
        }
    }

    /// Where the log that is still there begins.
    pub(super) fn oldest_lsn(&self) -> u64 {
        let state = self.state.lock();
        let oldest = state.kept.front().or(state.live.front());
        oldest.map_or(0, |segment| segment.start_lsn)
    }

    /// The segment that holds the record of `lsn`, and where it ends (`u64::MAX`: not yet known);
    /// `None` below [`oldest_lsn`](Self::oldest_lsn).
    pub(super) fn locate(&self, lsn: u64) -> Option<(LiveSegment, u64)> {
        let state = self.state.lock();
        let mut end = u64::MAX;
        for segment in state.kept.iter().chain(&state.live).rev() {
            if segment.start_lsn <= lsn {
                return Some((*segment, end));
            }
            end = segment.start_lsn;
        }
        None
    }

    /// Opens a segment's file as it is named now.
    pub(super) fn open(&self, segment: LiveSegment) -> std::io::Result<Arc<dyn File>> {
        self.disk.open(&segment_path(segment.seq))
    }

    /// Takes over a file that nobody needs: for reuse, or to be removed.
    pub(super) fn push_free(&self, seq: u64, bytes: u64) {
        {
            let mut state = self.state.lock();
            if bytes == self.segment_bytes && state.free.len() < self.limit.load(Ordering::Relaxed)
            {
                state.free.push(seq);
                return;
            }
        }
        // It may come back after a power cut, as what it is: not needed. So nothing is synced.
        if let Err(error) = self.disk.remove(&segment_path(seq)) {
            tracing::warn!(seq, %error, "cannot remove a retired log segment");
        }
    }

    /// Makes the file of a new segment with `room` for records (header block not counted), or
    /// more. It is not live yet.
    pub(super) fn make(&self, room: u64) -> Result<NewFile, MakeError> {
        let bytes = self.bytes_for(room);
        let seq = {
            let mut state = self.state.lock();
            state.next_seq += 1;
            state.next_seq - 1
        };
        loop {
            let free = |state: &mut State| state.free.pop();
            let recycled =
                (bytes == self.segment_bytes).then(|| free(&mut self.state.lock())).flatten();
            match make_file(&*self.disk, seq, bytes, recycled) {
                Ok(file) => return Ok(NewFile { seq, file, bytes }),
                Err(error) => {
                    self.state.lock().free.extend(recycled);
                    if !self.gives_way(&error) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// On a full disk the oldest kept segment becomes free space, or a free file; whether there
    /// was one, so that what failed may be tried again.
    fn gives_way(&self, error: &MakeError) -> bool {
        let full = matches!(error, MakeError::Other(e) if e.kind() == ErrorKind::DiskFull);
        if !full {
            return false;
        }
        let Some(oldest) = self.state.lock().kept.pop_front() else { return false };
        self.push_free(oldest.seq, oldest.bytes);
        true
    }

    /// Allocates more of a file, so that it has `room` for records. Nothing has changed after an
    /// error. The length is durable when the header is.
    pub(super) fn lengthen(&self, made: &mut NewFile, room: u64) -> Result<(), MakeError> {
        let bytes = self.bytes_for(room);
        while bytes > made.bytes {
            match made.file.allocate(bytes) {
                Ok(()) => made.bytes = bytes,
                Err(error) => {
                    let error = Error::io("allocate", made.file.path(), &error);
                    let error = MakeError::Other(error);
                    if !self.gives_way(&error) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Length of a file with `room` for records: whole segments, so that it rarely grows.
    fn bytes_for(&self, room: u64) -> u64 {
        (HEADER_BLOCK_BYTES + room).next_multiple_of(self.segment_bytes)
    }

    /// Whether a file waits to be used again, or could.
    pub(super) fn has_free(&self) -> bool {
        let state = self.state.lock();
        !state.free.is_empty() || !state.kept.is_empty()
    }

    /// The folder, for messages.
    pub(super) fn folder(&self) -> PathBuf {
        self.disk.root().join(WAL_FOLDER)
    }

    /// No recovery needs what lies below `checkpoint_lsn`.
    pub(super) fn retire(&self, checkpoint_lsn: u64) {
        {
            let mut state = self.state.lock();
            // A segment ends where the next one starts.
            while state.live.get(1).is_some_and(|next| next.start_lsn <= checkpoint_lsn) {
                let retired = state.live.pop_front();
                state.kept.extend(retired);
            }
        }
        self.trim();
    }

    /// Keeps at most so many bytes for readers that lag and so many free files, from now on.
    pub(super) fn keep(&self, keep_bytes: u64, files: usize) {
        self.keep_bytes.store(keep_bytes, Ordering::Relaxed);
        self.trim();
        self.limit.store(files.min(MOST_FREE + 2), Ordering::Relaxed);
        loop {
            let seq = {
                let mut state = self.state.lock();
                if state.free.len() <= files {
                    return;
                }
                state.free.pop()
            };
            let Some(seq) = seq else { return };
            if let Err(error) = self.disk.remove(&segment_path(seq)) {
                tracing::warn!(seq, %error, "cannot remove a free log segment");
                return;
            }
        }
    }

    /// Bytes of the files.
    pub(super) fn bytes(&self) -> FileBytes {
        let state = self.state.lock();
        FileBytes {
            live: state.live.iter().map(|segment| segment.bytes).sum(),
            kept: state.kept.iter().map(|segment| segment.bytes).sum(),
            free: state.free.len() as u64 * self.segment_bytes,
        }
    }

    /// How many segments are live, how many kept, and how many files are free.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let state = self.state.lock();
        (state.live.len() as u64, state.kept.len() as u64, state.free.len() as u64)
    }
}
