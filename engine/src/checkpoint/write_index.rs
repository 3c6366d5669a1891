//! Step 6 of a checkpoint: what each frozen shard becomes, in memory and on disk.
//!
//! Invariants: the changed bits of a region are cleared only after its file was written and
//! before the region is published; if the checkpoint fails after that, they are set again, or the
//! shard's next file is a whole one ([`Core::undo_index`]).

use std::sync::Arc;

use super::Committed;
use super::chain::{Chain, IndexFile};
use super::manifest::index_path;
use super::rewrite::{Candidate, Part, choose};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::index::{Meta, Shard, SortedRegion, encode, encode_changes};
use crate::io::{File, sync_in_pieces};
use crate::stats::Counters;
use crate::types::CheckpointId;

/// Deletes are many when they are more than this part of a region's entries. At most the part at
/// which a merge for memory's sake, or a checkpoint for theirs, is due.
const MANY_DELETES_PART: usize = 20;

/// Most index files that are written before they are synced. Together, they share what a file system
/// writes for each sync of a new file.
const MOST_UNSYNCED: usize = 256;

/// Index files that were written and are not durable yet, with their lengths.
pub(super) struct Unsynced<'a> {
    files: Vec<(Arc<dyn File>, u64)>,
    /// Called every so often, and may sleep.
    between: &'a dyn Fn(),
}

impl<'a> Unsynced<'a> {
    /// None yet.
    pub(super) fn new(between: &'a dyn Fn()) -> Self {
        Self { files: Vec::new(), between }
    }
}

/// A shard whose file is written and whose merged region is published.
pub(super) struct WrittenShard<'a> {
    pub(super) shard: &'a Shard,
    merged: Arc<SortedRegion>,
    /// Changed bits that were cleared; nothing when no file was written.
    taken: Vec<u64>,
    /// The bits do not tell what the old files lack: tombstones went that only the new file knows.
    lost: bool,
}

impl Core {
    /// Which files are to be written for these shards, which are frozen, the stripes passed.
    pub(super) fn choose_parts<'a>(
        &self,
        shards: impl Iterator<Item = &'a Shard>,
        committed: &Committed,
        log_bytes: u64,
    ) -> Vec<Part> {
        let none = Chain::default();
        let candidates: Vec<_> = shards
            .map(|shard| {
                let chain = committed.files.get(&shard.instance).unwrap_or(&none);
                let (entries, changed) = shard.count_frozen();
                Candidate::new(chain, entries as u64, changed as u64)
            })
            .collect();
        choose(&candidates, log_bytes)
    }

    /// Merges and publishes a frozen shard, and writes its next file if `outcome` is still good;
    /// the file comes into `chain` and `unsynced`, an error into `outcome`. Holds the shard's
    /// structural lock, also while that pauses between two pieces of work.
    pub(super) fn finish_shard<'a>(
        &self,
        shard: &'a Shard,
        part: Part,
        attempt: CheckpointId,
        chain: &mut Chain,
        unsynced: &mut Unsynced<'_>,
        outcome: &mut Result<()>,
    ) -> WrittenShard<'a> {
        let between = unsynced.between;
        let bloom = self.store.options.bloom;
        let mut merged = shard.merge_frozen(bloom, between);
        let (mut taken, mut lost) = (Vec::new(), false);
        if outcome.is_ok() {
            // Deletes wait in the region for a file. When they are many they are not left there
            // until the next merge, for scans would have to pass them.
            let many_deletes = merged.tombstones() > merged.len() / MANY_DELETES_PART;
            if part == Part::Whole && many_deletes {
                merged = shard.without_tombstones(&merged, bloom, between);
            }
            shard.mark_filed();
            let previous = chain.last_attempt();
            match self.write_index(shard, attempt, &merged, part, previous, unsynced) {
                Ok(file) => {
                    if part == Part::Whole {
                        *chain = Chain::default();
                    }
                    chain.files.push(file);
                    (taken, lost) = (merged.take_changed(), many_deletes);
                    if part == Part::Delta && many_deletes {
                        merged = shard.without_tombstones(&merged, bloom, between);
                    }
                }
                Err(error) => {
                    lost = part == Part::Whole && many_deletes;
                    *outcome = Err(error);
                }
            }
        }
        if let Err(error) = shard.publish_merged(merged, outcome.is_err()) {
            lost = true;
            if outcome.is_ok() {
                *outcome = Err(error);
            }
        }
        // The structural lock is held: this is the region that was just published.
        let merged = Arc::clone(&shard.load().sorted);
        WrittenShard { shard, merged, taken, lost }
    }

    /// Makes the index files durable that were written.
    pub(super) fn sync_index(&self, unsynced: &mut Unsynced<'_>) -> Result<()> {
        for (file, bytes) in unsynced.files.drain(..) {
            sync_in_pieces(&*file, 0, bytes, unsynced.between)
                .map_err(|error| self.poisoned_by(Error::sync(file.path(), &error)))?;
        }
        Ok(())
    }

    /// After a failed checkpoint: the shard is dirty again, and what was taken for written is not.
    pub(super) fn undo_index(&self, written: &WrittenShard<'_>, committed: &mut Committed) {
        let WrittenShard { shard, merged, taken, lost } = written;
        let _structural = shard.structural.lock();
        // Merged again since, it is another region, made without the bits.
        let merged_again = !Arc::ptr_eq(&shard.load().sorted, merged);
        if *lost || merged_again && !taken.is_empty() {
            if let Some(chain) = committed.files.get_mut(&shard.instance) {
                chain.rewrite = true;
            }
        } else {
            merged.restore_changed(taken);
        }
        shard.mark_dirty();
    }

    fn write_index(
        &self,
        shard: &Shard,
        attempt: CheckpointId,
        merged: &SortedRegion,
        part: Part,
        previous: CheckpointId,
        unsynced: &mut Unsynced<'_>,
    ) -> Result<IndexFile> {
        let between = unsynced.between;
        let path = index_path(shard.instance, attempt);
        let file = self
            .disk
            .create(&path)
            .map_err(|error| Error::io("create", self.disk.root().join(&path), &error))?;
        let mut bytes = 0;
        let mut sink = |piece: &[u8]| {
            file.write_at(bytes, piece).map_err(|error| Error::io("write", file.path(), &error))?;
            bytes += piece.len() as u64;
            self.space.wrote_index(piece.len() as u64);
            between();
            Ok(())
        };
        let meta = |previous| Meta {
            shard: shard.id,
            instance: shard.instance,
            epoch: shard.epoch,
            checkpoint: attempt,
            previous,
            range: shard.range.clone(),
        };
        let entries = match part {
            Part::Whole => {
                encode(merged, &meta(CheckpointId(0)), &mut sink)?;
                merged.len()
            }
            Part::Delta => {
                encode_changes(merged, &meta(previous), &mut sink)?;
                merged.changed()
            }
        };
        Counters::add(&self.store.counters.checkpoint_index_bytes, bytes);
        unsynced.files.push((file, bytes));
        if unsynced.files.len() >= MOST_UNSYNCED {
            self.sync_index(unsynced)?;
        }
        Ok(IndexFile { attempt, bytes, entries: entries as u64 })
    }
}
