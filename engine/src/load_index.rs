//! Reading the index files of a checkpoint.
//!
//! Invariants: a shard's region is what its whole chain of files says, each file checked against
//! the manifest and against the file before it; the value log's live bytes are counted once for
//! each entry of the result.

use std::path::PathBuf;

use crate::checkpoint::chain::IndexFile;
use crate::checkpoint::manifest::{ManifestShard, index_path};
use crate::error::{Error, Result};
use crate::identity::read_whole;
use crate::index::{Slot, SortedRegion, decode, join_chain};
use crate::io::Disk;
use crate::store::escape;
use crate::sync::primitives::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::primitives::thread;
use crate::types::CheckpointId;
use crate::value_log::{Location, ValueLog};

/// Most threads that read index files.
const MAX_THREADS: usize = 8;

/// The regions of these shards, in their order, and the bytes of the records that each points to.
/// Uses all cores when there are several shards.
pub(crate) fn load_regions(
    disk: &dyn Disk,
    shards: &[ManifestShard],
    value_log: &ValueLog,
    bloom: bool,
) -> Result<Vec<(SortedRegion, u64)>> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(MAX_THREADS).min(shards.len()).max(1);
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        let mut loaded = Vec::new();
        // Relaxed, both: what the threads made is handed over by the join.
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(shard) = shards.get(at) else { break };
            let region = load_region(disk, shard, value_log, bloom);
            failed.fetch_or(region.is_err(), Ordering::Relaxed);
            loaded.push((at, region));
        }
        loaded
    };
    let mut loaded = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut loaded = work();
        for other in others {
            match other.join() {
                Ok(more) => loaded.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        loaded
    });
    // An error ends the list early: then it is found before what is missing.
    loaded.sort_by_key(|(at, _)| *at);
    loaded.into_iter().map(|(_, region)| region).collect()
}

/// One shard's region and live bytes.
fn load_region(
    disk: &dyn Disk,
    shard: &ManifestShard,
    value_log: &ValueLog,
    bloom: bool,
) -> Result<(SortedRegion, u64)> {
    let mut files = shard.files.iter();
    let Some(first) = files.next() else { return Ok((SortedRegion::empty(), 0)) };
    let (mut path, whole) = load_file(disk, shard, first, CheckpointId(0))?;
    let mut previous = first.attempt;
    let mut deltas = Vec::with_capacity(shard.files.len() - 1);
    for file in files {
        let (delta_path, delta) = load_file(disk, shard, file, previous)?;
        (path, previous) = (delta_path, file.attempt);
        deltas.push(delta);
    }
    let region = join_chain(whole, &deltas, &shard.range, bloom);
    let mut live_bytes = 0;
    let mut entries = region.cursor();
    entries.seek_first();
    while let (Some(key), Some(cell)) = (entries.key(), entries.cell()) {
        if let Slot::Value(at) = cell.load().decode() {
            live_bytes += Location(at).allocated();
            value_log.add_live(Location(at)).map_err(|error| {
                let what = format!("key \"{}\" in this file or one before: {error}", escape(key));
                Error::corrupt(&path, 0, what)
            })?;
        }
        entries.next();
    }
    drop(entries);
    Ok((region, live_bytes))
}

/// One file, and where it is.
fn load_file(
    disk: &dyn Disk,
    shard: &ManifestShard,
    file: &IndexFile,
    previous: CheckpointId,
) -> Result<(PathBuf, SortedRegion)> {
    let path = index_path(shard.instance, file.attempt);
    let full_path = disk.root().join(&path);
    let bytes = read_whole(disk, &path)?;
    let (meta, region) = decode(&full_path, &bytes)?;
    if meta.instance != shard.instance
        || meta.checkpoint != file.attempt
        || meta.previous != previous
        || meta.range != shard.range
        || bytes.len() as u64 != file.bytes
        || region.len() as u64 != file.entries
    {
        return Err(Error::corrupt(&full_path, 0, "belongs to another shard or checkpoint"));
    }
    Ok((full_path, region))
}
