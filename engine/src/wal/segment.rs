//! The log's files: `wal/<seq>.wal`, a header block and records behind it.
//!
//! Header block (4096 bytes, little-endian, zero behind the checksum): magic `VMKVWAL\0`, version
//! u32 = 1, flags u32 (bit 0: reopen), seq u64, start_lsn u64, salt u64, segment_bytes u64, crc32
//! of the 48 bytes before it.
//!
//! Invariants: the record of LSN `l` lies at `4096 + (l - start_lsn)`; a record never crosses
//! segments; a file whose header is invalid, or names another `seq` than the file's name does, was
//! never started; `seq` is never used twice, and a newer segment has a greater one. A recycled file
//! gets its new name durably, then its header durably, then its first record: until its header is
//! written it has the old `seq`, and afterwards a new salt, so old records in it are never valid.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::WAL_FOLDER;
use super::record::Cursor;
use crate::error::{Error, Result};
use crate::io::{Disk, File};

/// Bytes before the first record.
pub(super) const HEADER_BLOCK_BYTES: u64 = 4096;
const MAGIC: &[u8; 8] = b"VMKVWAL\0";
const VERSION: u32 = 1;
const FLAG_REOPEN: u32 = 1;
const COVERED_BYTES: usize = 48;

/// A segment's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentHeader {
    pub(super) seq: u64,
    pub(super) start_lsn: u64,
    pub(super) salt: u64,
    /// Bytes of the file: where the room for records ends.
    pub(super) segment_bytes: u64,
    /// Made by an open: what older segments hold from `start_lsn` on is void.
    pub(super) reopen: bool,
}

/// What the first block of a file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeaderState {
    Valid(SegmentHeader),
    /// Never started, or torn while it was.
    Invalid,
    /// Ours, but of a format that this release does not know.
    Newer,
}

impl SegmentHeader {
    /// A header for a new segment, with a new salt.
    pub(super) fn new(seq: u64, start_lsn: u64, segment_bytes: u64, reopen: bool) -> Self {
        let now = std::time::SystemTime::now();
        let salt = RandomState::new().hash_one((seq, start_lsn, now));
        Self { seq, start_lsn, salt, segment_bytes, reopen }
    }

    /// Where the record of `lsn` lies in the file.
    pub(super) fn offset_of(&self, lsn: u64) -> u64 {
        HEADER_BLOCK_BYTES + (lsn - self.start_lsn)
    }

    /// The LSN at which the room for records ends.
    pub(super) fn limit_lsn(&self) -> u64 {
        self.start_lsn + (self.segment_bytes - HEADER_BLOCK_BYTES)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(HEADER_BLOCK_BYTES as usize);
        block.extend_from_slice(MAGIC);
        block.extend_from_slice(&VERSION.to_le_bytes());
        let flags = if self.reopen { FLAG_REOPEN } else { 0 };
        block.extend_from_slice(&flags.to_le_bytes());
        for word in [self.seq, self.start_lsn, self.salt, self.segment_bytes] {
            block.extend_from_slice(&word.to_le_bytes());
        }
        let crc = crc32fast::hash(&block);
        block.extend_from_slice(&crc.to_le_bytes());
        block.resize(HEADER_BLOCK_BYTES as usize, 0);
        block
    }

    pub(super) fn decode(block: &[u8]) -> HeaderState {
        Self::decode_fields(block).unwrap_or(HeaderState::Invalid)
    }

    fn decode_fields(block: &[u8]) -> Option<HeaderState> {
        let mut cursor = Cursor(block);
        if cursor.take(8)? != MAGIC {
            return None;
        }
        let version = cursor.u32()?;
        if version > VERSION {
            return Some(HeaderState::Newer);
        }
        let flags = cursor.u32()?;
        let (seq, start_lsn) = (cursor.u64()?, cursor.u64()?);
        let (salt, segment_bytes) = (cursor.u64()?, cursor.u64()?);
        let crc = cursor.u32()?;
        if version != VERSION || crc != crc32fast::hash(block.get(..COVERED_BYTES)?) {
            return None;
        }
        if flags & !FLAG_REOPEN != 0 {
            return Some(HeaderState::Newer);
        }
        // Checked by the writer too; an end beyond u64 would break all arithmetic on LSNs.
        let sane = start_lsn.is_multiple_of(8)
            && segment_bytes >= HEADER_BLOCK_BYTES
            && start_lsn.checked_add(segment_bytes).is_some();
        let reopen = flags & FLAG_REOPEN != 0;
        sane.then_some(HeaderState::Valid(Self { seq, start_lsn, salt, segment_bytes, reopen }))
    }

    /// Reads the header of a file; one that is too short has none.
    pub(super) fn read(file: &dyn File) -> Result<HeaderState> {
        let mut block = vec![0; HEADER_BLOCK_BYTES as usize];
        match file.read_at(0, &mut block) {
            Ok(()) => Ok(Self::decode(&block)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(HeaderState::Invalid),
            Err(error) => Err(Error::io("read", file.path(), &error)),
        }
    }

    /// Writes the header and makes it durable: the segment is started.
    pub(super) fn write(&self, file: &dyn File) -> Result<()> {
        file.write_at(0, &self.encode()).map_err(|e| Error::io("write", file.path(), &e))?;
        file.sync().map_err(|e| Error::io("sync", file.path(), &e))
    }
}

/// The path of segment `seq`.
pub(super) fn segment_path(seq: u64) -> PathBuf {
    Path::new(WAL_FOLDER).join(format!("{seq}.wal"))
}

/// The sequence number in a file name; `None` if the name is not one of ours.
pub(super) fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    let seq = digits.parse().ok()?;
    (format!("{seq}") == digits).then_some(seq)
}

/// Why a file could not be made.
#[derive(Debug)]
pub(super) enum MakeError {
    /// A sync failed: what is durable is not known, so it must not be tried again.
    Sync(Error),
    /// No space, or anything else that changed nothing: it may be tried again.
    Other(Error),
}

impl MakeError {
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Sync(error) | Self::Other(error) => error,
        }
    }
}

/// Makes the file of segment `seq`, without a header: from the file of `recycled`, which must be
/// `bytes` long, or a new one. Its name and its blocks are durable on return, so that a start on a
/// full disk finds them. After [`MakeError::Other`] there is no file `seq`, and `recycled` is as
/// it was.
pub(super) fn make_file(
    disk: &dyn Disk,
    seq: u64,
    bytes: u64,
    recycled: Option<u64>,
) -> std::result::Result<Arc<dyn File>, MakeError> {
    let path = segment_path(seq);
    let full = || disk.root().join(&path);
    let other = |what, error: io::Error| MakeError::Other(Error::io(what, full(), &error));
    let file = match recycled {
        Some(old) => {
            let old = segment_path(old);
            disk.rename(&old, &path).map_err(|e| other("rename to", e))?;
            disk.open(&path).map_err(|error| {
                // Best effort: a never started file is found by the next start, whatever its name.
                let _ = disk.rename(&path, &old);
                other("open", error)
            })?
        }
        None => {
            let file = disk.create(&path).map_err(|e| other("create", e))?;
            file.allocate(bytes).map_err(|error| {
                // Part of it may be allocated: a full disk must not fill up with failed attempts.
                let _ = disk.remove(&path);
                other("allocate", error)
            })?;
            file.sync().map_err(|e| MakeError::Sync(Error::sync(full(), &e)))?;
            file
        }
    };
    let folder = Path::new(WAL_FOLDER);
    disk.sync_dir(folder)
        .map_err(|e| MakeError::Sync(Error::sync(disk.root().join(folder), &e)))?;
    Ok(file)
}

/// Makes the names in `wal/` durable.
pub(super) fn sync_folder(disk: &dyn Disk) -> Result<()> {
    disk.sync_dir(Path::new(WAL_FOLDER))
        .map_err(|e| Error::io("sync", disk.root().join(WAL_FOLDER), &e))
}
