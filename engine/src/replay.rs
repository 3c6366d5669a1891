//! What each record of the log does to index and value log when a directory is opened.
//!
//! Invariants: replaying what the checkpoint has already changes nothing; a write goes to the shard
//! that holds its key now, whatever shard it names; nobody else works with the store meanwhile;
//! the result is that of the records one after the other, though writes are replayed on all cores.

mod workers;
#[cfg(test)]
mod workers_test;

use std::sync::Arc;

use crate::api::OperationOutcome;
use crate::error::{Error, ErrorKind, Result};
use crate::index::{RevisionCounter, Shard, ShardTable, SortedRegion};
use crate::store::{Planned, Store, region_bytes};
use crate::sync::primitives::thread;
use crate::table_state::TableState;
use crate::types::{InstanceId, KeyRange, Revision, ValueAt};
use crate::wal::{BodyView, Merge, OpKind, OpView, RecordView, Replay, Split};
use workers::{Failed, Turns, Workers};

/// Most threads that apply writes.
const MAX_WORKERS: usize = 8;

/// How many threads apply writes on this machine.
pub(crate) fn default_workers() -> usize {
    // The explorer of schedules has one thread of the system, and nothing to gain here.
    let cores =
        if cfg!(shuttle) { Ok(1) } else { thread::available_parallelism().map(usize::from) };
    cores.map_or(1, |cores| cores.min(MAX_WORKERS))
}

/// Applies the whole log with so many threads beside the one that reads it; with one, on that. An
/// error names the first record that cannot be replayed.
pub(crate) fn replay_log(
    store: &Store,
    log: &Replay,
    state: &mut TableState,
    workers: usize,
) -> Result<()> {
    if workers <= 1 {
        return log.for_each(&mut |record, _end| {
            let lsn = record.start_lsn();
            replay_record(store, &record, state).map_err(|error| describe((lsn, error)))
        });
    }
    let turns = Turns::new(workers);
    thread::scope(|scope| {
        let mut workers = Workers::start(scope, store, &turns);
        let read = log.for_each(&mut |record, _end| {
            let lsn = record.start_lsn();
            let BodyView::Write(sections) = record.body() else {
                if !workers.drain() {
                    return Err(Error::new(
                        ErrorKind::Corrupt,
                        "a record before cannot be replayed",
                    ));
                }
                return replay_record(store, &record, state)
                    .map_err(|error| describe((lsn, error)));
            };
            for section in sections {
                for (revision, op) in (section.first_revision.0..).zip(section.ops()) {
                    if !workers.push(lsn, revision, op.key, NewValue::of(&op)) {
                        return Err(Error::new(
                            ErrorKind::Corrupt,
                            "a record before cannot be replayed",
                        ));
                    }
                }
            }
            Ok(())
        });
        // What a worker says is about a record before the one at which reading stopped.
        workers.finish().map_or(read, |failed| Err(describe(failed)))
    })
}

fn describe((lsn, error): Failed) -> Error {
    let what = format!("log record at LSN {lsn} cannot be replayed: {error}");
    Error::new(error.kind(), what)
}

/// Applies one record.
fn replay_record(store: &Store, record: &RecordView<'_>, state: &mut TableState) -> Result<()> {
    let done = |state: &mut TableState, operation| {
        // What is replayed is durable before anybody asks.
        state.operations.end(operation, OperationOutcome::Done, record.start_lsn());
    };
    match record.body() {
        BodyView::Filler => Ok(()),
        BodyView::CreateShard(new) => {
            state.saw(new.shard, new.instance);
            let table = store.table.load_full();
            if table.shards().iter().any(|shard| shard.instance == new.instance) {
                return Ok(());
            }
            let range = KeyRange::new(new.start, new.end);
            let capacity = store.options.append_capacity;
            let empty = SortedRegion::empty();
            let shard =
                Shard::new(new.shard, new.instance, new.epoch, range, empty, capacity, true);
            shard.revision.raise(new.revision);
            store.table.store(Arc::new(table.insert(Arc::new(shard))?));
            Ok(())
        }
        BodyView::Split(split) => {
            replay_split(store, &split, state)?;
            done(state, split.operation);
            Ok(())
        }
        BodyView::Merge(merge) => {
            replay_merge(store, &merge, state)?;
            done(state, merge.operation);
            Ok(())
        }
        BodyView::RefuseOperation { operation, reason } => {
            let outcome = OperationOutcome::Refused { reason: reason.to_owned() };
            state.operations.end(operation, outcome, record.start_lsn());
            Ok(())
        }
        BodyView::ForgetOperation { operation } => {
            state.operations.forget(operation);
            Ok(())
        }
        BodyView::Write(sections) => {
            for section in sections {
                for (revision, op) in (section.first_revision.0..).zip(section.ops()) {
                    replay_op(store, op.key, NewValue::of(&op), revision)?;
                }
            }
            Ok(())
        }
    }
}

fn replay_op(store: &Store, key: &[u8], value: NewValue<'_>, revision: u64) -> Result<()> {
    while let Applied::Full(shard) = apply_op(store, key, value, revision)? {
        merge_full(store, &shard)?;
    }
    Ok(())
}

/// What a key gets.
#[derive(Clone, Copy)]
enum NewValue<'a> {
    /// It is deleted.
    None,
    /// These bytes.
    Bytes(&'a [u8]),
    /// What is in the value log.
    At(ValueAt),
}

impl<'a> NewValue<'a> {
    fn of(op: &OpView<'a>) -> Self {
        match (op.at, op.kind) {
            (Some(at), _) => Self::At(at),
            (None, OpKind::Delete) => Self::None,
            (None, OpKind::Put | OpKind::PutAt) => Self::Bytes(op.value),
        }
    }
}

/// What became of an operation.
enum Applied {
    /// It is applied.
    Done,
    /// The append region of its shard is to be merged first.
    Full(Arc<Shard>),
}

fn apply_op(store: &Store, key: &[u8], value: NewValue<'_>, revision: u64) -> Result<Applied> {
    Store::check_key(key)?;
    let value = match value {
        NewValue::Bytes(value) => Some(value),
        NewValue::None => None,
        NewValue::At(at) => {
            let (shard, done) = store.refer(key, at).map_err(not_served_is_damage)?;
            if !done {
                return Ok(Applied::Full(shard));
            }
            shard.revision.raise(Revision(revision));
            return Ok(Applied::Done);
        }
    };
    match store.plan(key, value).map_err(not_served_is_damage)? {
        Planned::Ready(plan) => {
            let shard = Arc::clone(&plan.shard);
            store.apply(plan);
            shard.revision.raise(Revision(revision));
            Ok(Applied::Done)
        }
        Planned::Full(shard) => Ok(Applied::Full(shard)),
    }
}

/// Merges a full append region, unless another has done so. Nobody writes meanwhile, and all that was
/// replayed is durable: there is nothing to pass and nothing to wait for.
fn merge_full(store: &Store, shard: &Shard) -> Result<()> {
    let _structural = shard.structural.lock();
    if shard.load().active.try_reserve(1) {
        shard.load().active.unreserve(1);
        return Ok(());
    }
    shard.freeze()?;
    shard.publish_merged(shard.merge_frozen(store.options.bloom, &|| ()), true)
}

/// The shard with this instance.
fn find(table: &ShardTable, instance: InstanceId) -> Option<Arc<Shard>> {
    table.shards().iter().find(|shard| shard.instance == instance).cloned()
}

/// Gives a shard that nobody sees yet a sorted region of its own; the bytes that it points to.
fn settle(store: &Store, shard: &Shard) -> Result<u64> {
    let merged = shard.merge_frozen(store.options.bloom, &|| ());
    let bytes = region_bytes(&merged);
    // It has no file yet.
    shard.publish_merged(merged, true)?;
    Ok(bytes)
}

fn replay_split(store: &Store, split: &Split<'_>, state: &mut TableState) -> Result<()> {
    state.saw(split.left.0, split.left.1);
    state.saw(split.right.0, split.right.1);
    let table = store.table.load_full();
    // Instances are never used twice: without the parent, the checkpoint has what came of it.
    let Some(parent) = find(&table, split.parent.1) else { return Ok(()) };
    let (left, right) =
        parent.split(split.key, split.left, split.right, split.epoch).map_err(is_damage)?;
    RevisionCounter::part(&left.revision, &right.revision, |_| ());
    for child in [&left, &right] {
        child.revision.raise(split.revision);
        child.count_live(settle(store, child)?, 0);
    }
    let children = [Arc::new(left), Arc::new(right)];
    let table = table.replace(&[parent.instance], children).map_err(is_damage)?;
    store.table.store(Arc::new(table));
    Ok(())
}

fn replay_merge(store: &Store, merge: &Merge, state: &mut TableState) -> Result<()> {
    state.saw(merge.merged.0, merge.merged.1);
    let table = store.table.load_full();
    let (left, right) = (find(&table, merge.left.1), find(&table, merge.right.1));
    let (Some(left), Some(right)) = (left, right) else { return Ok(()) };
    let bloom = store.options.bloom;
    let mut merged =
        left.merge_with(&right, merge.merged, merge.epoch, bloom).map_err(is_damage)?;
    merged.revision = RevisionCounter::unite(&left.revision, &right.revision);
    merged.revision.raise(merge.revision);
    // Not counted as it settles: some of it is in the active region.
    merged.count_live(left.counted_live().wrapping_add(right.counted_live()), 0);
    settle(store, &merged)?;
    let gone = [left.instance, right.instance];
    let table = table.replace(&gone, [Arc::new(merged)]).map_err(is_damage)?;
    store.table.store(Arc::new(table));
    Ok(())
}

/// What does not fit the shards that are there was not written by us.
fn is_damage(error: Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidArgument => Error::new(ErrorKind::Corrupt, error.message()),
        _ => error,
    }
}

fn not_served_is_damage(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotServed => Error::new(ErrorKind::Corrupt, error.message()),
        _ => error,
    }
}
