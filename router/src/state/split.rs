//! The commands of a split: begin, finish, abort.
//!
//! Invariants: a split that has begun holds its shard, whose range, epoch and owner nothing else
//! changes meanwhile; its halves join the map together, with the epoch after the shard's; an abort
//! is only proposed by whom the owner has durably refused, and one that comes after the end is
//! refused, like a finish after an abort (M11).

use bytes::Bytes;
use vmemkv_proto::limits::MAX_KEY_BYTES;

use super::apply::{Event, publish};
use super::command::{Begin, Refusal};
use super::operations::{MAX_ACTIVE, Operation, OperationKind, Phase};
use super::{ClusterState, Shard};

/// The longest reason that is kept, characters.
const MAX_REASON_CHARS: usize = 512;

/// Begins a split; the id of the operation.
pub(super) fn begin(
    state: &mut ClusterState,
    begin: &Begin,
    events: &mut Vec<Event>,
) -> Result<u64, Refusal> {
    let Begin { shard_id, epoch, key, started_unix_ms } = begin;
    let shard = check_begin(state, *shard_id, key)?;
    let (found, source) = (shard.epoch, shard.owner);
    if found != *epoch {
        let what = format!("shard {shard_id} is at epoch {found}, not at {epoch}");
        return Err(Refusal::Precondition(what));
    }
    let operation_id = state.cluster.allocate();
    let new_shards = vec![state.cluster.allocate(), state.cluster.allocate()];
    state.operations.put(Operation {
        operation_id,
        kind: OperationKind::Split,
        phase: Phase::Begin,
        attempt: 1,
        shards: vec![*shard_id],
        new_shards,
        epoch: epoch + 1,
        key: key.clone(),
        source,
        target: 0,
        started_unix_ms: *started_unix_ms,
        reason: String::new(),
    });
    events.push(Event::Operation(operation_id));
    Ok(operation_id)
}

/// Whether a shard could be split at a key now; the shard, if it could.
pub fn check_begin<'a>(
    state: &'a ClusterState,
    shard_id: u64,
    key: &Bytes,
) -> Result<&'a Shard, Refusal> {
    let shard = check_free(state, shard_id)?;
    if key.len() > MAX_KEY_BYTES {
        let what = format!("key: {} bytes, the longest key has {MAX_KEY_BYTES}", key.len());
        return Err(Refusal::Invalid(what));
    }
    let within = shard.start < *key && (shard.end.is_empty() || *key < shard.end);
    if !within {
        let what = format!("key: not strictly within shard {shard_id}, so one half would be empty");
        return Err(Refusal::Invalid(what));
    }
    Ok(shard)
}

/// Whether a shard is there, has data, and no operation holds it; the shard, if so.
pub fn check_free(state: &ClusterState, shard_id: u64) -> Result<&Shard, Refusal> {
    let Some(shard) = state.shards.get(shard_id) else {
        return Err(Refusal::NotFound(format!("no shard {shard_id}")));
    };
    let holder = state.operations.holder(shard_id);
    if holder != 0 {
        let what = format!("operation {holder} holds shard {shard_id}; wait until it has ended");
        return Err(Refusal::Precondition(what));
    }
    if shard.born {
        let what = format!("node {} is still making shard {shard_id}", shard.owner);
        return Err(Refusal::Precondition(what));
    }
    if state.operations.active().len() >= MAX_ACTIVE {
        let what = format!("{MAX_ACTIVE} operations run already; wait until some have ended");
        return Err(Refusal::Precondition(what));
    }
    Ok(shard)
}

/// The owner has durably split the shard: both halves join the map.
pub(super) fn finish(
    state: &mut ClusterState,
    operation_id: u64,
    attempt: u64,
    events: &mut Vec<Event>,
) -> Result<(), Refusal> {
    let Some(mut operation) = active(state, operation_id, attempt, Phase::Done)? else {
        return Ok(());
    };
    let (&[parent], &[left_id, right_id]) = (&*operation.shards, &*operation.new_shards) else {
        return Err(Refusal::Invalid(format!("operation {operation_id} names no two halves")));
    };
    let Some(shard) = state.shards.get(parent) else {
        return Err(Refusal::NotFound(format!("no shard {parent}")));
    };
    let mut left =
        Shard { shard_id: left_id, epoch: operation.epoch, born: false, ..Shard::clone(shard) };
    let mut right = Shard { shard_id: right_id, ..left.clone() };
    left.end = operation.key.clone();
    right.start = operation.key.clone();
    let replaced = state.shards.replace(&[parent], vec![left, right]);
    replaced.map_err(|error| Refusal::Precondition(error.to_string()))?;
    operation.phase = Phase::Done;
    end(state, operation, events);
    publish(state, vec![left_id, right_id], vec![parent], events);
    Ok(())
}

/// The owner has durably refused to split the shard: it stays as it is.
pub(super) fn abort(
    state: &mut ClusterState,
    operation_id: u64,
    attempt: u64,
    reason: &str,
    events: &mut Vec<Event>,
) -> Result<(), Refusal> {
    let Some(mut operation) = active(state, operation_id, attempt, Phase::Failed)? else {
        return Ok(());
    };
    operation.phase = Phase::Failed;
    operation.reason = reason.chars().take(MAX_REASON_CHARS).collect();
    end(state, operation, events);
    Ok(())
}

/// The operation, if it runs. None: it has ended in this phase already, by the same command.
fn active(
    state: &ClusterState,
    operation_id: u64,
    attempt: u64,
    ending: Phase,
) -> Result<Option<Operation>, Refusal> {
    let found = state.operations.get(operation_id);
    let Some(operation) = found.filter(|found| found.kind == OperationKind::Split) else {
        return Err(Refusal::NotFound(format!("no split {operation_id}")));
    };
    if operation.attempt != attempt {
        let found = operation.attempt;
        let what = format!("operation {operation_id} is at attempt {found}, not at {attempt}");
        return Err(Refusal::Precondition(what));
    }
    match operation.phase {
        Phase::Begin => Ok(Some(Operation::clone(operation))),
        phase if phase == ending => Ok(None),
        phase => {
            let what = format!("operation {operation_id} has ended before: {}", phase.as_str());
            Err(Refusal::Precondition(what))
        }
    }
}

fn end(state: &mut ClusterState, operation: Operation, events: &mut Vec<Event>) {
    let id = operation.operation_id;
    events.push(Event::Operation(id));
    state.operations.put(operation);
    events.extend(state.operations.prune(id).into_iter().map(Event::Operation));
}
