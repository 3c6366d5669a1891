//! Where defragment puts its copies: segments of its own, which writers never see as tail.
//!
//! A batch is laid out ([`CopyBatch::place`]), filled ([`CopyBatch::slot`]), then written, synced
//! and made base in one step ([`CopyBatch::seal`]); only then may the index point into it.
//!
//! Invariants:
//! - what a batch has not sealed lies above the tail of its segment: no mark of a checkpoint
//!   covers it, and nothing points there;
//! - from the seal on `tail == floor == base == synced`: nobody changes a copy in place;
//! - the segments of a batch are no candidates and are not reported as empty until the batch is
//!   dropped, which its owner does behind the last repoint;
//! - one batch at a time: the caller sees to it.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::ValueLog;
use super::location::Location;
use super::placement::{PAGE, place};
use super::segment::FIRST_RECORD;
use super::tail::Purpose;
use crate::error::{Error, ErrorKind, Result};
use crate::io::sync_in_pieces;

/// Bytes of one write to a segment. The page cache keeps a file in units as large as the writes that made
/// them, and a store through the mapping makes a whole unit dirty: large ones are written again and again
/// by the checkpoints while records fill the segment when it is used anew.
const WRITE_BYTES: usize = 4 << 10;

/// The part of a batch that lies in one segment, in bytes of the segment.
struct Piece {
    segment: u32,
    from: u32,
    end: u32,
    /// Where its bytes begin in the buffer.
    start: usize,
}

/// A place in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopySlot {
    /// Where the record will be.
    pub(crate) location: Location,
    start: usize,
}

/// Copies on their way into segments. See the [module](self).
#[must_use]
pub(crate) struct CopyBatch<'a> {
    log: &'a ValueLog,
    pieces: Vec<Piece>,
    buffer: Vec<u8>,
}

impl ValueLog {
    /// Begins a batch of copies. The last one was dropped.
    pub(crate) fn begin_copy(&self) -> CopyBatch<'_> {
        debug_assert!(self.tail.lock().copying.is_empty(), "one batch at a time");
        CopyBatch { log: self, pieces: Vec::new(), buffer: Vec::new() }
    }
}

impl CopyBatch<'_> {
    /// The next place, for a record of `len` allocated bytes. `DiskFull` when a segment is needed
    /// and cannot be had; what was placed before stays good.
    pub(crate) fn place(&mut self, len: u64) -> Result<CopySlot> {
        debug_assert!(len + PAGE <= self.log.segment_bytes);
        loop {
            let bytes = self.log.segment_bytes;
            if let Some(piece) = self.pieces.last_mut()
                && let Some(start) = place(u64::from(piece.end), len, bytes)
            {
                piece.end = (start + len) as u32;
                let in_buffer = piece.start + (start as u32 - piece.from) as usize;
                self.buffer.resize(in_buffer + len as usize, 0);
                let global = u64::from(piece.segment) * bytes + start;
                return Ok(CopySlot { location: Location::new(global, len), start: in_buffer });
            }
            self.open_piece()?;
        }
    }

    /// Goes on in the segment that was begun last, or in a new one.
    fn open_piece(&mut self) -> Result<()> {
        let log = self.log;
        let mut tail = log.tail.lock();
        let number = match tail.copy {
            Some(number) if self.pieces.is_empty() => number,
            _ => log.take_free(&mut tail, Purpose::Copies)?,
        };
        tail.copy = Some(number);
        tail.copying.push(number);
        let from = log.segment(number).map_or(0, |segment| segment.tail.load(Ordering::Relaxed));
        let start = self.buffer.len();
        self.pieces.push(Piece { segment: number, from, end: from, start });
        Ok(())
    }

    /// The bytes of a place, zero until filled.
    pub(crate) fn slot(&mut self, slot: CopySlot) -> &mut [u8] {
        &mut self.buffer[slot.start..][..slot.location.allocated() as usize]
    }

    /// Writes and syncs what was placed and makes it base: from here the index may point to it.
    /// `between` is called between two writes. A failed write changes nothing; after a failed sync
    /// ([`sync_has_failed`](ValueLog::sync_has_failed)) the caller must take no more writes.
    pub(crate) fn seal(&mut self, between: &mut dyn FnMut(usize)) -> Result<()> {
        let log = self.log;
        if log.sync_has_failed() {
            let what = "an earlier sync of the value log failed";
            return Err(Error::new(ErrorKind::ReadOnly, what));
        }
        for piece in self.pieces.iter().filter(|piece| piece.end > piece.from) {
            let Some(segment) = log.segment(piece.segment) else { continue };
            let bytes = &self.buffer[piece.in_buffer()];
            for (number, part) in bytes.chunks(WRITE_BYTES).enumerate() {
                let at = u64::from(piece.from) + (number * WRITE_BYTES) as u64;
                segment
                    .file
                    .write_at(at, part)
                    .map_err(|error| Error::io("write", segment.file.path(), &error))?;
                between(part.len());
            }
        }
        let between = RefCell::new(between);
        for piece in self.pieces.iter().filter(|piece| piece.end > piece.from) {
            let Some(segment) = log.segment(piece.segment) else { continue };
            // From 0 in a new one: its header, too.
            let from = u64::from(segment.synced.load(Ordering::Relaxed));
            let end = u64::from(piece.sealed_end());
            let synced = sync_in_pieces(&*segment.file, from, end, &|| between.borrow_mut()(0));
            if let Err(error) = synced {
                log.unsynced.failed.store(true, Ordering::Relaxed);
                return Err(Error::sync(segment.file.path(), &error));
            }
            between.borrow_mut()(0);
        }
        // Under the lock: a checkpoint that sees the tail sees the floor, too.
        let _tail = log.tail.lock();
        for piece in self.pieces.iter_mut().filter(|piece| piece.end > piece.from) {
            let Some(segment) = log.segment(piece.segment) else { continue };
            let end = piece.sealed_end();
            segment.raise(end);
            piece.from = end;
            piece.end = end;
        }
        Ok(())
    }
}

impl Piece {
    fn in_buffer(&self) -> Range<usize> {
        self.start..self.start + (self.end - self.from) as usize
    }

    /// Base and tail never share a page.
    fn sealed_end(&self) -> u32 {
        self.end.next_multiple_of(PAGE as u32)
    }
}

impl Drop for CopyBatch<'_> {
    fn drop(&mut self) {
        let log = self.log;
        let mut tail = log.tail.lock();
        let mut last_sealed = None;
        for number in std::mem::take(&mut tail.copying) {
            let Some(segment) = log.segment(number) else { continue };
            if segment.tail.load(Ordering::Relaxed) > FIRST_RECORD {
                last_sealed = Some(number);
                continue;
            }
            // Taken, and nothing of it was sealed.
            segment.free.store(true, Ordering::Relaxed);
            tail.free.push(number);
            if tail.copy == Some(number) {
                // What was begun before has room yet.
                tail.copy = last_sealed;
            }
        }
    }
}
