//! Reading records.
//!
//! Invariants: the caller holds the guard since before it looked the location up, so the segment is
//! not reused meanwhile; a value is handed out only after it was copied and found to be one whole
//! version of the right key's record; a record that came by `pread` has its checksum verified.

use crate::sync::primitives::atomic::{AtomicU64, Ordering};

use crossbeam_epoch::Guard;

use super::ValueLog;
use super::location::Location;
use super::read_policy::{Access, ReadPath, decide};
use super::record::{HEADER, Record};
use super::segment::Segment;
use super::seqlock;
use crate::error::{Error, Result};

const OTHER_KEY: &str = "it belongs to another key";

impl ValueLog {
    /// Copies the value of `key` into `out`, replacing what is there; answers its expiry (0: none).
    pub(crate) fn read(
        &self,
        location: Location,
        key: &[u8],
        access: Access,
        out: &mut Vec<u8>,
        guard: &Guard,
    ) -> Result<u64> {
        let (segment, within) = self.locate(location)?;
        let wrong = |what| Error::corrupt(&segment.file.path(), within, what);
        if !is_base(segment, within, location) {
            return seqlock::read(self.words(location, guard), key, out).map_err(wrong);
        }
        let is_resident = || self.base_is_resident(segment, within, location);
        let path = decide(self.read_policy, access, location.allocated(), is_resident);
        if path == ReadPath::Pread {
            return self.read_cold(segment, within, location, key, out);
        }
        let bytes = self.bytes(location, path == ReadPath::SequentialMapping, guard);
        let record = Record::decode(bytes).map_err(wrong)?;
        if record.key != key {
            return Err(wrong(OTHER_KEY));
        }
        out.clear();
        out.extend_from_slice(record.value);
        Ok(record.expiry_ms)
    }

    /// Whether a read would wait for no disk, as far as can be told.
    pub(crate) fn is_resident(&self, location: Location) -> bool {
        let Ok((segment, within)) = self.locate(location) else {
            // The read answers at once, with an error.
            return true;
        };
        self.base_is_resident(segment, within, location)
    }

    /// Whether a read of a base record would wait for the disk, as the kernel says: the hints are
    /// neither asked nor changed.
    pub(crate) fn is_cold_base(&self, location: Location) -> bool {
        let Ok((segment, within)) = self.locate(location) else { return false };
        if !is_base(segment, within, location) {
            return false;
        }
        #[cfg(test)]
        if self.all_cold.load(Ordering::Relaxed) {
            return true;
        }
        !self.mapping.is_resident(location.offset(), location.allocated())
    }

    /// Hands a whole record, its checksum verified, to `look`: key, value, expiry. From the disk
    /// if it is base. For defragment and export.
    pub(crate) fn with_record<R>(
        &self,
        location: Location,
        guard: &Guard,
        look: impl FnOnce(&[u8], &[u8], u64) -> R,
    ) -> Result<R> {
        let (segment, within) = self.locate(location)?;
        let mut bytes = Vec::new();
        if is_base(segment, within, location) {
            self.copy_cold(segment, within, location, &mut bytes)?;
        } else {
            seqlock::snapshot(self.words(location, guard), &mut bytes);
        }
        let record = Record::decode(&bytes).and_then(|record| record.verify().map(|()| record));
        let record = record.map_err(|what| Error::corrupt(&segment.file.path(), within, what))?;
        Ok(look(record.key, record.value, record.expiry_ms))
    }

    /// Verifies the record's checksum and key; answers the length of the value.
    pub(crate) fn read_full_verify(
        &self,
        location: Location,
        key: &[u8],
        guard: &Guard,
    ) -> Result<usize> {
        let look = |found: &[u8], value: &[u8], _| (found == key).then_some(value.len());
        self.with_record(location, guard, look)?.ok_or_else(|| {
            let (offset, bytes) = (location.offset(), self.segment_bytes);
            let path = super::segment::path_of((offset / bytes) as u32);
            Error::corrupt(&self.disk.root().join(path), offset % bytes, OTHER_KEY)
        })
    }

    pub(crate) fn is_above_base(&self, location: Location) -> bool {
        let found = self.locate(location);
        found.is_ok_and(|(segment, within)| !is_base(segment, within, location))
    }

    fn base_is_resident(&self, segment: &Segment, within: u64, location: Location) -> bool {
        let (offset, len) = (location.offset(), location.allocated());
        segment.residency.check(within, len, || self.mapping.is_resident(offset, len))
    }

    /// The record as words: for a location in a segment, not below its base.
    fn words<'a>(&'a self, location: Location, _guard: &'a Guard) -> &'a [AtomicU64] {
        // SAFETY: a published record in a mapped segment: since it was published it is changed by
        // words only, and the guard keeps its place from being allocated anew.
        unsafe { self.mapping.words(location.offset(), location.allocated()) }
    }

    /// The record as bytes: for a location below the base.
    fn bytes<'a>(&'a self, location: Location, sequential: bool, _guard: &'a Guard) -> &'a [u8] {
        // SAFETY: below a published base, which no writer changes; the guard keeps the segment
        // from being reused.
        unsafe { self.mapping.bytes(location.offset(), location.allocated(), sequential) }
    }

    /// One read of exactly the record's bytes.
    fn copy_cold(
        &self,
        segment: &Segment,
        within: u64,
        location: Location,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        out.resize(location.allocated() as usize, 0);
        let read = segment.file.read_at(within, out);
        read.map_err(|error| Error::io("read", segment.file.path(), &error))
    }

    fn read_cold(
        &self,
        segment: &Segment,
        within: u64,
        location: Location,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<u64> {
        let wrong = |what| Error::corrupt(&segment.file.path(), within, what);
        self.copy_cold(segment, within, location, out)?;
        let record = Record::decode(out).map_err(wrong)?;
        record.verify().map_err(wrong)?;
        if record.key != key {
            return Err(wrong(OTHER_KEY));
        }
        let (len, expiry_ms) = (record.value.len(), record.expiry_ms);
        let start = HEADER + key.len();
        out.copy_within(start..start + len, 0);
        out.truncate(len);
        Ok(expiry_ms)
    }
}

/// Whether the record is one that readers take for immutable: below the base, or in a segment where
/// nothing is changed in place.
fn is_base(segment: &Segment, within: u64, location: Location) -> bool {
    // Relaxed: set before any record there was published.
    if segment.once.load(Ordering::Relaxed) {
        return true;
    }
    // Acquire: with the Release in `publish_base`.
    within + location.allocated() <= u64::from(segment.base.load(Ordering::Acquire))
}
