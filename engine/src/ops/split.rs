//! Cutting a shard in two, online.
//!
//! 1. Make both children: empty append regions, the parent's as their frozen one, its sorted region
//!    shared. Take room in the log. All that can fail is done.
//! 2. Swap both in with one store of the table; from here writes go to the children.
//! 3. Pass every stripe: nobody works with the parent any more, its regions are immutable.
//! 4. Log it, and part the children's revisions.
//! 5. Wait until it is durable; then the answer. Background merges give each child its own regions.
//!
//! Invariants: 2 to 4 happen under the table lock, so a checkpoint sees the children and has
//! `checkpoint_lsn` above the record, or neither; a write is routed by its key when it is replayed,
//! so it does not matter on which side of the record it lies; writers wait for nothing but a stripe.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::api::{OperationOutcome, SplitShard};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::index::{RevisionCounter, Shard, ShardTable};
use crate::ops::change_table::{check_epoch, check_new};
use crate::ops::split_key::bytes_below;
use crate::options::MAX_KEY_BYTES;
use crate::stats::Counters;
use crate::table_state::TableState;
use crate::types::{InstanceId, Lsn, Revision, ShardId};
use crate::wal::{Body, Record, RequestId, Split};

/// A split as the operation needs it.
pub(super) struct SplitPlan<'a> {
    pub(super) operation: u64,
    pub(super) key: &'a [u8],
    /// The ids of the parts and their epoch; `None`: the engine makes them.
    pub(super) given: Option<(ShardId, ShardId, u64)>,
    /// Bytes of the left part, an estimate.
    pub(super) left_bytes: u64,
}

impl Core {
    /// See [`Engine::split_shard`](crate::Engine::split_shard).
    pub(crate) fn split_shard(&self, split: &SplitShard) -> Result<Lsn> {
        let SplitShard { operation, shard, key, left, right, epoch } = split;
        if key.len() > MAX_KEY_BYTES {
            let what =
                format!("the split key has {} bytes; the limit is {MAX_KEY_BYTES}", key.len());
            return Err(Error::invalid(what));
        }
        let left_bytes = self.bytes_below(*shard, key);
        let given = Some((*left, *right, *epoch));
        self.split_at(*shard, &SplitPlan { operation: *operation, key, given, left_bytes })
    }

    pub(super) fn split_at(&self, shard: ShardId, plan: &SplitPlan<'_>) -> Result<Lsn> {
        let started = Instant::now();
        let mut children = Vec::new();
        let lsn = self.change_table(plan.operation, &[shard], &mut |state, table, shards| {
            let (lsn, new) = self.swap_in_children(state, table, &shards[0], plan)?;
            children = new.into();
            Ok(lsn)
        })?;
        if !children.is_empty() {
            let counters = &self.store.counters;
            Counters::add(&counters.shard_splits, 1);
            Counters::add(&counters.shard_changes_us, started.elapsed().as_micros() as u64);
            children.iter().for_each(|child| self.settle_soon(child));
        }
        Ok(lsn)
    }

    /// Steps 1 to 4. The caller holds the table lock and the parent's `structural`.
    fn swap_in_children(
        &self,
        state: &mut TableState,
        table: &Arc<ShardTable>,
        parent: &Arc<Shard>,
        plan: &SplitPlan<'_>,
    ) -> Result<(Lsn, [Arc<Shard>; 2])> {
        // 1.
        let (left, right, epoch) = plan.given.unwrap_or_else(|| {
            let next = state.next_shard.0;
            (ShardId(next), ShardId(next + 1), parent.epoch.saturating_add(1))
        });
        check_new(table, &[left, right])?;
        check_epoch(epoch, std::slice::from_ref(parent))?;
        let left = (left, state.next_instance);
        let right = (right, InstanceId(left.1.0 + 1));
        let (left_shard, right_shard) = parent.split(plan.key, left, right, epoch)?;
        // Looked at once: writers change it meanwhile. The merge of each part counts anew.
        let live_bytes = parent.live_bytes();
        let left_bytes = plan.left_bytes.min(live_bytes);
        left_shard.guess_live(left_bytes);
        right_shard.guess_live(live_bytes - left_bytes);
        let children = [Arc::new(left_shard), Arc::new(right_shard)];
        let record = |revision| {
            let (operation, key) = (plan.operation, plan.key);
            let parent = (parent.id, parent.instance);
            let body = Body::Split(Split { operation, parent, left, right, epoch, revision, key });
            Record { body, request: RequestId::default() }
        };
        let new_table = Arc::new(table.replace(&[parent.instance], children.clone())?);
        let permit = self.wal.acquire(record(Revision(0)).encoded_len())?;
        // Nobody merges a child before the pass.
        let busy = [children[0].structural.lock(), children[1].structural.lock()];
        // 2.
        let swapped = Instant::now();
        self.store.table.store(new_table);
        // 3.
        self.stripes.pass();
        parent.retire();
        let pause_us = swapped.elapsed().as_micros() as u64;
        Counters::add(&self.store.counters.shard_pauses_us, pause_us);
        // 4.
        let [left_counter, right_counter] = [&children[0].revision, &children[1].revision];
        let lsn = RevisionCounter::part(left_counter, right_counter, |revision| {
            // Stragglers' changes are the children's, for who waits for one.
            for child in &children {
                child.last_change.fetch_max(revision.0, Ordering::Release);
            }
            self.wal.reserve(permit).publish(&record(revision))
        });
        state.saw(left.0, left.1);
        state.saw(right.0, right.1);
        state.operations.end(plan.operation, OperationOutcome::Done, lsn);
        drop(busy);
        Ok((lsn, children))
    }

    /// Bytes of a shard's entries before `key`, about; 0 when there is no such shard.
    fn bytes_below(&self, shard: ShardId, key: &[u8]) -> u64 {
        let shard = self.store.table.load().get(shard).cloned();
        shard.map_or(0, |shard| bytes_below(&shard, key))
    }
}
