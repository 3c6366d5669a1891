//! The MANIFEST: the one file whose rename commits a checkpoint.
//!
//! Layout, little-endian: magic (8 bytes), format version u32, body length u32, crc32 of the body
//! u32, reserved u32, body. The body is the fields of [`Manifest`] in order, each list with its
//! length before it (u32), each key with its length before it (u16).
//!
//! Invariant: a manifest that decodes satisfies every rule of
//! [`manifest_rules`](super::manifest_rules).

use std::path::Path;

use crate::api::OperationOutcome;
use crate::checkpoint::chain::IndexFile;
use crate::checkpoint::manifest_rules;
use crate::error::{Error, Result};
use crate::types::{CheckpointId, InstanceId, KeyRange, Lsn, Revision, ShardId};
use crate::value_log::SegmentBase;

/// Where the manifest is.
pub(crate) const MANIFEST: &str = "MANIFEST";
const MAGIC: [u8; 8] = *b"VMKVMAN\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
/// Outcomes of operations.
const DONE: u8 = 1;
const REFUSED: u8 = 2;

/// A committed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Manifest {
    /// The attempt that made it; 0 for a new directory.
    pub(crate) checkpoint: CheckpointId,
    /// Replay begins here.
    pub(crate) checkpoint_lsn: Lsn,
    /// The log is durable at least up to here, or it is damaged.
    pub(crate) freeze_lsn: Lsn,
    /// Above every instance ever made.
    pub(crate) next_instance: InstanceId,
    /// Above every shard id that the engine itself ever made.
    pub(crate) next_shard: ShardId,
    /// Size of a value-log segment, in bytes; fixed when the directory is made.
    pub(crate) value_segment_bytes: u64,
    /// No revision at or below means anything any more: the log was ended by hand, and what had those
    /// may be gone. 0: it never was.
    pub(crate) revision_floor: Revision,
    /// The value log's immutable parts, by segment.
    pub(crate) segments: Vec<SegmentBase>,
    /// The shards, in key order.
    pub(crate) shards: Vec<ManifestShard>,
    /// How operations on shards ended, oldest first.
    pub(crate) operations: Vec<(u64, OperationOutcome)>,
}

/// A shard in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestShard {
    /// The cluster's id.
    pub(crate) id: ShardId,
    /// The local copy.
    pub(crate) instance: InstanceId,
    /// The epoch under which it was given.
    pub(crate) epoch: u64,
    /// At least every revision below `checkpoint_lsn`.
    pub(crate) revision: Revision,
    /// Its T1 files: a whole one and the deltas to it; none = the shard is empty.
    pub(crate) files: Vec<IndexFile>,
    /// The keys.
    pub(crate) range: KeyRange,
}

impl ManifestShard {
    /// The paths of its T1 files.
    pub(crate) fn file_paths(&self) -> impl Iterator<Item = std::path::PathBuf> {
        self.files.iter().map(|file| index_path(self.instance, file.attempt))
    }
}

/// The path of the T1 file of an instance made by an attempt.
pub(crate) fn index_path(instance: InstanceId, attempt: CheckpointId) -> std::path::PathBuf {
    format!("t1/{instance}-{attempt}.t1").into()
}

impl Manifest {
    /// The file's content.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for number in [
            self.checkpoint.0,
            self.checkpoint_lsn.0,
            self.freeze_lsn.0,
            self.next_instance.0,
            self.next_shard.0,
            self.value_segment_bytes,
            self.revision_floor.0,
        ] {
            body.extend(number.to_le_bytes());
        }
        body.extend((self.segments.len() as u32).to_le_bytes());
        for segment in &self.segments {
            body.extend(segment.segment.to_le_bytes());
            body.extend(segment.base_bytes.to_le_bytes());
        }
        body.extend((self.shards.len() as u32).to_le_bytes());
        for shard in &self.shards {
            let numbers = [shard.id.0, shard.instance.0, shard.epoch, shard.revision.0];
            numbers.iter().for_each(|number| body.extend(number.to_le_bytes()));
            body.extend((shard.files.len() as u32).to_le_bytes());
            for file in &shard.files {
                let numbers = [file.attempt.0, file.bytes, file.entries];
                numbers.iter().for_each(|number| body.extend(number.to_le_bytes()));
            }
            for key in [&shard.range.start, &shard.range.end] {
                body.extend((key.len() as u16).to_le_bytes());
                body.extend(key);
            }
        }
        body.extend((self.operations.len() as u32).to_le_bytes());
        for (operation, outcome) in &self.operations {
            body.extend(operation.to_le_bytes());
            match outcome {
                OperationOutcome::Done => body.push(DONE),
                OperationOutcome::Refused { reason } => {
                    body.push(REFUSED);
                    body.extend((reason.len() as u16).to_le_bytes());
                    body.extend(reason.as_bytes());
                }
            }
        }
        let mut file = Vec::with_capacity(HEADER_BYTES + body.len());
        file.extend(MAGIC);
        file.extend(VERSION.to_le_bytes());
        file.extend((body.len() as u32).to_le_bytes());
        file.extend(crc32fast::hash(&body).to_le_bytes());
        file.extend([0; 4]);
        file.extend(body);
        file
    }

    /// Reads a file's content; `path` is for messages.
    pub(crate) fn decode(path: &Path, file: &[u8]) -> Result<Manifest> {
        if file.len() < HEADER_BYTES {
            return Err(Error::corrupt(path, file.len() as u64, "the header is cut off"));
        }
        if file[..8] != MAGIC {
            return Err(Error::foreign(path, "not a vmemkv manifest"));
        }
        let word =
            |at: usize| u32::from_le_bytes([file[at], file[at + 1], file[at + 2], file[at + 3]]);
        if word(8) != VERSION {
            let what =
                format!("format version {} is not known to this release ({VERSION})", word(8));
            return Err(Error::foreign(path, what));
        }
        let body = &file[HEADER_BYTES..];
        if body.len() != word(12) as usize {
            let what =
                format!("{} bytes of content where the header says {}", body.len(), word(12));
            return Err(Error::corrupt(path, 12, what));
        }
        if crc32fast::hash(body) != word(16) {
            return Err(Error::corrupt(path, 16, "wrong checksum"));
        }
        let mut reader = Reader { rest: body };
        let manifest = reader
            .manifest()
            .ok_or_else(|| Error::corrupt(path, HEADER_BYTES as u64, "a list or key is cut off"))?;
        manifest_rules::check(&manifest).map_err(|rule| Error::corrupt(path, 0, rule))?;
        Ok(manifest)
    }
}

/// Takes fields from the front of a body; `None` when it is too short.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn key(&mut self) -> Option<Vec<u8>> {
        let len = usize::from(u16::from_le_bytes(self.take()?));
        let (key, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(key.to_vec())
    }

    fn files(&mut self) -> Option<Vec<IndexFile>> {
        let mut files = Vec::new();
        for _ in 0..self.u32()? {
            files.push(IndexFile {
                attempt: CheckpointId(self.u64()?),
                bytes: self.u64()?,
                entries: self.u64()?,
            });
        }
        Some(files)
    }

    fn manifest(&mut self) -> Option<Manifest> {
        let mut manifest = Manifest {
            checkpoint: CheckpointId(self.u64()?),
            checkpoint_lsn: Lsn(self.u64()?),
            freeze_lsn: Lsn(self.u64()?),
            next_instance: InstanceId(self.u64()?),
            next_shard: ShardId(self.u64()?),
            value_segment_bytes: self.u64()?,
            revision_floor: Revision(self.u64()?),
            ..Manifest::default()
        };
        for _ in 0..self.u32()? {
            let base = SegmentBase { segment: self.u32()?, base_bytes: self.u32()? };
            manifest.segments.push(base);
        }
        for _ in 0..self.u32()? {
            manifest.shards.push(ManifestShard {
                id: ShardId(self.u64()?),
                instance: InstanceId(self.u64()?),
                epoch: self.u64()?,
                revision: Revision(self.u64()?),
                files: self.files()?,
                range: KeyRange { start: self.key()?, end: self.key()? },
            });
        }
        for _ in 0..self.u32()? {
            let operation = self.u64()?;
            let outcome = match self.take()? {
                [DONE] => OperationOutcome::Done,
                [REFUSED] => {
                    OperationOutcome::Refused { reason: String::from_utf8(self.key()?).ok()? }
                }
                _ => return None,
            };
            manifest.operations.push((operation, outcome));
        }
        self.rest.is_empty().then_some(manifest)
    }
}
