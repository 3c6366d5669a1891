//! The torn-tail rule: where the log ends, and whether something is missing there.
//!
//! From the newest segment that starts at or below `checkpoint_lsn`, at each position: the newest
//! newer *reopen* segment that starts here wins; else a valid record of the current segment; else
//! a newer segment that starts here; else the log ends: the *cut*.
//!
//! What follows the cut is a torn tail, even with valid records in it (any subset of one flush may
//! survive a power cut), unless there is evidence that something behind the cut was durable:
//!
//! - a valid header behind it with `base > cut`;
//! - a newer segment that starts above it: it was begun when everything before was durable;
//! - `cut < freeze_lsn`: the manifest was committed after that was durable.
//!
//! Invariants: `checkpoint_lsn <= cut`; `proven <= cut`; what lies below `proven` was durable when
//! some record, segment or manifest was written.

use std::sync::Arc;

use super::decode::RecordView;
use super::reader::SegmentReader;
use super::record::KIND_WRITE_AT;
use super::segment::SegmentHeader;
use crate::error::{Error, Result};
use crate::io::File;
use crate::types::Lsn;

/// A started segment, as found.
pub(super) struct FoundSegment {
    pub(super) file: Arc<dyn File>,
    pub(super) header: SegmentHeader,
    /// Length of the file.
    pub(super) bytes: u64,
}

/// Part of the log: `[from, to)` lies in the segment of that index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) segment: usize,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// What the walk found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// In log order, without gaps, from the checkpoint to the cut.
    pub(super) extents: Vec<Extent>,
    pub(super) cut: u64,
    pub(super) proven: u64,
    pub(super) records: u64,
    /// Whether any of them refers to a value.
    pub(super) refers: bool,
}

/// Walks `segments`, which are in the order of their numbers. Reads only.
pub(super) fn walk(
    segments: &[FoundSegment],
    checkpoint_lsn: Lsn,
    freeze_lsn: Lsn,
    folder: &std::path::Path,
) -> Result<Walk> {
    let Some(first) = Walk::first(segments, checkpoint_lsn) else {
        if segments.is_empty() && checkpoint_lsn.0 == 0 && freeze_lsn.0 == 0 {
            return Ok(Walk::default());
        }
        let what = format!("no segment holds LSN {checkpoint_lsn}, where the log must begin");
        return Err(Error::corrupt(folder, 0, what));
    };
    let proven = checkpoint_lsn.max(freeze_lsn).0;
    let mut walk = Walk { cut: checkpoint_lsn.0, proven, ..Walk::default() };
    let last = walk.follow_all(segments, first)?;
    walk.check_end(segments, last, freeze_lsn)?;
    Ok(walk)
}

impl Walk {
    /// The segment in which the log begins.
    fn first(segments: &[FoundSegment], checkpoint_lsn: Lsn) -> Option<usize> {
        segments.iter().rposition(|s| s.header.start_lsn <= checkpoint_lsn.0)
    }

    /// What can be read, whatever is missing behind it. Ends at the checkpoint when there is nothing
    /// to begin with.
    pub(super) fn valid(segments: &[FoundSegment], checkpoint_lsn: Lsn) -> Result<Walk> {
        let mut walk = Walk { cut: checkpoint_lsn.0, ..Walk::default() };
        if let Some(first) = Self::first(segments, checkpoint_lsn) {
            walk.follow_all(segments, first)?;
        }
        Ok(walk)
    }

    /// Follows the log to its end; the segment in which it ends.
    fn follow_all(&mut self, segments: &[FoundSegment], first: usize) -> Result<usize> {
        let mut current = first;
        while let Some(next) = self.follow(segments, current)? {
            current = next;
        }
        Ok(current)
    }

    /// Takes the records of one segment; the index of the segment to go on with.
    fn follow(&mut self, segments: &[FoundSegment], current: usize) -> Result<Option<usize>> {
        let segment = &segments[current];
        let newer = &segments[current + 1..];
        let mut reader = SegmentReader::new(Arc::clone(&segment.file), segment.header)?;
        let from = self.cut;
        let next = loop {
            let starts_here = |s: &FoundSegment| s.header.start_lsn == self.cut;
            let reopened = newer.iter().rposition(|s| s.header.reopen && starts_here(s));
            if reopened.is_some() {
                break reopened;
            }
            let Some((header, _)) = reader.record_at(self.cut)? else {
                let next = newer.iter().position(starts_here);
                if next.is_some() {
                    // It was begun when everything before was durable.
                    self.proven = self.proven.max(self.cut);
                }
                break next;
            };
            if !RecordView::knows_kind(header.kind) || header.flags != 0 {
                let offset = segment.header.offset_of(self.cut);
                let what = format!("a newer version wrote the record at offset {offset}");
                return Err(Error::foreign(&segment.file.path(), what));
            }
            self.proven = self.proven.max(header.base);
            self.records += 1;
            self.refers |= header.kind == KIND_WRITE_AT;
            self.cut += u64::from(header.len);
        };
        self.extents.push(Extent { segment: current, from, to: self.cut });
        Ok(next.map(|index| current + 1 + index))
    }

    /// Lets the log end at `lsn`, where a record starts, not below what is proven durable.
    pub(super) fn cut_at(&mut self, lsn: u64) {
        debug_assert!(self.proven <= lsn && lsn <= self.cut);
        self.cut = lsn;
        self.extents.retain(|extent| extent.from <= lsn);
        if let Some(last) = self.extents.last_mut() {
            last.to = last.to.min(lsn);
        }
    }

    /// Torn tail or damage.
    fn check_end(&mut self, segments: &[FoundSegment], last: usize, freeze_lsn: Lsn) -> Result<()> {
        let cut = self.cut;
        let damage = |why: String| {
            let SegmentHeader { start_lsn, .. } = segments[last].header;
            // The checkpoint may lie beyond a segment that is the only one left.
            let offset = segments[last].header.offset_of(cut.max(start_lsn));
            let what = format!("the log is damaged: no valid record of LSN {cut}, but {why}");
            Err(Error::corrupt(&segments[last].file.path(), offset, what))
        };
        if cut < freeze_lsn.0 {
            return damage(format!("the manifest proves that LSN {freeze_lsn} was durable"));
        }
        for segment in &segments[last..] {
            let path = segment.file.path();
            let SegmentHeader { start_lsn, .. } = segment.header;
            if start_lsn > cut {
                return damage(format!("{} starts at LSN {start_lsn}", path.display()));
            }
            let mut reader = SegmentReader::new(Arc::clone(&segment.file), segment.header)?;
            if let Some(found) = reader.evidence_behind(cut)? {
                if found.base > cut {
                    let (lsn, base) = (found.lsn, found.base);
                    let path = path.display();
                    return damage(format!(
                        "the record of LSN {lsn} in {path} proves that LSN {base} was durable"
                    ));
                }
                self.proven = self.proven.max(found.base);
            }
        }
        Ok(())
    }
}
