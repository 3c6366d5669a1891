//! Reading the log back: find the segments, find the end, deliver the records.
//!
//! Invariants: nothing on disk is changed before [`Replay::start`] except that what was found is
//! made durable (a kill leaves writes and renames in the page cache only, and what was replayed
//! must not vanish in a later power cut); records are delivered in log order, each once, from
//! `checkpoint_lsn` to the cut, with the memory of one chunk.

use std::path::Path;
use std::sync::Arc;

use super::WAL_FOLDER;
use super::decode::{BadRecord, RecordView};
use super::reader::SegmentReader;
use super::record::KIND_WRITE_AT;
use super::reference::{Reference, SyncValues, references_of};
use super::segment::{HeaderState, SegmentHeader, parse_name, segment_path, sync_folder};
use super::walk::{Extent, FoundSegment, Walk, walk};
use super::{Wal, reopen};
use crate::error::{Error, Result};
use crate::io::Disk;
use crate::options::Options;
use crate::types::Lsn;

/// The log as found, before it is started again.
pub(crate) struct Replay {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) files: FoundFiles,
    pub(super) walk: Walk,
    pub(super) checkpoint_lsn: Lsn,
}

/// What lies in `wal/`.
#[derive(Default)]
pub(super) struct FoundFiles {
    /// Started segments, in the order of their numbers.
    pub(super) segments: Vec<FoundSegment>,
    /// Number and length of files that were never started.
    pub(super) unstarted: Vec<(u64, u64)>,
    /// Above every number in a file name.
    pub(super) next_seq: u64,
}

impl FoundFiles {
    /// Lists `wal/` and reads the headers. Names that are not ours are ignored.
    pub(super) fn read(disk: &dyn Disk) -> Result<Self> {
        let folder = Path::new(WAL_FOLDER);
        let names =
            disk.list(folder).map_err(|e| Error::io("list", disk.root().join(folder), &e))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| parse_name(name)).collect();
        numbers.sort_unstable();
        let mut found = Self::default();
        for seq in numbers {
            let path = segment_path(seq);
            let full = disk.root().join(&path);
            let file = disk.open(&path).map_err(|e| Error::io("open", &full, &e))?;
            let bytes = file.len().map_err(|e| Error::io("measure", &full, &e))?;
            match SegmentHeader::read(&*file)? {
                HeaderState::Valid(header) if header.seq == seq => {
                    found.segments.push(FoundSegment { file, header, bytes });
                }
                HeaderState::Valid(_) | HeaderState::Invalid => found.unstarted.push((seq, bytes)),
                HeaderState::Newer => {
                    return Err(Error::foreign(&full, "a log segment of a newer version"));
                }
            }
            found.next_seq = seq.checked_add(1).ok_or_else(|| {
                Error::foreign(&full, "the number of this log segment leaves none for the next")
            })?;
        }
        Ok(found)
    }
}

impl Replay {
    /// Finds the log's end and makes what was found durable. `Corrupt` names file and offset if
    /// something that was durable is missing; `Foreign` if a newer version wrote the log.
    ///
    /// The manifest that gave the two LSNs must be durable (synced as found) before
    /// [`start`](Self::start).
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        _options: &Options,
        checkpoint_lsn: Lsn,
        freeze_lsn: Lsn,
    ) -> Result<Self> {
        let folder = Path::new(WAL_FOLDER);
        let full = disk.root().join(folder);
        let exists = disk.exists(folder).map_err(|e| Error::io("look for", &full, &e))?;
        let files = if exists { FoundFiles::read(&*disk)? } else { FoundFiles::default() };
        let walk = walk(&files.segments, checkpoint_lsn, freeze_lsn, &full)?;
        if !exists {
            disk.create_dir(folder).map_err(|e| Error::io("create", &full, &e))?;
        }
        for segment in &files.segments {
            segment.file.sync().map_err(|e| Error::io("sync", segment.file.path(), &e))?;
        }
        sync_folder(&*disk)?;
        disk.sync_dir(Path::new("")).map_err(|e| Error::io("sync", disk.root(), &e))?;
        Ok(Self { disk, files, walk, checkpoint_lsn })
    }

    /// Calls `see` with every reference, in log order; `is_proven`: the record was durable for sure.
    pub(crate) fn for_each_reference(
        &self,
        see: &mut dyn FnMut(Reference<'_>, bool) -> Result<()>,
    ) -> Result<()> {
        self.for_each_reference_from(self.checkpoint_lsn.0, see)
    }

    fn for_each_reference_from(
        &self,
        from: u64,
        see: &mut dyn FnMut(Reference<'_>, bool) -> Result<()>,
    ) -> Result<()> {
        if !self.walk.refers {
            return Ok(());
        }
        self.for_each_raw(from, &mut |segment, record| {
            if record.bytes.get(4) != Some(&KIND_WRITE_AT) {
                return Ok(());
            }
            let (_, _, view) = record.parse(segment)?;
            let is_proven = record.lsn < self.walk.proven;
            let mut result = Ok(());
            references_of(&view, &mut |reference| {
                if result.is_ok() {
                    result = see(reference, is_proven);
                }
            });
            result
        })
    }

    /// Cuts the log at the first record that is not proven durable and refers to a value that is
    /// not whole. Nothing has been replayed yet.
    pub(crate) fn cut_torn_references(
        &mut self,
        is_whole: &mut dyn FnMut(&Reference<'_>) -> Result<bool>,
    ) -> Result<()> {
        let mut torn = None;
        // Every base is the end of a record.
        self.for_each_reference_from(self.walk.proven, &mut |reference, _| {
            if torn.is_none() && !is_whole(&reference)? {
                torn = Some(reference.lsn);
            }
            Ok(())
        })?;
        if let Some(lsn) = torn {
            self.walk.cut_at(lsn.0);
        }
        Ok(())
    }

    /// Where the log ends.
    #[cfg(test)]
    pub(crate) fn cut(&self) -> Lsn {
        Lsn(self.walk.cut)
    }

    /// What lies below is proven durable; what lies between here and the cut is written again by
    /// [`start`](Self::start).
    #[cfg(test)]
    pub(crate) fn proven(&self) -> Lsn {
        Lsn(self.walk.proven)
    }

    /// Records between checkpoint and cut.
    #[cfg(test)]
    pub(crate) fn records_seen(&self) -> u64 {
        self.walk.records
    }

    /// Calls `apply` with every record and its end, from the checkpoint to the cut; the first
    /// error ends it.
    pub(crate) fn for_each(
        &self,
        apply: &mut dyn FnMut(RecordView<'_>, Lsn) -> Result<()>,
    ) -> Result<()> {
        self.for_each_raw(self.checkpoint_lsn.0, &mut |segment, record| {
            let (offset, end, view) = record.parse(segment)?;
            debug_assert!(offset >= super::segment::HEADER_BLOCK_BYTES);
            apply(view, Lsn(end))
        })
    }

    /// Calls `apply` with the bytes of every record from `from` (where one starts) on.
    pub(super) fn for_each_raw(
        &self,
        from: u64,
        apply: &mut dyn FnMut(&FoundSegment, RawRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        for &Extent { segment, from: extent_from, to } in &self.walk.extents {
            let segment = &self.files.segments[segment];
            let mut at = extent_from.max(from);
            if at >= to {
                continue;
            }
            let mut reader = SegmentReader::new(Arc::clone(&segment.file), segment.header)?;
            while at < to {
                let Some((header, bytes)) = reader.record_at(at)? else {
                    let offset = segment.header.offset_of(at);
                    let what = "a log record changed after it had been checked";
                    return Err(Error::corrupt(&segment.file.path(), offset, what));
                };
                apply(segment, RawRecord { lsn: at, bytes })?;
                at += u64::from(header.len);
            }
        }
        Ok(())
    }

    /// Starts the log again at the cut: what is not proven durable is written again into a new
    /// segment; what it refers to has been, by the caller. On return everything below the cut is durable.
    pub(crate) fn start(self, options: &Options, sync_values: SyncValues) -> Result<Wal> {
        reopen::start(&self, options, sync_values)
    }
}

/// A valid record, not decoded.
#[derive(Clone, Copy)]
pub(super) struct RawRecord<'a> {
    pub(super) lsn: u64,
    pub(super) bytes: &'a [u8],
}

impl<'a> RawRecord<'a> {
    /// Offset in the file, end, and content.
    fn parse(self, segment: &FoundSegment) -> Result<(u64, u64, RecordView<'a>)> {
        let offset = segment.header.offset_of(self.lsn);
        let path = segment.file.path();
        let view = RecordView::parse(self.bytes).map_err(|bad| match bad {
            BadRecord::Newer(what) => {
                Error::foreign(&path, format!("a newer version wrote {what} at offset {offset}"))
            }
            BadRecord::Malformed(what) => Error::corrupt(&path, offset, what),
        })?;
        Ok((offset, self.lsn + self.bytes.len() as u64, view))
    }
}
