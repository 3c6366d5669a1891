//! The three steps of an append: acquire room, reserve LSNs, publish the record.
//!
//! Invariants: a granted `Permit` has its room in the ring and on the disk; it may wait, and is
//! taken before any lock; from `reserve` to `publish` there is only a bounded copy; every
//! reservation is published exactly once, by a filler if its owner unwinds, and then the log is
//! poisoned before that filler can be written.

use crate::sync::primitives::atomic::Ordering;
use std::mem::ManuallyDrop;

use super::Shared;
use super::encode::Record;
use super::record::{
    HEADER_BYTES, KIND_FILLER, MAX_RECORD_BYTES, PREFIX_BYTES, first_word, padded,
};
use super::ring::RingWriter;
use super::space::NotTaken;
use crate::error::{Error, Result};
use crate::types::Lsn;

/// Room for one record. Dropping it returns the room.
pub(crate) struct Permit<'wal> {
    shared: &'wal Shared,
    len: u64,
}

impl<'wal> Permit<'wal> {
    pub(super) fn acquire(shared: &'wal Shared, len: usize) -> Result<Self> {
        let len = padded(len.max(PREFIX_BYTES)) as u64;
        let most = (shared.ring.len() / 2).min(MAX_RECORD_BYTES as u64);
        if len > most {
            return Err(Error::invalid(format!(
                "a log record of {len} bytes exceeds the limit of {most}"
            )));
        }
        loop {
            match shared.space.take(len) {
                Ok(()) => break,
                Err(NotTaken::Stopped) => return Err(shared.refusal()),
                Err(NotTaken::NoRoom) => shared.make_room(len)?,
            }
        }
        let permit = Self { shared, len };
        // Waiters hear of the poison before `space` is stopped: none of them gets a permit after.
        if shared.commit.is_poisoned() { Err(shared.refusal()) } else { Ok(permit) }
    }

    pub(super) fn shared(&self) -> &'wal Shared {
        self.shared
    }

    /// Bytes that it stands for.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Keeps room for a record of `len` bytes and returns the rest. More than it holds changes
    /// nothing.
    pub(crate) fn shrink(&mut self, len: usize) {
        let len = padded(len.max(PREFIX_BYTES)) as u64;
        if len < self.len {
            self.shared.space.give(self.len - len);
            self.len = len;
        }
    }

    pub(super) fn reserve(self) -> Reservation<'wal> {
        let permit = ManuallyDrop::new(self);
        // AcqRel: the range may be memory whose zeroing was handed to another permit than ours,
        // whose owner has reserved before us; this chain brings its acquire to us. A relaxed add
        // would let our copy race with the flusher's zeroing.
        let start = permit.shared.reserved.fetch_add(permit.len, Ordering::AcqRel);
        Reservation { shared: permit.shared, start, end: start + permit.len, published: false }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.shared.space.give(self.len);
    }
}

/// A range of LSNs that must be filled now. Dropping it without publishing poisons the log.
#[must_use = "dropping a reservation poisons the log"]
pub(crate) struct Reservation<'wal> {
    shared: &'wal Shared,
    start: u64,
    end: u64,
    published: bool,
}

impl Reservation<'_> {
    /// Where the record starts.
    #[cfg(test)]
    pub(crate) fn start(&self) -> Lsn {
        Lsn(self.start)
    }

    /// Where it ends: the write's ticket.
    #[cfg(test)]
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.end)
    }

    /// Copies the record into the ring and hands it to the flusher. Its
    /// [`encoded_len`](Record::encoded_len) is the permit's length: another length is the
    /// caller's bug and poisons the log. Returns the ticket.
    pub(crate) fn publish(mut self, record: &Record<'_>) -> Lsn {
        let len = record.encoded_len();
        if len as u64 == self.end - self.start {
            // SAFETY: the range is this reservation's until `Ring::publish`.
            let mut writer = unsafe {
                RingWriter::new(&self.shared.ring, self.start + HEADER_BYTES as u64, self.end)
            };
            record.encode_body(&mut writer);
            self.finish(record.first_word(len));
        } else {
            debug_assert!(false, "{len} bytes for a permit of {}", self.end - self.start);
        }
        Lsn(self.end)
    }

    /// Completes the header and publishes. The padding is zero already.
    fn finish(&mut self, first_word: u64) {
        let ring = &self.shared.ring;
        let mut hasher = crc32fast::Hasher::new();
        // SAFETY: the range is this reservation's until `Ring::publish`, and nothing is written
        // to it while the slices live.
        for piece in unsafe { ring.pieces(self.start + HEADER_BYTES as u64, self.end) } {
            hasher.update(piece);
        }
        ring.store_owned(self.start + 8, self.start);
        ring.store_owned(self.start + 24, hasher.finalize().into());
        self.published = true;
        ring.publish(self.start, first_word);
        self.shared.parker.wake();
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        // Poison first: the flusher that sees the filler sees the poison too, so that no wait for
        // this LSN is ever satisfied (it would show a value that was never logged).
        self.shared.poison("a write failed after it had reserved its place in the log");
        self.finish(first_word((self.end - self.start) as usize, KIND_FILLER, 0));
    }
}
