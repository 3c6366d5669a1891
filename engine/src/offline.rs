//! Looking into a directory that no process has open, and the one repair there is.
//!
//! Invariants: holds the directory's lock; writes nothing but that lock's file, except for a
//! [`repair()`] that is told to; a check says what it finds instead of stopping at the first fault.

mod repair;
mod verify;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::api::Identity;
use crate::checkpoint::manifest::{Manifest, ManifestShard};
use crate::directory;
use crate::error::Result;
use crate::identity;
use crate::io::{Disk, LockFile, OsDisk};
use crate::options::Options;
use crate::recovery::load_manifest;
use crate::types::{CheckpointId, KeyRange, Lsn, ShardId};
use crate::value_log::Location;
use crate::wal;

pub use crate::wal::Dropped;
pub use repair::{Repair, repair, repair_on};
pub use verify::verify;

/// What a directory holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Whose it is.
    pub identity: Identity,
    /// The committed checkpoint; 0 for a directory that has none yet.
    pub checkpoint: CheckpointId,
    /// Replay begins here.
    pub checkpoint_lsn: Lsn,
    /// The log was durable up to here when the checkpoint was committed.
    pub freeze_lsn: Lsn,
    /// Shards as of the checkpoint.
    pub shards: Vec<InspectedShard>,
    /// Immutable bytes of each value segment.
    pub value_segments: Vec<(u32, u32)>,
    /// Where the log refers to: the number of a value segment, and bytes of it.
    pub references: Vec<(u32, Range<u64>)>,
    /// Segments of the log.
    pub wal_segments: Vec<InspectedLog>,
}

/// A shard as of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedShard {
    /// The cluster's id.
    pub id: ShardId,
    /// The keys.
    pub range: KeyRange,
    /// The epoch under which it was given.
    pub epoch: u64,
    /// Its T1 files, below the directory: a whole one and the deltas to it.
    pub files: Vec<String>,
}

/// A segment of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedLog {
    /// The file, below the directory.
    pub file: String,
    /// The first LSN in it.
    pub start: Lsn,
    /// Valid records from its start.
    pub records: u64,
    /// The end of the last of them.
    pub end: Lsn,
    /// Whether an open began it.
    pub reopen: bool,
}

/// Opens a directory for looking only.
fn look(dir: &Path) -> Result<(Arc<dyn Disk>, LockFile)> {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(dir));
    let options = Options { create: false, ..Options::default() };
    directory::check(&*disk, &options)?;
    let lock = LockFile::acquire(&*disk)?;
    Ok((disk, lock))
}

/// Describes a closed directory.
pub fn inspect(dir: impl AsRef<Path>) -> Result<Inspection> {
    let (disk, _lock) = look(dir.as_ref())?;
    let identity = identity::load(&*disk)?;
    let manifest = load_manifest(&*disk)?;
    let references = references(&disk, &manifest)?;
    let Manifest { checkpoint, checkpoint_lsn, freeze_lsn, segments, shards, .. } = manifest;
    let describe = |shard: &ManifestShard| InspectedShard {
        id: shard.id,
        range: shard.range.clone(),
        epoch: shard.epoch,
        files: shard.file_paths().map(|path| path.display().to_string()).collect(),
    };
    Ok(Inspection {
        identity,
        checkpoint,
        checkpoint_lsn,
        freeze_lsn,
        shards: shards.iter().map(describe).collect(),
        value_segments: segments.iter().map(|base| (base.segment, base.base_bytes)).collect(),
        references,
        wal_segments: wal::inspect(&*disk)?
            .into_iter()
            .map(|segment| InspectedLog {
                file: segment.file,
                start: segment.start,
                records: segment.valid_records,
                end: segment.end,
                reopen: segment.reopen,
            })
            .collect(),
    })
}

/// Where the valid front of the log refers to, in log order.
fn references(disk: &Arc<dyn Disk>, manifest: &Manifest) -> Result<Vec<(u32, Range<u64>)>> {
    let segment_bytes = manifest.value_segment_bytes;
    let mut found = Vec::new();
    wal::for_each_reference(&**disk, manifest.checkpoint_lsn, &mut |reference| {
        let location = Location(reference.at.location);
        let start = location.offset() % segment_bytes;
        let segment = (location.offset() / segment_bytes) as u32;
        found.push((segment, start..start + location.allocated()));
    })?;
    Ok(found)
}
