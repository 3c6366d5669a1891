//! Records that the log only refers to: whole in their segments, and nowhere else.
//!
//! A large value, or any on a full disk, is not written twice. Its record goes to a segment of a lane
//! of its own, and is on the list of what the log's flusher makes durable before it says that the
//! log record which refers to it is durable ([`Unsynced::sync`]).
//!
//! Recovery takes what the log refers to as base before anything is allocated
//! ([`ValueLog::adopt`]).
//!
//! Invariants: nothing is ever changed in place in a segment that has held such a record since it
//! was last empty; a record is on the list before its log record is published; after a sync that
//! failed none succeeds: the system reports a failure once for each open file, so these records are
//! written and synced through one of their own, which no checkpoint syncs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::sync::primitives::Mutex;
use crate::sync::primitives::atomic::{AtomicBool, Ordering};

use super::ValueLog;
use super::location::Location;
use super::placement::PAGE;
use super::record::{HEADER, Record, check_record, crc_of_record, encode_header};
use super::segment::{FOLDER, Segment, check_file, is_ours, path_of};
use super::tail::{Allocation, Purpose};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Disk, File};
use crate::types::ValueAt;

/// What was written and is not durable yet; shared with the flusher of the log.
pub(crate) struct Unsynced {
    disk: Arc<dyn Disk>,
    list: Mutex<List>,
    /// The list has something. Relaxed: set before a log record is published, which the flusher
    /// sees before it looks here; cleared under the list's lock.
    any: AtomicBool,
    /// A sync failed: pages only look clean, so none may succeed any more. Relaxed: whoever
    /// sees it late fails at its own next sync.
    pub(super) failed: AtomicBool,
}

#[derive(Default)]
struct List {
    ranges: Vec<(Arc<dyn File>, Range<u64>)>,
    /// Names of files that no sync of the folder covers.
    folder: bool,
}

impl Unsynced {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, list: Mutex::default(), any: false.into(), failed: false.into() }
    }

    /// Puts a range of a file on the list, whole pages.
    fn add(&self, file: &Arc<dyn File>, range: Range<u64>) {
        let range = range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE);
        let mut list = self.list.lock();
        let ranges = &mut list.ranges;
        match ranges.iter_mut().rev().find(|(known, _)| Arc::ptr_eq(known, file)) {
            Some((_, known)) => {
                known.start = known.start.min(range.start);
                known.end = known.end.max(range.end);
            }
            None => ranges.push((Arc::clone(file), range)),
        }
        self.any.store(true, Ordering::Relaxed);
    }

    /// Puts a segment on the list that records are going to be written to: its header, and its name.
    pub(super) fn add_segment(&self, file: &Arc<dyn File>) {
        self.add(file, 0..PAGE);
        self.list.lock().folder = true;
    }

    /// Makes everything durable that was put on the list before. An error is for good.
    pub(crate) fn sync(&self) -> Result<()> {
        if !self.any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let List { ranges, folder } = {
            let mut list = self.list.lock();
            self.any.store(false, Ordering::Relaxed);
            std::mem::take(&mut *list)
        };
        if self.failed.load(Ordering::Relaxed) {
            let what = "an earlier sync of the value log failed";
            return Err(Error::new(ErrorKind::ReadOnly, what));
        }
        let sync = || {
            for (file, range) in &ranges {
                file.sync_range(range.start, range.end - range.start)
                    .map_err(|error| Error::sync(file.path(), &error))?;
            }
            if folder {
                self.disk
                    .sync_dir(FOLDER.as_ref())
                    .map_err(|error| Error::sync(self.disk.root().join(FOLDER), &error))?;
            }
            Ok(())
        };
        sync().inspect_err(|_| self.failed.store(true, Ordering::Relaxed))
    }
}

/// What recovery has found in the log: how far each segment is referred to, and which records may
/// not be durable.
#[derive(Default)]
pub(crate) struct Adopted {
    ends: BTreeMap<u32, u64>,
    unproven: Vec<(Location, u32)>,
}

/// A record that is written and that nobody points to yet. Dropping it gives it up: its bytes are
/// dead.
#[must_use]
pub(crate) struct Stored<'a> {
    allocation: Allocation<'a>,
    crc: u32,
}

impl Stored<'_> {
    /// Counts it as live: the caller publishes it, and lets the log refer to it.
    pub(crate) fn count(self) -> ValueAt {
        let location = self.allocation.location();
        // Before the allocation ends: in between, the segment must not seem empty.
        self.allocation.segment().add_live(location.allocated());
        ValueAt { location: location.0, crc: self.crc }
    }
}

/// Values up to here are copied behind their header, to be written by one call.
const MOST_COPIED: usize = 64 << 10;

impl ValueLog {
    /// Values of at least so many bytes are written once from now on.
    pub(crate) fn set_once_from(&self, bytes: usize) {
        self.once_from.store(bytes, Ordering::Relaxed);
    }

    /// Whether a value of this length is to be written once.
    pub(crate) fn is_once(&self, value_len: usize) -> bool {
        value_len >= self.once_from.load(Ordering::Relaxed)
    }

    /// Writes a record that the log is going to refer to, where nobody looks yet. Under the key's
    /// stripe. A failure leaves no trace; `expiry_ms` 0: never.
    ///
    /// Through the file, not the mapping: a store through a mapping makes all of a large page of the
    /// cache dirty, which would be written again for each group of the log.
    pub(crate) fn store_once(
        &self,
        key: &[u8],
        value: &[u8],
        expiry_ms: u64,
    ) -> Result<Stored<'_>> {
        let allocation = self.allocate_for(Purpose::Once, key.len(), value.len())?;
        let (segment, location) = (allocation.segment(), allocation.location());
        let Some(file) = allocation.file() else {
            return Err(Error::new(ErrorKind::Io, "a segment of this kind has no file"));
        };
        let header = encode_header(key, value, location.allocated(), expiry_ms);
        let mut front = Vec::with_capacity(HEADER + key.len() + value.len().min(MOST_COPIED));
        front.extend_from_slice(&header);
        front.extend_from_slice(key);
        let behind = match value.len() <= MOST_COPIED {
            true => {
                front.extend_from_slice(value);
                &[][..]
            }
            false => value,
        };
        let start = u64::from(segment.within(location));
        let mut at = start;
        for bytes in [&front[..], behind] {
            if !bytes.is_empty() {
                let written = file.write_at(at, bytes);
                written.map_err(|error| Error::io("write", file.path(), &error))?;
                at += bytes.len() as u64;
            }
        }
        self.unsynced.add(file, start..at);
        Ok(Stored { allocation, crc: crc_of_record(&header) })
    }

    /// Whether the record that the log refers to is there, as far as the disk says. For recovery,
    /// and for readers of the log: the segment may hold other records by now.
    pub(crate) fn value_of_reference(&self, key: &[u8], at: ValueAt) -> Result<Option<Vec<u8>>> {
        let location = Location(at.location);
        self.check_number(location)?;
        let Some(range) = self.range_of(location) else { return Ok(None) };
        let number = self.segment_of(location);
        let file = match self.segment(number) {
            Some(segment) => Arc::clone(&segment.file),
            None => match self.open_unknown(number)? {
                Some(file) => file,
                None => return Ok(None),
            },
        };
        let mut bytes = vec![0; location.allocated() as usize];
        match file.read_at(range.start, &mut bytes) {
            Ok(()) => {}
            // Cut to nothing since, or never as long as that.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(Error::io("read", file.path(), &error)),
        }
        let Ok(record) = Record::decode(&bytes) else { return Ok(None) };
        let is_it = crc_of_record(&bytes) == at.crc && record.key == key;
        Ok((is_it && record.verify().is_ok()).then(|| record.value.to_vec()))
    }

    /// The file of a segment that is not mapped; `None` if it is none, or torn.
    fn open_unknown(&self, number: u32) -> Result<Option<Arc<dyn File>>> {
        let path = path_of(number);
        let file = match self.disk.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", self.disk.root().join(&path), &error)),
        };
        match check_file(&*file, number, self.segment_bytes) {
            Ok(()) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) if error.kind() == ErrorKind::Foreign && !is_ours(&*file) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The error for a reference to what is not whole.
    pub(crate) fn missing_reference(&self, at: ValueAt) -> Error {
        let what = "the log refers to a record here that is not whole";
        self.bad_record(Location(at.location), what)
    }

    /// Whether there may be a segment for a location at all.
    fn check_number(&self, location: Location) -> Result<()> {
        let number = location.offset() / self.segment_bytes;
        if number < self.segments.len() as u64 {
            return Ok(());
        }
        let path = self.disk.root().join(FOLDER).join(format!("{number}.t2"));
        let message = format!("{}: value_log_max_bytes is too small for it", path.display());
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Where in its segment a record is; `None` where none can be.
    fn range_of(&self, location: Location) -> Option<Range<u64>> {
        let (start, len) = (location.offset() % self.segment_bytes, location.allocated());
        let first = u64::from(super::segment::FIRST_RECORD);
        let fits = start >= first && len > HEADER as u64 && start + len <= self.segment_bytes;
        fits.then_some(start..start + len)
    }

    /// Notes a reference that recovery has found.
    pub(crate) fn found_reference(
        &self,
        adopted: &mut Adopted,
        at: ValueAt,
        is_proven: bool,
    ) -> Result<()> {
        let location = Location(at.location);
        self.check_number(location)?;
        let Some(range) = self.range_of(location) else {
            let folder = self.disk.root().join(FOLDER);
            let what = "the log refers to where no record can be";
            return Err(Error::corrupt(&folder, location.offset(), what));
        };
        let end = adopted.ends.entry(self.segment_of(location)).or_default();
        *end = range.end.max(*end);
        if !is_proven {
            adopted.unproven.push((location, at.crc));
        }
        Ok(())
    }

    /// Takes all that the log refers to as base, durably: nothing is written there any more. Before
    /// anything is allocated.
    pub(crate) fn adopt(&self, adopted: &Adopted) -> Result<()> {
        for (&number, &end) in &adopted.ends {
            if self.segment(number).is_none() {
                self.adopt_file(number)?;
            }
            let Some(segment) = self.segment(number) else { continue };
            let end = end.next_multiple_of(PAGE).min(self.segment_bytes) as u32;
            if end > segment.base.load(Ordering::Relaxed) {
                segment.raise(end);
            }
        }
        // After a sync that failed, pages only look clean: what is not proven durable is written again,
        // the same bytes.
        let mut bytes = Vec::new();
        for (location, crc) in &adopted.unproven {
            let Some(segment) = self.segment(self.segment_of(*location)) else { continue };
            let at = location.offset() % self.segment_bytes;
            bytes.resize(location.allocated() as usize, 0);
            let read = segment.file.read_at(at, &mut bytes);
            read.map_err(|error| Error::io("read", segment.file.path(), &error))?;
            if crc_of_record(&bytes) != *crc || check_record(&bytes).is_err() {
                // It was whole a moment ago, in the page cache: the disk has something else. The next open
                // finds it torn.
                let what = "a record has changed since it was checked; open the engine again";
                return Err(Error::corrupt(&segment.file.path(), at, what));
            }
            let again = segment.file.write_at(at, &bytes);
            again.map_err(|error| Error::io("write again", segment.file.path(), &error))?;
        }
        // A kill leaves what was written in the page cache only.
        for segment in adopted.ends.keys().filter_map(|number| self.segment(*number)) {
            segment.file.sync().map_err(|error| Error::sync(segment.file.path(), &error))?;
        }
        if adopted.ends.is_empty() {
            return Ok(());
        }
        self.disk
            .sync_dir(FOLDER.as_ref())
            .map_err(|error| Error::sync(self.disk.root().join(FOLDER), &error))
    }

    /// Opens a segment that the log names and the manifest does not.
    fn adopt_file(&self, number: u32) -> Result<()> {
        let path = path_of(number);
        let full_path = self.disk.root().join(&path);
        let file = self.disk.open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Error::corrupt(&full_path, 0, "the log refers to it, but there is no such file")
            }
            _ => Error::io("open", &full_path, &error),
        })?;
        check_file(&*file, number, self.segment_bytes)?;
        let has_blocks = self.has_blocks(&*file)?;
        self.mapping
            .map(u64::from(number) * self.segment_bytes, self.segment_bytes, &*file)
            .map_err(|error| Error::io("map", &full_path, &error))?;
        let segment = Segment::new(number, file, self.segment_bytes, 0);
        let set = self.segments[number as usize].set(Box::new(segment));
        debug_assert!(set.is_ok(), "segment {number} opened twice");
        let mut tail = self.tail.lock();
        tail.files.retain(|file| *file != number);
        tail.mapped.push(number);
        if has_blocks {
            tail.records.add_room(number, self.segment_bytes);
        }
        Ok(())
    }
}
