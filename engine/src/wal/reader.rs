//! Streams the records of one segment with bounded memory.
//!
//! Invariants: at most the larger of [`CHUNK_BYTES`] and one record is held; what is handed out
//! has both checksums right, lies where its LSN says, and lies wholly inside the file. An I/O error
//! is an error, never the end of the log.

use std::sync::Arc;

use super::record::{ALIGN, HEADER_BYTES, Header};
use super::segment::{HEADER_BLOCK_BYTES, SegmentHeader};
use crate::error::{Error, Result};
use crate::io::File;

/// Bytes read at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// Reads one segment.
pub(super) struct SegmentReader {
    file: Arc<dyn File>,
    header: SegmentHeader,
    /// Bytes of the file that may hold records.
    limit: u64,
    buffer: Vec<u8>,
    /// Where in the file the buffer begins.
    buffer_at: u64,
}

/// A header with the right checksum at its place; its body may be torn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Evidence {
    pub(super) lsn: u64,
    pub(super) base: u64,
}

impl SegmentReader {
    pub(super) fn new(file: Arc<dyn File>, header: SegmentHeader) -> Result<Self> {
        let len = file.len().map_err(|e| Error::io("measure", file.path(), &e))?;
        let limit = len.min(header.segment_bytes);
        Ok(Self { file, header, limit, buffer: Vec::new(), buffer_at: 0 })
    }

    /// The same for the records that end at or below `end`: nothing behind it is looked at.
    pub(super) fn up_to(file: Arc<dyn File>, header: SegmentHeader, end: u64) -> Result<Self> {
        let mut reader = Self::new(file, header)?;
        if end < header.limit_lsn() {
            reader.limit = reader.limit.min(header.offset_of(end.max(header.start_lsn)));
        }
        Ok(reader)
    }

    /// The valid record at `lsn`; `None` if there is none.
    pub(super) fn record_at(&mut self, lsn: u64) -> Result<Option<(Header, &[u8])>> {
        if lsn < self.header.start_lsn || lsn >= self.header.limit_lsn() {
            return Ok(None);
        }
        let salt = self.header.salt;
        let offset = self.header.offset_of(lsn);
        let Some(bytes) = self.window(offset, HEADER_BYTES as u64)? else { return Ok(None) };
        let Some(header) = Header::decode(bytes) else { return Ok(None) };
        if !header.is_valid_at(lsn, salt, bytes) {
            return Ok(None);
        }
        let record = self.window(offset, header.len.into())?;
        Ok(record.filter(|record| header.covers(record)).map(|record| (header, record)))
    }

    /// Of the valid headers behind `lsn`, the one with the greatest base.
    pub(super) fn evidence_behind(&mut self, lsn: u64) -> Result<Option<Evidence>> {
        let (start, salt) = (self.header.start_lsn, self.header.salt);
        let mut best: Option<Evidence> = None;
        let mut at = if lsn < start { start } else { lsn + ALIGN as u64 };
        while at < self.header.limit_lsn() {
            let offset = self.header.offset_of(at);
            let len = CHUNK_BYTES.min(self.limit.saturating_sub(offset));
            if len < HEADER_BYTES as u64 {
                break;
            }
            let Some(chunk) = self.window(offset, len)? else { break };
            let mut step = 0;
            while let Some(bytes) = chunk.get(step..step + HEADER_BYTES) {
                // The LSN first: it tells almost all bytes apart without a checksum.
                let lsn = at + step as u64;
                if bytes[8..16] == lsn.to_le_bytes() {
                    let header = Header::decode(bytes).filter(|h| h.is_valid_at(lsn, salt, bytes));
                    let best_base = best.map(|best| best.base);
                    if let Some(base) = header.map(|h| h.base).filter(|b| Some(*b) > best_base) {
                        best = Some(Evidence { lsn, base });
                    }
                }
                step += ALIGN;
            }
            at += step as u64;
        }
        Ok(best)
    }

    /// `len` bytes at `offset`; `None` if they do not lie inside the file.
    fn window(&mut self, offset: u64, len: u64) -> Result<Option<&[u8]>> {
        debug_assert!(offset >= HEADER_BLOCK_BYTES);
        if offset.checked_add(len).is_none_or(|end| end > self.limit) {
            return Ok(None);
        }
        let held = self.buffer_at..self.buffer_at + self.buffer.len() as u64;
        if !(held.contains(&offset) && offset + len <= held.end) {
            let wanted = CHUNK_BYTES.max(len).min(self.limit - offset);
            self.buffer.clear();
            self.buffer.resize(wanted as usize, 0);
            self.buffer_at = offset;
            if let Err(error) = self.file.read_at(offset, &mut self.buffer) {
                self.buffer.clear();
                return Err(Error::io("read", self.file.path(), &error));
            }
        }
        let from = (offset - self.buffer_at) as usize;
        Ok(self.buffer.get(from..from + len as usize))
    }
}
