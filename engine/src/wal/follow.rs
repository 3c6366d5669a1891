//! Reading the durable log while it is written, retired and recycled.
//!
//! Invariants: nothing at or above `durable_lsn` is looked at; what is handed out has both
//! checksums right under the salt of the segment that held its LSN when it was opened, so a file
//! that is reused meanwhile shows old records, which are what they were, or none. What is then
//! missing is [gone](Followed::Gone) if its segment was given up, and damage if it was not. Takes
//! no lock that an appender or the flusher waits for longer than for a look at a list.

use std::io::ErrorKind;
use std::sync::Arc;

use super::Wal;
use super::decode::{BadRecord, RecordView};
use super::reader::SegmentReader;
use super::retention::LiveSegment;
use super::segment::{HeaderState, SegmentHeader};
use crate::error::{Error, Result};
use crate::io::File;
use crate::types::Lsn;

/// How [`Wal::read_durable`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Followed {
    /// At the end that was asked for, or where the reader stopped: everything before this has been
    /// delivered.
    To(Lsn),
    /// The record at this LSN is no longer kept.
    Gone(Lsn),
}

/// Whether a reader wants more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reading {
    /// The next record too.
    On,
    /// Nothing behind this record.
    Stop,
}

impl Wal {
    /// Where the log that is still kept begins.
    pub(crate) fn oldest_lsn(&self) -> Lsn {
        Lsn(self.shared.segments.oldest_lsn())
    }

    /// Calls `take` with the records of `[from, to)`, the end of each, and the start of its
    /// segment. `from` is where a record starts, `to` one's end, at most `durable_lsn`.
    pub(crate) fn read_durable(
        &self,
        from: Lsn,
        to: Lsn,
        take: &mut dyn FnMut(&RecordView<'_>, Lsn, Lsn) -> Result<Reading>,
    ) -> Result<Followed> {
        let to = to.min(self.durable_lsn()).0;
        let mut at = from.0;
        while at < to {
            let Some((segment, segment_end)) = self.shared.segments.locate(at) else {
                return Ok(Followed::Gone(Lsn(at)));
            };
            let end = to.min(segment_end);
            let Some((file, header)) = self.open_segment(segment)? else {
                self.missing(segment, at, "no segment of this number")?;
                return Ok(Followed::Gone(Lsn(at)));
            };
            let mut reader = SegmentReader::up_to(Arc::clone(&file), header, end)?;
            while at < end {
                let Some((record, bytes)) = reader.record_at(at)? else {
                    self.missing(segment, at, "no valid record")?;
                    return Ok(Followed::Gone(Lsn(at)));
                };
                let view = RecordView::parse(bytes).map_err(|bad| {
                    let offset = header.offset_of(at);
                    match bad {
                        BadRecord::Newer(what) => Error::foreign(
                            &file.path(),
                            format!("a newer version wrote {what} at offset {offset}"),
                        ),
                        BadRecord::Malformed(what) => Error::corrupt(&file.path(), offset, what),
                    }
                })?;
                at += u64::from(record.len);
                if take(&view, Lsn(at), Lsn(segment.start_lsn))? == Reading::Stop {
                    return Ok(Followed::To(Lsn(at)));
                }
            }
        }
        Ok(Followed::To(Lsn(at)))
    }

    /// The segment's file and header; `None` if the file is not that segment (any more).
    fn open_segment(&self, segment: LiveSegment) -> Result<Option<(Arc<dyn File>, SegmentHeader)>> {
        let file = match self.shared.segments.open(segment) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let path = self.shared.segments.folder().join(format!("{}.wal", segment.seq));
                return Err(Error::io("open", path, &error));
            }
        };
        Ok(match SegmentHeader::read(&*file)? {
            HeaderState::Valid(header)
                if header.seq == segment.seq && header.start_lsn == segment.start_lsn =>
            {
                Some((file, header))
            }
            _ => None,
        })
    }

    /// There is `what` at `lsn`, where `segment` had it. Damage, if recovery would need it; else
    /// the segment was recycled meanwhile, or, kept by an earlier process, does not go on to the
    /// next one: it is given up.
    fn missing(&self, segment: LiveSegment, lsn: u64, what: &str) -> Result<()> {
        let segments = &self.shared.segments;
        let still_there = segments.locate(lsn).is_some_and(|(now, _)| now.seq == segment.seq);
        if !still_there {
            return Ok(());
        }
        segments.give_up_kept(segment.start_lsn);
        if segments.oldest_lsn() > lsn {
            tracing::warn!(seq = segment.seq, lsn, what, "a kept log segment is given up");
            return Ok(());
        }
        let path = segments.folder().join(format!("{}.wal", segment.seq));
        Err(Error::corrupt(&path, 0, format!("{what} of LSN {lsn}, which is durable")))
    }
}
