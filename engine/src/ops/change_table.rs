//! What splits and merges of shards have in common: the locks, operations that are asked again, and
//! shards that are left frozen.
//!
//! Invariants:
//! - the table lock comes before a shard's `structural`; who waits for a busy shard waits without
//!   the table lock, so that checkpoints and changes of other shards go on;
//! - a shard's structural lock is let go only when its frozen region, if any, is immutable: the
//!   stripes have been passed since the swap.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::api::OperationOutcome;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::index::{Shard, ShardTable};
use crate::store::region_bytes;
use crate::table_state::{TableState, cut_reason};
use crate::types::{Lsn, ShardId};
use crate::wal::{Body, Record, RequestId};

/// How often a busy shard is waited for without the table lock, before with it: others may take it
/// first each time.
const PATIENCE: usize = 16;

/// A change of the shard table, under the locks; answers its record's end.
type Change<'a> = dyn FnMut(&mut TableState, &Arc<ShardTable>, &[Arc<Shard>]) -> Result<Lsn> + 'a;

impl Core {
    /// Calls `change` with the table lock and the `structural` locks of these shards, which are in
    /// key order and not frozen, and waits until its record is durable. An operation that was
    /// executed already is not executed again.
    pub(super) fn change_table(
        &self,
        operation: u64,
        ids: &[ShardId],
        change: &mut Change<'_>,
    ) -> Result<Lsn> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let patient = attempt <= PATIENCE;
            let mut state = self.table_lock.lock();
            self.check_writable()?;
            if let Some(lsn) = state.operations.may_execute(operation)? {
                drop(state);
                self.wal.wait(lsn)?;
                return Ok(lsn);
            }
            let table = self.store.table.load_full();
            let shards = find(&table, ids)?;
            if patient && shards.iter().any(|shard| shard.structural.is_locked()) {
                drop(state);
                let _hurry = self.requests.hurry();
                shards.iter().for_each(|shard| drop(shard.structural.lock()));
                continue;
            }
            let hurry = self.requests.hurry();
            let guards: SmallVec<[_; 2]> =
                shards.iter().map(|shard| shard.structural.lock()).collect();
            drop(hurry);
            if patient && shards.iter().any(|shard| shard.load().frozen.is_some()) {
                drop(state);
                shards.iter().try_for_each(|shard| self.settle_frozen(shard))?;
                continue;
            }
            shards.iter().try_for_each(|shard| self.settle_frozen(shard))?;
            let lsn = change(&mut state, &table, &shards)?;
            drop((guards, state));
            self.wal.wait(lsn)?;
            return Ok(lsn);
        }
    }

    /// Gives a shard that was left frozen (by a split, a merge, or a merge of regions that failed)
    /// a sorted region of its own. The caller holds its `structural`.
    pub(crate) fn settle_frozen(&self, shard: &Shard) -> Result<()> {
        if shard.load().frozen.is_none() {
            return Ok(());
        }
        // At or above the end of the log at the freeze: see the invariants.
        self.wal.wait(self.wal.appended_lsn())?;
        let merging = self.memory.begin_merge(shard.load().merge_bytes());
        let merged = shard.merge_frozen(self.store.options.bloom, &|| ());
        let live_bytes = shard.has_guess().then(|| region_bytes(&merged));
        shard.publish_merged(merged, true)?;
        if let Some(live_bytes) = live_bytes {
            shard.know_live(live_bytes);
        }
        self.recount_memory();
        drop(merging);
        Ok(())
    }

    /// See [`Engine::refuse_operation`](crate::Engine::refuse_operation).
    pub(crate) fn refuse_operation(&self, operation: u64, reason: &str) -> Result<()> {
        if operation == 0 {
            return Err(Error::invalid("operation 0 is nobody's: it has no outcome"));
        }
        let reason = cut_reason(reason);
        let mut state = self.table_lock.lock();
        self.check_writable()?;
        let lsn = match state.operations.may_refuse(operation)? {
            Some(lsn) => lsn,
            None => {
                let lsn = self.log_alone(Body::RefuseOperation { operation, reason })?;
                let outcome = OperationOutcome::Refused { reason: reason.to_owned() };
                state.operations.end(operation, outcome, lsn);
                lsn
            }
        };
        drop(state);
        self.wal.wait(lsn)
    }

    /// See [`Engine::operation_outcome`](crate::Engine::operation_outcome).
    pub(crate) fn operation_outcome(&self, operation: u64) -> Option<OperationOutcome> {
        let state = self.table_lock.lock();
        let (outcome, lsn) = state.operations.get(operation)?;
        (lsn <= self.wal.durable_lsn()).then(|| outcome.clone())
    }

    /// See [`Engine::ended_operations`](crate::Engine::ended_operations).
    pub(crate) fn ended_operations(&self) -> Vec<u64> {
        self.table_lock.lock().operations.ids().collect()
    }

    /// See [`Engine::forget_operation`](crate::Engine::forget_operation).
    pub(crate) fn forget_operation(&self, operation: u64) -> Result<()> {
        let mut state = self.table_lock.lock();
        self.check_writable()?;
        if state.operations.get(operation).is_none() {
            return Ok(());
        }
        let lsn = self.log_alone(Body::ForgetOperation { operation })?;
        state.operations.forget(operation);
        drop(state);
        self.wal.wait(lsn)
    }

    fn log_alone(&self, body: Body<'_>) -> Result<Lsn> {
        let record = Record { body, request: RequestId::default() };
        let permit = self.wal.acquire(record.encoded_len())?;
        Ok(self.wal.reserve(permit).publish(&record))
    }
}

/// The shards with these ids, which must be in key order: their locks are.
fn find(table: &ShardTable, ids: &[ShardId]) -> Result<SmallVec<[Arc<Shard>; 2]>> {
    let shards: SmallVec<[Arc<Shard>; 2]> = ids
        .iter()
        .map(|id| {
            let missing = || Error::invalid(format!("shard_id {id} is not on this node"));
            table.get(*id).cloned().ok_or_else(missing)
        })
        .collect::<Result<_>>()?;
    match shards.windows(2).find(|pair| pair[0].range.start >= pair[1].range.start) {
        Some(pair) => Err(Error::invalid(format!(
            "shard {} does not lie before shard {}",
            pair[0].id, pair[1].id
        ))),
        None => Ok(shards),
    }
}

/// Refuses ids for new shards that are taken.
pub(super) fn check_new(table: &ShardTable, ids: &[ShardId]) -> Result<()> {
    for (number, id) in ids.iter().enumerate() {
        if table.get(*id).is_some() || ids[..number].contains(id) {
            return Err(Error::invalid(format!("shard id {id} is taken; new shards get new ids")));
        }
    }
    Ok(())
}

/// Refuses an epoch that is not above the shards'.
pub(super) fn check_epoch(epoch: u64, shards: &[Arc<Shard>]) -> Result<()> {
    match shards.iter().find(|shard| shard.epoch >= epoch) {
        Some(shard) => Err(Error::invalid(format!(
            "epoch {epoch} is not above the epoch {} of shard {}",
            shard.epoch, shard.id
        ))),
        None => Ok(()),
    }
}
