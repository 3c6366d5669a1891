//! Which segments the log needs, and which files wait to be used again.
//!
//! Invariants: `live` is ordered by `start_lsn` and `seq`, covers everything from the last
//! checkpoint on, and ends with the segment that is being written, which is never retired; a free
//! file keeps its old name and header until it is reused, so it only ever holds what lies below a
//! durable checkpoint or was never started; `free <= limit`, and all free files have one length.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use crate::sync::primitives::Mutex;

use super::WAL_FOLDER;
use super::segment::{HEADER_BLOCK_BYTES, MakeError, make_file, segment_path};
use crate::error::Error;
use crate::io::{Disk, File};
use crate::options::Options;

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

/// The log's files.
pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
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
            limit: between_checkpoints.min(62) as usize + 2,
            state: Mutex::new(State { next_seq, ..State::default() }),
        }
    }

    /// Adds the newest live segment.
    pub(super) fn push_live(&self, segment: LiveSegment) {
        self.state.lock().live.push_back(segment);
    }

    /// Takes over a file that nobody needs: for reuse, or to be removed.
    pub(super) fn push_free(&self, seq: u64, bytes: u64) {
        {
            let mut state = self.state.lock();
            if bytes == self.segment_bytes && state.free.len() < self.limit {
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
        let (seq, recycled) = {
            let mut state = self.state.lock();
            let seq = state.next_seq;
            state.next_seq += 1;
            let recycled = if bytes == self.segment_bytes { state.free.pop() } else { None };
            (seq, recycled)
        };
        match make_file(&*self.disk, seq, bytes, recycled) {
            Ok(file) => Ok(NewFile { seq, file, bytes }),
            Err(error) => {
                self.state.lock().free.extend(recycled);
                Err(error)
            }
        }
    }

    /// Allocates more of a file, so that it has `room` for records. Nothing has changed after an
    /// error. The length is durable when the header is.
    pub(super) fn lengthen(&self, made: &mut NewFile, room: u64) -> Result<(), MakeError> {
        let bytes = self.bytes_for(room);
        if bytes > made.bytes {
            let allocated = made.file.allocate(bytes);
            allocated.map_err(|e| MakeError::Other(Error::io("allocate", made.file.path(), &e)))?;
            made.bytes = bytes;
        }
        Ok(())
    }

    /// Length of a file with `room` for records: whole segments, so that it rarely grows.
    fn bytes_for(&self, room: u64) -> u64 {
        (HEADER_BLOCK_BYTES + room).next_multiple_of(self.segment_bytes)
    }

    /// Whether a file waits to be used again.
    pub(super) fn has_free(&self) -> bool {
        !self.state.lock().free.is_empty()
    }

    /// The folder, for messages.
    pub(super) fn folder(&self) -> PathBuf {
        self.disk.root().join(WAL_FOLDER)
    }

    /// Nothing below `checkpoint_lsn` is needed.
    pub(super) fn retire(&self, checkpoint_lsn: u64) {
        loop {
            let retired = {
                let mut state = self.state.lock();
                match state.live.get(1) {
                    // A segment ends where the next one starts.
                    Some(next) if next.start_lsn <= checkpoint_lsn => state.live.pop_front(),
                    _ => None,
                }
            };
            let Some(segment) = retired else { return };
            self.push_free(segment.seq, segment.bytes);
        }
    }

    /// How many segments are live, and how many files are free.
    pub(super) fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.live.len() as u64, state.free.len() as u64)
    }
}
