//! Opening a directory: what the last checkpoint left, then what the log says since.
//!
//! Invariants:
//! - nothing is read, freed or checkpointed for a caller before the end of it;
//! - what is found is synced before it is relied on: a kill leaves renames and log records in the
//!   page cache only, and a power cut later must not take back what was served meanwhile;
//! - replay writes to the value log only above the base and above all that the log refers to, so a
//!   crash in it is just another crash;
//! - every record is routed by its keys, never by the shard that it names: see [`crate::replay`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::sync::primitives::ArcSwap;
use crate::sync::primitives::Mutex;

use crate::checkpoint::chain::Chain;
use crate::checkpoint::manifest::{MANIFEST, Manifest, ManifestShard};
use crate::checkpoint::{Committed, highest_attempt, remove_unnamed};
use crate::core::Core;
use crate::directory;
use crate::error::{Error, Result};
use crate::feed::Feed;
use crate::identity::{self, read_whole};
use crate::index::{Shard, ShardTable};
use crate::io::{CapacityDisk, Disk, LockFile};
use crate::jobs::Requests;
use crate::load_index::load_regions;
use crate::memory::{Memory, default_budget};
use crate::options::Options;
use crate::replay::{default_workers, replay_log};
use crate::space::{self, Space};
use crate::stats::Counters;
use crate::store::Store;
use crate::sync::Stripes;
use crate::table_state::{Operations, TableState};
use crate::types::CheckpointId;
use crate::value_log::{Adopted, ValueLog};
use crate::wal::Replay;

/// Opens or makes a directory and recovers what is there.
pub(crate) fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Core> {
    open_with(disk, options, default_workers())
}

/// The same with so many threads that replay writes.
pub(crate) fn open_with(disk: Arc<dyn Disk>, options: Options, workers: usize) -> Result<Core> {
    options.validate()?;
    directory::check(&*disk, &options)?;
    let root = disk.root().to_path_buf();
    disk.create_dir(Path::new("")).map_err(|error| Error::io("create", &root, &error))?;
    let disk = match options.capacity_bytes {
        Some(bytes) => CapacityDisk::new(disk, bytes)
            .map_err(|error| Error::io("measure", root, &error))?
            as Arc<dyn Disk>,
        None => disk,
    };
    let total = space::total_bytes(&*disk);
    let options = space::scaled(options, total);
    options.validate()?;
    let lock = LockFile::acquire(&*disk)?;
    if !directory::is_ours(&*disk)? {
        directory::make(&*disk, &options)?;
    }
    let mut identity = identity::load(&*disk)?;
    let manifest = load_manifest(&*disk)?;
    sync_as_found(&*disk, &manifest)?;

    let store = load_store(&disk, options, &manifest)?;
    let mut state = TableState {
        next_instance: manifest.next_instance,
        next_shard: manifest.next_shard,
        operations: Operations::restore(&manifest.operations),
    };
    let mut replay = Replay::open(
        Arc::clone(&disk),
        &store.options,
        manifest.checkpoint_lsn,
        manifest.freeze_lsn,
    )?;
    adopt_references(&store.value_log, &mut replay)?;
    store.value_log.remove_unfinished();
    replay_log(&store, &replay, &mut state, workers)?;
    store.value_log.set_once_from(store.options.write_once_bytes);
    let unsynced = store.value_log.unsynced();
    let wal = replay.start(&store.options, Box::new(move || unsynced.sync()))?;
    let durable = wal.durable_lsn();

    identity.boot += 1;
    identity::store(&*disk, &identity)?;
    // Without the list a number could be used twice.
    let names = disk
        .list(Path::new("t1"))
        .map_err(|error| Error::io("list", disk.root().join("t1"), &error))?;
    let last_attempt = highest_attempt(&names).max(manifest.checkpoint);
    let committed = Committed {
        next_attempt: CheckpointId(last_attempt.0 + 1),
        files: manifest
            .shards
            .iter()
            .filter(|shard| !shard.files.is_empty())
            .map(|shard| (shard.instance, Chain::new(shard.files.clone())))
            .collect(),
        strays: true,
    };
    let memory = Memory::new(store.options.memory_budget_bytes.unwrap_or_else(|| {
        // Two mapped rings' worth: the ring, and what replies and chunks hold.
        default_budget(2 * store.options.wal_ring_bytes as u64)
    }));
    let revision = |shard: &Arc<Shard>| {
        shard.revision.raise(manifest.revision_floor);
        let revision = shard.revision.last();
        shard.last_change.store(revision.0, Ordering::Release);
        (shard.instance, revision)
    };
    let opened = store.table.load().shards().iter().map(revision).collect::<Vec<_>>();
    let feed = Feed::new(opened, manifest.revision_floor);
    let space = Space::new(total, &store.options);
    let (index_bytes, whole_index_bytes) = committed.index_bytes();
    space.set_index_files(index_bytes, whole_index_bytes);
    let core = Core {
        disk,
        store: Store { counters: Counters::default(), ..store },
        stripes: Stripes::new(durable),
        wal,
        checkpointing: Mutex::new(committed),
        defragmenting: Mutex::default(),
        table_lock: Mutex::new(state),
        identity: Mutex::new(identity),
        last_checkpoint: Mutex::default(),
        last_order_us: 0.into(),
        requests: Requests::default(),
        space,
        memory,
        feed,
        _lock: lock,
    };
    core.recount_memory();
    remove_unnamed(&core, &mut core.checkpointing.lock());
    Ok(core)
}

/// Reads the committed checkpoint.
pub(crate) fn load_manifest(disk: &dyn Disk) -> Result<Manifest> {
    Manifest::decode(&disk.root().join(MANIFEST), &read_whole(disk, Path::new(MANIFEST))?)
}

/// Finds what the log refers to: ends the log before a record that refers to what is not there, and
/// sees to it that nothing is written where the rest is.
fn adopt_references(value_log: &ValueLog, replay: &mut Replay) -> Result<()> {
    replay.cut_torn_references(&mut |reference| {
        Ok(value_log.value_of_reference(reference.key, reference.at)?.is_some())
    })?;
    let mut adopted = Adopted::default();
    replay.for_each_reference(&mut |reference, is_proven| {
        value_log.found_reference(&mut adopted, reference.at, is_proven)
    })?;
    value_log.adopt(&adopted)
}

fn sync_as_found(disk: &dyn Disk, manifest: &Manifest) -> Result<()> {
    let files = manifest.shards.iter().flat_map(ManifestShard::file_paths);
    for path in files.chain([MANIFEST.into(), identity::IDENTITY.into()]) {
        let sync = disk.open(&path).and_then(|file| file.sync());
        sync.map_err(|error| Error::io("sync", disk.root().join(&path), &error))?;
    }
    for folder in directory::FOLDERS.iter().chain(&[""]) {
        let sync = disk.sync_dir(Path::new(folder));
        sync.map_err(|error| Error::io("sync", disk.root().join(folder), &error))?;
    }
    Ok(())
}

/// Index and value log as of the checkpoint.
pub(crate) fn load_store(
    disk: &Arc<dyn Disk>,
    options: Options,
    manifest: &Manifest,
) -> Result<Store> {
    // The size of the segments that are there counts, not the one that a new directory would get.
    let options = Options { value_segment_bytes: manifest.value_segment_bytes, ..options };
    options.validate()?;
    let value_log = ValueLog::open(Arc::clone(disk), &options, &manifest.segments)?;
    let mut shards = Vec::with_capacity(manifest.shards.len());
    let regions = load_regions(&**disk, &manifest.shards, &value_log, options.bloom)?;
    for (described, (sorted, live_bytes)) in manifest.shards.iter().zip(regions) {
        let ManifestShard { id, instance, epoch, revision, range, .. } = described;
        let capacity = options.append_capacity;
        let dirty = described.files.is_empty();
        let shard = Shard::new(*id, *instance, *epoch, range.clone(), sorted, capacity, dirty);
        shard.revision.raise(*revision);
        shard.count_live(live_bytes, 0);
        shards.push(Arc::new(shard));
    }
    let table = ArcSwap::from_pointee(ShardTable::new(shards)?);
    Ok(Store { options, table, value_log, counters: Counters::default() })
}
