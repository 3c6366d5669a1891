//! Giving up the end of a damaged log: what would go, and going.
//!
//! A repair only adds: an empty *reopen* segment that starts at the LSN where the log shall end.
//! The walk takes the newest reopen segment at a position, so what the older ones hold from there
//! on is void, and nothing of them is changed. A crash leaves that segment started or not; not
//! started, the log is as damaged, and as repairable, as before.
//!
//! Invariants: the log ends where a record ends, below the damage and not below the checkpoint;
//! looking writes nothing; of a record in several segments the newest counts, once.

use std::sync::Arc;

use super::WAL_FOLDER;
use super::decode::{BodyView, RecordView};
use super::reader::SegmentReader;
use super::record::ALIGN;
use super::replay::FoundFiles;
use super::segment::{HEADER_BLOCK_BYTES, MakeError, SegmentHeader, make_file};
use super::walk::{self, FoundSegment, Walk};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Disk;
use crate::types::Lsn;

/// A log that was looked at for a repair.
pub(crate) struct DamagedLog {
    disk: Arc<dyn Disk>,
    files: FoundFiles,
    checkpoint_lsn: Lsn,
    /// What an open says; `None` for a log that is well.
    pub(crate) damage: Option<Error>,
    /// From the checkpoint to here every record is valid.
    pub(crate) valid_to: Lsn,
}

/// What a repair gives up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Readable records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Where the first of them starts; the end of the log that is kept when there is none.
    pub first_lsn: Lsn,
    /// Where the last of them ends.
    pub end_lsn: Lsn,
    /// Bytes between the log that is kept and the end that hold no valid record: nobody knows what
    /// was in them.
    pub unreadable_bytes: u64,
    /// The log is proven to have been durable, so that its records were or could be acknowledged,
    /// up to here. Above it, nobody knows.
    pub durable_lsn: Lsn,
    /// Of the readable records, those below `durable_lsn`.
    pub durable_records: u64,
    /// The first key of the first record that has one.
    pub first_key: Option<Vec<u8>>,
    /// The last key of the last record that has one.
    pub last_key: Option<Vec<u8>>,
}

impl DamagedLog {
    /// Looks at a log. Reads only.
    pub(crate) fn look(disk: Arc<dyn Disk>, checkpoint_lsn: Lsn, freeze_lsn: Lsn) -> Result<Self> {
        let files = FoundFiles::read(&*disk)?;
        let folder = disk.root().join(WAL_FOLDER);
        let damage = match walk::walk(&files.segments, checkpoint_lsn, freeze_lsn, &folder) {
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::Corrupt => Some(error),
            Err(error) => return Err(error),
        };
        let valid_to = Lsn(Walk::valid(&files.segments, checkpoint_lsn)?.cut);
        Ok(Self { disk, files, checkpoint_lsn, damage, valid_to })
    }

    /// Refuses an end that the log cannot have, naming the nearest below that it can.
    pub(crate) fn check_end(&self, to: Lsn) -> Result<()> {
        if to < self.checkpoint_lsn {
            return Err(Error::invalid(format!(
                "--to-lsn {to}: the checkpoint holds everything below LSN {}; the log cannot end \
                 before it",
                self.checkpoint_lsn
            )));
        }
        if to > self.valid_to {
            return Err(Error::invalid(format!(
                "--to-lsn {to}: the log can be read up to LSN {} only; give that to keep all of it",
                self.valid_to
            )));
        }
        let mut nearest = self.checkpoint_lsn.0;
        self.for_each_valid(&mut |end| {
            if end <= to.0 {
                nearest = end;
            }
        })?;
        if nearest == to.0 {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "--to-lsn {to} is in the middle of a record; the nearest end of one below is {nearest}"
        )))
    }

    /// What goes when the log ends at `to`.
    pub(crate) fn dropped(&self, to: Lsn, freeze_lsn: Lsn) -> Result<Dropped> {
        let mut dropped = Dropped { first_lsn: to, end_lsn: to, ..Dropped::default() };
        let mut durable = freeze_lsn.0;
        let mut ends: Vec<u64> = Vec::new();
        for (index, segment) in self.files.segments.iter().enumerate() {
            // Begun when all before was durable; what comes newer voids the rest of this one.
            let header = segment.header;
            durable = durable.max(header.start_lsn);
            let newer = self.files.segments[index + 1..].iter();
            let void = newer.map(|newer| newer.header.start_lsn).min().unwrap_or(u64::MAX);
            scan(segment, to.0, void.min(header.limit_lsn()), &mut |lsn, base, bytes| {
                if dropped.records == 0 || lsn < dropped.first_lsn.0 {
                    dropped.first_lsn = Lsn(lsn);
                }
                let end = lsn + bytes.len() as u64;
                dropped.records += 1;
                dropped.bytes += bytes.len() as u64;
                dropped.end_lsn = Lsn(end.max(dropped.end_lsn.0));
                durable = durable.max(base);
                ends.push(end);
                let Some((first, last)) = keys(bytes) else { return };
                dropped.first_key.get_or_insert(first);
                dropped.last_key = Some(last);
            })?;
        }
        dropped.durable_lsn = Lsn(durable);
        dropped.durable_records = ends.iter().filter(|end| **end <= durable).count() as u64;
        let end = dropped.end_lsn.0.max(durable);
        dropped.end_lsn = Lsn(end);
        dropped.unreadable_bytes = end.saturating_sub(to.0).saturating_sub(dropped.bytes);
        Ok(dropped)
    }

    /// Ends the log at `to`, which was checked, durably.
    pub(crate) fn end_at(&self, to: Lsn) -> Result<()> {
        let seq = self.files.next_seq;
        let bytes = HEADER_BLOCK_BYTES;
        let file = make_file(&*self.disk, seq, bytes, None).map_err(MakeError::into_error)?;
        SegmentHeader::new(seq, to.0, bytes, true).write(&*file)
    }

    fn for_each_valid(&self, see: &mut dyn FnMut(u64)) -> Result<()> {
        let walk = Walk::valid(&self.files.segments, self.checkpoint_lsn)?;
        for extent in &walk.extents {
            let segment = &self.files.segments[extent.segment];
            let mut reader = SegmentReader::new(Arc::clone(&segment.file), segment.header)?;
            let mut at = extent.from;
            while at < extent.to {
                let Some((header, _)) = reader.record_at(at)? else { break };
                at += u64::from(header.len);
                see(at);
            }
        }
        Ok(())
    }
}

/// Shows every valid record of `[from, to)`: its LSN, its base and its bytes. What is not a record
/// is passed over.
fn scan(
    segment: &FoundSegment,
    from: u64,
    to: u64,
    see: &mut dyn FnMut(u64, u64, &[u8]),
) -> Result<()> {
    let mut reader = SegmentReader::new(Arc::clone(&segment.file), segment.header)?;
    let mut at = from.max(segment.header.start_lsn);
    while at < to {
        match reader.record_at(at)? {
            Some((header, bytes)) => {
                see(at, header.base, bytes);
                at += bytes.len() as u64;
            }
            None => at += ALIGN as u64,
        }
    }
    Ok(())
}

/// The first and the last key of a record.
fn keys(record: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let BodyView::Write(sections) = RecordView::parse(record).ok()?.body() else { return None };
    let mut found: Option<(Vec<u8>, Vec<u8>)> = None;
    for section in sections {
        for op in section.ops() {
            match &mut found {
                Some((_, last)) => *last = op.key.to_vec(),
                None => found = Some((op.key.to_vec(), op.key.to_vec())),
            }
        }
    }
    found
}
