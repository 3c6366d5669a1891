//! Looking at a log without changing it, for `inspect` and offline checks.
//!
//! Invariant: reads only; what is reported of a segment is its own run of valid records, whether
//! or not the log still needs them.

use std::sync::Arc;

use super::WAL_FOLDER;
use super::decode::RecordView;
use super::reader::SegmentReader;
use super::reference::{Reference, references_of};
use super::replay::FoundFiles;
use super::walk::Walk;
use crate::error::{Error, Result};
use crate::io::Disk;
use crate::types::Lsn;

/// A segment and the valid records at its front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSummary {
    /// The file's name in `wal/`.
    pub(crate) file: String,
    /// The segment's number.
    pub(crate) seq: u64,
    /// Where it starts.
    pub(crate) start: Lsn,
    /// Valid records from there on.
    pub(crate) valid_records: u64,
    /// Where they end.
    pub(crate) end: Lsn,
    /// Whether an open made it.
    pub(crate) reopen: bool,
}

/// Checks that everything of `[checkpoint_lsn, durable_lsn)` can be read, while the log goes on.
/// The caller keeps segments from being recycled; the log's own
/// thread may be making one, which is no part of what is checked.
pub(crate) fn check(disk: &dyn Disk, checkpoint_lsn: Lsn, durable_lsn: Lsn) -> Result<()> {
    const ATTEMPTS: usize = 5;
    let mut attempt = 1;
    let files = loop {
        match FoundFiles::read(disk) {
            // A file that was listed has its new name by now.
            Err(_) if attempt < ATTEMPTS => attempt += 1,
            files => break files?,
        }
    };
    let walk = Walk::valid(&files.segments, checkpoint_lsn)?;
    if walk.cut >= durable_lsn.0 {
        return Ok(());
    }
    let what = format!("no valid record of LSN {}, but LSN {durable_lsn} is durable", walk.cut);
    let folder = disk.root().join(WAL_FOLDER);
    Err(match walk.extents.last() {
        None => Error::corrupt(&folder, 0, what),
        Some(extent) => {
            let segment = &files.segments[extent.segment];
            // What ends with its segment is missing from the next one.
            let offset = segment.header.offset_of(walk.cut);
            Error::corrupt(&segment.file.path(), offset, what)
        }
    })
}

/// Shows every reference of the log's valid front, from `checkpoint_lsn` on.
pub(crate) fn for_each_reference(
    disk: &dyn Disk,
    checkpoint_lsn: Lsn,
    see: &mut dyn FnMut(Reference<'_>),
) -> Result<()> {
    let files = FoundFiles::read(disk)?;
    let walk = Walk::valid(&files.segments, checkpoint_lsn)?;
    for extent in &walk.extents {
        let segment = &files.segments[extent.segment];
        let mut reader = SegmentReader::new(Arc::clone(&segment.file), segment.header)?;
        let mut at = extent.from;
        while at < extent.to {
            let Some((header, bytes)) = reader.record_at(at)? else { break };
            if let Ok(view) = RecordView::parse(bytes) {
                references_of(&view, see);
            }
            at += u64::from(header.len);
        }
    }
    Ok(())
}

/// The started segments of `wal/`, in the order of their numbers.
pub(crate) fn inspect(disk: &dyn Disk) -> Result<Vec<SegmentSummary>> {
    let mut summaries = Vec::new();
    for segment in FoundFiles::read(disk)?.segments {
        let header = segment.header;
        let mut reader = SegmentReader::new(Arc::clone(&segment.file), header)?;
        let (mut end, mut valid_records) = (header.start_lsn, 0);
        while let Some((record, _)) = reader.record_at(end)? {
            end += u64::from(record.len);
            valid_records += 1;
        }
        summaries.push(SegmentSummary {
            file: format!("{}.wal", header.seq),
            seq: header.seq,
            start: Lsn(header.start_lsn),
            valid_records,
            end: Lsn(end),
            reopen: header.reopen,
        });
    }
    Ok(summaries)
}
