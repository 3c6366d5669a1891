//! The one thread that writes the log: all that is published and contiguous, one sync for it all, and
//! before it one for the values that it refers to.
//!
//! Invariants: `head == durable_lsn` between rounds; a round writes `[head, end)` into one segment
//! with `base = head`, so what no later base proves durable lies in one segment; a segment is
//! begun only when everything before it is durable; after a failed write or sync nothing is
//! written or synced again (a second sync may succeed although the data is lost).

use crate::sync::primitives::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::record::{Header, header_crc, len_of_first_word};
use super::retention::LiveSegment;
use super::segment::{HEADER_BLOCK_BYTES, SegmentHeader};
use crate::error::{Error, Result};
use crate::io::File;

/// The segment that is being written.
pub(super) struct ActiveSegment {
    pub(super) file: Arc<dyn File>,
    pub(super) header: SegmentHeader,
}

impl ActiveSegment {
    /// Stands for a segment that a start on a full disk could not make: no room, never written.
    /// The first roll makes up for it, with a reopen header.
    pub(super) fn placeholder(file: Arc<dyn File>, start_lsn: u64) -> Self {
        let header = SegmentHeader::new(0, start_lsn, HEADER_BLOCK_BYTES, true);
        Self { file, header }
    }

    fn is_placeholder(&self) -> bool {
        self.header.segment_bytes == HEADER_BLOCK_BYTES
    }
}

/// The flusher's state.
pub(super) struct Flusher {
    shared: Arc<Shared>,
    active: ActiveSegment,
    /// Everything below is durable; the record here is the next to be written.
    head: u64,
    /// Records of the last group.
    last_records: u64,
}

/// What a round found.
enum Round {
    Wrote,
    Nothing,
    Poisoned,
}

impl Flusher {
    pub(super) fn new(shared: Arc<Shared>, active: ActiveSegment, head: u64) -> Self {
        Self { shared, active, head, last_records: 0 }
    }

    /// Runs until the log is closed and drained, or poisoned.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _end = EndGuard(&shared);
        loop {
            match self.round() {
                Ok(Round::Wrote) => {}
                Ok(Round::Nothing) if self.is_drained() => return,
                Ok(Round::Nothing) => shared.parker.sleep_unless(|| {
                    shared.ring.published(self.head) != 0
                        || shared.commit.is_poisoned()
                        || self.is_drained()
                }),
                Ok(Round::Poisoned) => return,
                Err(error) => return shared.poison(error.message()),
            }
        }
    }

    /// Whether the log is closing and everything reserved has been written.
    fn is_drained(&self) -> bool {
        // Relaxed: `closing` is ordered by the parker's fences; a reservation that is not seen
        // here came from a permit older than the close, and its waiter gets an error.
        self.shared.closing.load(Ordering::Relaxed)
            && self.shared.reserved.load(Ordering::Relaxed) == self.head
    }

    /// Writes what is published at `head`, as far as the segment has room.
    fn round(&mut self) -> Result<Round> {
        let first = self.shared.ring.published(self.head);
        // After the look at the ring: a filler of a failed write is published after the poison.
        if self.shared.commit.is_poisoned() {
            return Ok(Round::Poisoned);
        }
        if first == 0 {
            return Ok(Round::Nothing);
        }
        self.gather();
        if self.head + len_of_first_word(first) > self.active.header.limit_lsn() {
            self.roll(len_of_first_word(first))?;
        }
        let (end, records) = self.seal();
        // `seal` may have met a filler that was not there before.
        if self.shared.commit.is_poisoned() {
            return Ok(Round::Poisoned);
        }
        self.write(end)?;
        let shared = &*self.shared;
        // SAFETY: `[head, end)` is published, so it is the flusher's until `give`.
        unsafe { shared.ring.clear(self.head, end) };
        shared.room.wrote(&shared.space, end - self.head);
        (shared.sync_values)()?;
        self.sync()?;
        shared.counters.records.fetch_add(records, Ordering::Relaxed);
        shared.counters.fsyncs.fetch_add(1, Ordering::Relaxed);
        shared.counters.bytes.fetch_add(end - self.head, Ordering::Relaxed);
        if !shared.commit.advance(end) {
            return Ok(Round::Poisoned);
        }
        self.head = end;
        self.last_records = records;
        Ok(Round::Wrote)
    }

    /// Lets those who waited for the last group write again, so that they join this one.
    fn gather(&self) {
        let time_us = self.shared.gather_us.load(Ordering::Relaxed);
        if time_us > 0 && self.last_records > 1 {
            crate::sync::primitives::thread::sleep(Duration::from_micros(time_us));
        }
    }

    /// Completes the headers of the published records that fit the segment: their end and number.
    fn seal(&self) -> (u64, u64) {
        let ring = &self.shared.ring;
        let salt = self.active.header.salt;
        let (mut end, mut records) = (self.head, 0);
        // Once around the ring, `published` would show the first record again.
        while end - self.head < ring.len() {
            let word = ring.published(end);
            let len = len_of_first_word(word);
            if word == 0 || end + len > self.active.header.limit_lsn() {
                break;
            }
            let tail = ring.load_owned(end + 24);
            let header = Header {
                len: len as u32,
                kind: (word >> 32) as u8,
                flags: (word >> 40) as u8,
                sections: (word >> 48) as u16,
                lsn: ring.load_owned(end + 8),
                base: self.head,
                body_crc: tail as u32,
                header_crc: 0,
            };
            let crc = header_crc(salt, &header.covered_bytes());
            ring.store_owned(end + 16, header.base);
            ring.store_owned(end + 24, u64::from(header.body_crc) | u64::from(crc) << 32);
            end += len;
            records += 1;
        }
        (end, records)
    }

    fn write(&self, end: u64) -> Result<()> {
        let mut offset = self.active.header.offset_of(self.head);
        // SAFETY: `[head, end)` is published, so it is the flusher's, and nothing is written to
        // it while the slices live.
        for piece in unsafe { self.shared.ring.pieces(self.head, end) } {
            if !piece.is_empty() {
                let written = self.active.file.write_at(offset, piece);
                written.map_err(|e| Error::io("write", self.active.file.path(), &e))?;
                offset += piece.len() as u64;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.active.file.sync().map_err(|e| Error::io("sync", self.active.file.path(), &e))
    }

    /// Begins a new segment at `head`; everything before is durable. A crash leaves a file whose
    /// header does not fit its name (not started), or an empty segment at the end of the log. It
    /// takes the spare, so a full disk does not matter here; then it makes the next spare.
    fn roll(&mut self, first_bytes: u64) -> Result<()> {
        let shared = &*self.shared;
        let spare = shared.room.roll(&shared.segments, first_bytes)?;
        let (seq, bytes) = (spare.seq, spare.bytes);
        let header = SegmentHeader::new(seq, self.head, bytes, self.active.is_placeholder());
        header.write(&*spare.file)?;
        shared.counters.fsyncs.fetch_add(1, Ordering::Relaxed);
        shared.segments.push_live(LiveSegment { seq, start_lsn: self.head, bytes });
        self.active = ActiveSegment { file: spare.file, header };
        shared.room.refill(&shared.segments, &shared.space)
    }
}

/// However the flusher ends, nobody waits for it any more.
struct EndGuard<'a>(&'a Shared);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.commit.poison("the log's flusher panicked");
        }
        self.0.space.stop();
        self.0.commit.end();
    }
}
