//! Looking at a log without changing it, for `inspect` and offline checks.
//!
//! Invariant: reads only; what is reported of a segment is its own run of valid records, whether
//! or not the log still needs them.

use std::sync::Arc;

use super::reader::SegmentReader;
use super::replay::FoundFiles;
use crate::error::Result;
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
