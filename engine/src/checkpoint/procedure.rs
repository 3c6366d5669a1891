//! The checkpoint, step by step. A crash before step 7 leaves the last checkpoint and a log that
//! reaches back to it; files that no manifest names are removed by the next open.
//!
//! 1. Note the value segments that are empty; `checkpoint_lsn :=` the reserved end of the log. In
//!    this order: what the log from there on refers to lies in none of them.
//! 2. Freeze every dirty shard, pass the stripes; `freeze_lsn :=` the reserved end; take the list of
//!    shards and the outcomes of operations. The table lock is held from 1 to here.
//! 3. Base lengths := tail, rounded up to a page; pass the stripes; show them to readers.
//! 4. Wait until `freeze_lsn` is durable.
//! 5. Sync the value log from where it was last synced.
//! 6. Merge each frozen shard, write a T1 file, of what changed in it or of all; sync the files and
//!    `t1/`.
//! 7. Write MANIFEST aside, sync it, rename it, sync the root: the commit.
//! 8. Recycle the log before `checkpoint_lsn`; free the segments noted in 1; remove old T1 files.
//!
//! Invariants: a shard that was frozen is merged and published also when a later step fails, and
//! is dirty again then; after a failed sync the log is poisoned.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::sync::primitives::MutexGuard;

use super::Committed;
use super::chain::Chain;
use super::manifest::{MANIFEST, Manifest, ManifestShard, index_path};
use super::manifest_rules;
use super::write_index::Unsynced;
use crate::api::CheckpointReport;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::index::Shard;
use crate::io::replace_file;
use crate::jobs::pace::Pace;
use crate::jobs::triggers;
use crate::stats::Counters;
use crate::types::{CheckpointId, Revision};
use crate::value_log::ValueLog;

/// Shards that are looked at before a rest.
const MOST_LOOKED_AT: usize = 64;

/// A shard between its freeze and its publication.
struct Frozen<'a> {
    shard: &'a Shard,
    _structural: MutexGuard<'a, ()>,
}

impl Core {
    /// Makes a checkpoint.
    pub(crate) fn checkpoint(&self) -> Result<CheckpointReport> {
        let mut committed = self.checkpointing.lock();
        self.check_writable()?;
        // Blocks that wait to be used again for values may be what the new files lack.
        self.look_at_disk();
        let attempt = committed.next_attempt;
        committed.next_attempt = CheckpointId(attempt.0 + 1);
        let result = self.attempt(attempt, &mut committed);
        if result.is_err() && self.wal.poisoned().is_none() {
            // Nothing was renamed: the files of this attempt are nobody's, and on a full disk they
            // are what the next attempt lacks. Poisoned, the new manifest may be there: keep all.
            remove_unnamed(self, &mut committed);
        }
        self.space.index_settled();
        self.recount_memory();
        let counters = &self.store.counters;
        Counters::add(
            if result.is_ok() { &counters.checkpoints } else { &counters.checkpoints_failed },
            1,
        );
        result
    }

    fn attempt(
        &self,
        attempt: CheckpointId,
        committed: &mut Committed,
    ) -> Result<CheckpointReport> {
        let mut clock = Clock::start();
        let mut report = CheckpointReport { id: attempt, ..CheckpointReport::default() };
        // So that 2 seldom has to.
        self.settle_all()?;
        // 1.
        let state = self.table_lock.lock();
        let log_bytes = self.wal.bytes_since_checkpoint();
        let empty_segments = self.store.value_log.empty_segments();
        let checkpoint_lsn = self.wal.appended_lsn();
        report.lsn = checkpoint_lsn;
        // 2.
        let table = self.store.table.load_full();
        let mut frozen = Vec::new();
        let mut freeze = || {
            for shard in table.shards() {
                // Waits for one that is busy: its running merge does not count, it began earlier. So
                // it is with what a split or merge has left frozen since.
                let structural = shard.structural.lock();
                self.settle_frozen(shard)?;
                if shard.is_dirty() || !committed.files.contains_key(&shard.instance) {
                    shard.freeze()?;
                    frozen.push(Frozen { shard, _structural: structural });
                }
            }
            Ok(())
        };
        let hurry = self.requests.hurry();
        let all_frozen = freeze();
        drop(hurry);
        // Also after a failure: who finds a shard frozen may merge it at once.
        self.stripes.pass();
        all_frozen?;
        let freeze_lsn = self.wal.appended_lsn();
        let shards: Vec<(Arc<Shard>, Revision)> =
            table.shards().iter().map(|shard| (Arc::clone(shard), shard.revision.last())).collect();
        let (next_instance, next_shard) = (state.next_instance, state.next_shard);
        let operations = state.operations.list();
        drop(state);
        report.freeze_us = clock.lap_us();
        // 3.
        let mark = self.store.value_log.begin_base(&empty_segments);
        self.stripes.pass();
        self.store.value_log.publish_base(&mark);
        report.base_us = clock.lap_us();
        // 4. If it fails the shards stay frozen: a published merge has dropped its tombstones.
        self.wal.wait(freeze_lsn)?;
        report.wait_durable_us = clock.lap_us();
        // 5.
        let waiting: Vec<&Shard> = frozen.iter().map(|frozen| frozen.shard).collect();
        let finished = Cell::new(0);
        let duty = || self.checkpoint_duty(&waiting[finished.get()..]);
        let pace = Pace::new(self, &duty);
        let between = || pace.step();
        let mut outcome = self
            .store
            .value_log
            .sync_base(&mark, &between)
            .map_err(|error| self.poisoned_by(error));
        report.sync_values_us = clock.lap_us();
        // 6.
        let mut chains = BTreeMap::new();
        let mut written_shards = Vec::with_capacity(frozen.len());
        let mut unsynced = Unsynced::new(&between);
        let parts =
            self.choose_parts(frozen.iter().map(|frozen| frozen.shard), committed, log_bytes);
        for (Frozen { shard, _structural }, part) in frozen.into_iter().zip(parts) {
            let _merging = self.memory.begin_merge(shard.load().merge_bytes());
            let mut chain = committed.files.get(&shard.instance).cloned().unwrap_or_default();
            let written =
                self.finish_shard(shard, part, attempt, &mut chain, &mut unsynced, &mut outcome);
            if outcome.is_ok() {
                report.index_bytes += chain.files.last().map_or(0, |file| file.bytes);
            }
            // Its lock goes here: a full append region need not wait for the other shards.
            written_shards.push(written);
            chains.insert(shard.instance, chain);
            finished.set(finished.get() + 1);
        }
        outcome = outcome.and_then(|()| self.sync_index(&mut unsynced));
        outcome = outcome.and_then(|()| self.sync_dir("t1"));
        report.write_index_us = clock.lap_us();
        // 7.
        outcome = outcome.and_then(|()| {
            let manifest = Manifest {
                checkpoint: attempt,
                checkpoint_lsn,
                freeze_lsn,
                next_instance,
                next_shard,
                value_segment_bytes: self.store.options.value_segment_bytes,
                revision_floor: self.feed.floor(),
                segments: ValueLog::bases(&mark),
                shards: shards
                    .iter()
                    .map(|(shard, revision)| {
                        let chain = chains.get(&shard.instance);
                        let chain = chain.or_else(|| committed.files.get(&shard.instance));
                        describe(shard, *revision, chain)
                    })
                    .collect(),
                operations,
            };
            self.commit(&manifest)
        });
        report.manifest_us = clock.lap_us();
        if let Err(error) = outcome {
            written_shards.iter().for_each(|written| self.undo_index(written, committed));
            return Err(error);
        }
        // 8.
        let unnamed = committed.replace(chains, shards.iter().map(|(shard, _)| shard.instance));
        let (index_bytes, whole_index_bytes) = committed.index_bytes();
        self.space.set_index_files(index_bytes, whole_index_bytes);
        self.wal.retire(checkpoint_lsn);
        let counters = &self.store.counters;
        Counters::add(&counters.value_segments_freed, empty_segments.len() as u64);
        self.store.value_log.free(&empty_segments);
        remove_old(self, committed, &unnamed);
        report.recycle_us = clock.lap_us();
        report.duration_us = clock.total_us();
        Counters::add(&counters.checkpoint_us, report.duration_us);
        self.last_checkpoint.lock().clone_from(&report);
        Ok(report)
    }

    /// The part of the time that a checkpoint may take beside others, while it holds these shards
    /// frozen.
    fn checkpoint_duty(&self, frozen: &[&Shard]) -> f64 {
        let duty = triggers::checkpoint_duty(
            self.wal.bytes_since_checkpoint(),
            self.space.checkpoint_bytes(),
            self.space.holds_up_writers(),
            self.requests.any_waits(),
        );
        // Of very many shards, some: whoever comes to wait for one says so.
        let looked_at = frozen.iter().step_by(1 + frozen.len() / MOST_LOOKED_AT);
        looked_at.map(|shard| self.merge_duty(shard)).fold(duty, f64::max)
    }

    /// Gives every shard that a split or merge has left frozen regions of its own.
    fn settle_all(&self) -> Result<()> {
        for shard in self.store.table.load_full().shards() {
            if shard.load().frozen.is_some() {
                let hurry = self.requests.hurry();
                let _structural = shard.structural.lock();
                drop(hurry);
                self.settle_frozen(shard)?;
            }
        }
        Ok(())
    }

    fn sync_dir(&self, folder: &str) -> Result<()> {
        self.disk
            .sync_dir(Path::new(folder))
            .map_err(|error| self.poisoned_by(Error::sync(self.disk.root().join(folder), &error)))
    }

    fn commit(&self, manifest: &Manifest) -> Result<()> {
        manifest_rules::check(manifest).map_err(|rule| {
            let what = format!("the checkpoint is given up: {rule}; please report this");
            self.poisoned_by(Error::new(ErrorKind::Corrupt, what))
        })?;
        replace_file(&*self.disk, Path::new(MANIFEST), &manifest.encode()).map_err(|error| {
            // A full disk fails before the rename; after anything else nobody knows what a crash
            // would leave, so nothing may be written on top.
            if error.kind() == ErrorKind::DiskFull { error } else { self.poisoned_by(error) }
        })
    }

    /// After a failed sync the kernel may have dropped the pages and call them clean: stop.
    pub(super) fn poisoned_by(&self, error: Error) -> Error {
        self.wal.poison(&format!("a checkpoint failed: {error}; reopen the engine"));
        error
    }
}

fn describe(shard: &Shard, revision: Revision, chain: Option<&Chain>) -> ManifestShard {
    ManifestShard {
        id: shard.id,
        instance: shard.instance,
        epoch: shard.epoch,
        revision,
        files: chain.map(|chain| chain.files.clone()).unwrap_or_default(),
        range: shard.range.clone(),
    }
}

/// Removes files that the committed manifest does not name any more. A failure is left for the next
/// time, which looks for itself.
fn remove_old(core: &Core, committed: &mut Committed, unnamed: &[PathBuf]) {
    if committed.strays {
        remove_unnamed(core, committed);
    } else {
        committed.strays = unnamed.iter().filter(|path| !remove(core, path)).count() > 0;
    }
}

/// Removes all T1 files that the committed manifest does not name. A failure is left for the next
/// time.
pub(crate) fn remove_unnamed(core: &Core, committed: &mut Committed) {
    let named: std::collections::HashSet<String> = committed
        .files
        .iter()
        .flat_map(|(instance, chain)| {
            chain.files.iter().map(|file| index_path(*instance, file.attempt))
        })
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    let names = core.disk.list(Path::new("t1"));
    committed.strays = names.is_err();
    for name in names.unwrap_or_default() {
        if name.ends_with(".t1") && !named.contains(&name) {
            committed.strays |= !remove(core, &Path::new("t1").join(name));
        }
    }
}

fn remove(core: &Core, path: &Path) -> bool {
    let result = core.disk.remove(path);
    if let Err(error) = &result {
        tracing::warn!(file = %path.display(), %error, "cannot remove an old index file");
    }
    result.is_ok()
}

/// Times the phases.
struct Clock {
    started: Instant,
    lap: Instant,
}

impl Clock {
    fn start() -> Self {
        let now = Instant::now();
        Self { started: now, lap: now }
    }

    /// Microseconds since the last lap.
    fn lap_us(&mut self) -> u64 {
        let now = Instant::now();
        let lap = now.duration_since(std::mem::replace(&mut self.lap, now));
        lap.as_micros() as u64
    }

    /// Microseconds since the start.
    fn total_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }
}

/// The highest attempt among the files of `t1/`, so that no name is used twice.
pub(crate) fn highest_attempt(names: &[String]) -> CheckpointId {
    let attempt = |name: &String| name.strip_suffix(".t1")?.split_once('-')?.1.parse().ok();
    CheckpointId(names.iter().filter_map(attempt).max().unwrap_or(0))
}
