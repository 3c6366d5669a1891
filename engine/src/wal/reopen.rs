//! Starting the log again after a replay.
//!
//! A new reopen segment begins at `proven`; the records of `[proven, cut)` are written into it
//! again, with its salt and `base = proven`, because after a failed sync their pages only look
//! clean. One segment always suffices: what no `base` proves was one flush, in one segment.
//!
//! An acknowledged record may be among them, and once the new segment's header is valid the old
//! copy is never read again. So the body is durable before the header is written:
//!
//! 1. the file gets its name: a crash leaves a file without a header, or with a header of another
//!    number: never started, the old chain is complete;
//! 2. the body is written: as 1;
//! 3. the body is synced: as 1;
//! 4. the header is written: a crash leaves it or not, as it is one sector; with it, the body is
//!    there; without it, as 1;
//! 5. the header is synced: the old copy is void, and only now is any old segment given up.
//!
//! In step 1 only a never started file is recycled. A segment that looks superseded may be so by a
//! reopen header that is in the page cache alone (its sync failed, then the process died): it is
//! the only durable copy until step 5.
//!
//! On a full disk the file of step 1 is the spare that the last process left; without one, see
//! [`start_full`].
//!
//! Invariants: `start_lsn == proven <= cut == durable_lsn`; the flusher goes on at the cut.

use std::sync::Arc;

use super::Wal;
use super::flusher::ActiveSegment;
use super::record::{HEADER_BYTES, Header};
use super::reference::SyncValues;
use super::replay::Replay;
use super::retention::{LiveSegment, NewFile, Segments};
use super::segment::{MakeError, SegmentHeader};
use crate::error::{Error, ErrorKind, Result};
use crate::io::File;
use crate::options::Options;

/// Bytes of body gathered for one write.
const CHUNK_BYTES: usize = 1 << 20;

/// See [`Replay::start`].
pub(super) fn start(replay: &Replay, options: &Options, sync_values: SyncValues) -> Result<Wal> {
    let (proven, cut) = (replay.walk.proven, replay.walk.cut);
    debug_assert!(proven <= cut, "proven durable up to {proven}, but the log ends at {cut}");
    let segments = Segments::new(Arc::clone(&replay.disk), options, replay.files.next_seq);
    for &(seq, bytes) in &replay.files.unstarted {
        segments.push_free(seq, bytes);
    }
    let made = match segments.make(cut - proven).map_err(MakeError::into_error) {
        Err(error) if error.kind() == ErrorKind::DiskFull => {
            return start_full(replay, options, sync_values, segments, error);
        }
        made => made?,
    };
    let NewFile { seq, file, bytes } = made;
    let header = SegmentHeader::new(seq, proven, bytes, true);
    if proven < cut {
        copy_unproven(replay, &*file, &header)?;
        file.sync().map_err(|e| Error::io("sync", file.path(), &e))?;
    }
    header.write(&*file)?;
    // What holds a part of `[checkpoint_lsn, proven)`.
    give_up_old(replay, &segments, &|index| {
        let mut extents = replay.walk.extents.iter();
        extents.any(|extent| extent.segment == index && extent.from < extent.to.min(proven))
    });
    segments.push_live(LiveSegment { seq, start_lsn: proven, bytes });
    let active = ActiveSegment { file, header };
    let ring_bytes = options.wal_ring_bytes;
    Wal::start(ring_bytes, segments, active, sync_values, replay.checkpoint_lsn, cut)
}

/// Starts on a disk without space for a new segment, and without a spare. The records of
/// `[proven, cut)` are written again where they are, the same bytes, so a torn write changes
/// nothing; the sync then brings them to the disk although their pages looked clean. Everything
/// below the cut is durable, and the first roll begins the reopen segment there, when space
/// returns; until then no permit is granted, so nothing follows the cut.
fn start_full(
    replay: &Replay,
    options: &Options,
    sync_values: SyncValues,
    segments: Segments,
    error: Error,
) -> Result<Wal> {
    let (proven, cut) = (replay.walk.proven, replay.walk.cut);
    let Some(last) = replay.files.segments.last() else { return Err(error) };
    tracing::warn!(%error, "the log starts without a segment: writes are refused");
    replay.for_each_raw(proven, &mut |segment, record| {
        let offset = segment.header.offset_of(record.lsn);
        let written = segment.file.write_at(offset, record.bytes);
        written.map_err(|e| Error::io("write", segment.file.path(), &e))
    })?;
    // The headers too: one whose sync failed may be in the page cache alone, and what it makes
    // void is given up here.
    let in_chain = |index| replay.walk.extents.iter().any(|extent| extent.segment == index);
    for (index, segment) in replay.files.segments.iter().enumerate() {
        if in_chain(index) {
            segment.header.write(&*segment.file)?;
        }
    }
    // No new segment says where the log begins, so the whole chain stays, empty ones too.
    give_up_old(replay, &segments, &in_chain);
    let active = ActiveSegment::placeholder(Arc::clone(&last.file), cut);
    let ring_bytes = options.wal_ring_bytes;
    Wal::start(ring_bytes, segments, active, sync_values, replay.checkpoint_lsn, cut)
}

/// Writes `[proven, cut)` into the new segment.
fn copy_unproven(replay: &Replay, file: &dyn File, header: &SegmentHeader) -> Result<()> {
    let proven = replay.walk.proven;
    let mut chunk: Vec<u8> = Vec::new();
    let mut chunk_lsn = proven;
    let write = |lsn: u64, bytes: &[u8]| {
        let written = file.write_at(header.offset_of(lsn), bytes);
        written.map_err(|e| Error::io("write", file.path(), &e))
    };
    replay.for_each_raw(proven, &mut |_, record| {
        let Some(old) = Header::decode(record.bytes) else { return Ok(()) };
        chunk.extend_from_slice(&Header { base: proven, ..old }.encode(header.salt));
        chunk.extend_from_slice(&record.bytes[HEADER_BYTES..]);
        if chunk.len() >= CHUNK_BYTES {
            write(chunk_lsn, &chunk)?;
            chunk_lsn += chunk.len() as u64;
            chunk.clear();
        }
        Ok(())
    })?;
    write(chunk_lsn, &chunk)
}

/// Keeps the segments that are needed, and those before them that go on to there, as far as their
/// headers say: who reads them finds out. The others are void.
fn give_up_old(replay: &Replay, segments: &Segments, needed: &dyn Fn(usize) -> bool) {
    let found = &replay.files.segments;
    let first = replay.walk.extents.first().map(|extent| extent.segment);
    // From the newest on: what a segment holds from the start of a newer one on is void.
    let mut end = replay.walk.proven;
    let mut kept = Vec::new();
    for (index, segment) in found.iter().enumerate().rev() {
        let start_lsn = segment.header.start_lsn;
        let goes_on = first.is_some_and(|first| index <= first) && start_lsn < end;
        if needed(index) || goes_on {
            end = end.min(start_lsn);
            kept.push(index);
        }
    }
    kept.reverse();
    for (index, segment) in found.iter().enumerate() {
        let SegmentHeader { seq, start_lsn, .. } = segment.header;
        let described = LiveSegment { seq, start_lsn, bytes: segment.bytes };
        if needed(index) {
            segments.push_live(described);
        } else if kept.contains(&index) {
            segments.push_kept(described);
        } else {
            segments.push_free(seq, segment.bytes);
        }
    }
}
