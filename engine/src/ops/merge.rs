//! Making one shard of two neighbours, online. The reverse of a [split](super::split), with the
//! same steps and invariants; why no write is lost: [`Shard::merge_with`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::api::{MergeShards, OperationOutcome};
use crate::core::Core;
use crate::error::Result;
use crate::index::{RevisionCounter, Shard, ShardTable};
use crate::ops::change_table::{check_epoch, check_new};
use crate::stats::Counters;
use crate::table_state::TableState;
use crate::types::{Lsn, Revision, ShardId};
use crate::wal::{Body, Merge, Record, RequestId};

/// A merge as the operation needs it.
pub(super) struct MergePlan {
    pub(super) operation: u64,
    /// The id of the result and its epoch; `None`: the engine makes them.
    pub(super) given: Option<(ShardId, u64)>,
}

impl Core {
    /// See [`Engine::merge_shards`](crate::Engine::merge_shards).
    pub(crate) fn merge_shards(&self, merge: &MergeShards) -> Result<Lsn> {
        let MergeShards { operation, left, right, merged, epoch } = merge;
        let plan = MergePlan { operation: *operation, given: Some((*merged, *epoch)) };
        self.merge_neighbours(*left, *right, &plan)
    }

    pub(super) fn merge_neighbours(
        &self,
        left: ShardId,
        right: ShardId,
        plan: &MergePlan,
    ) -> Result<Lsn> {
        let started = Instant::now();
        let mut result = None;
        let lsn =
            self.change_table(plan.operation, &[left, right], &mut |state, table, shards| {
                let (lsn, merged) = self.swap_in_merged(state, table, shards, plan)?;
                result = Some(merged);
                Ok(lsn)
            })?;
        if let Some(merged) = result {
            let counters = &self.store.counters;
            Counters::add(&counters.shard_merges, 1);
            Counters::add(&counters.shard_changes_us, started.elapsed().as_micros() as u64);
            self.settle_soon(&merged);
        }
        Ok(lsn)
    }

    /// Steps 1 to 4. The caller holds the table lock and both `structural`s.
    fn swap_in_merged(
        &self,
        state: &mut TableState,
        table: &Arc<ShardTable>,
        shards: &[Arc<Shard>],
        plan: &MergePlan,
    ) -> Result<(Lsn, Arc<Shard>)> {
        // 1.
        let (left, right) = (&shards[0], &shards[1]);
        let (id, epoch) = plan
            .given
            .unwrap_or_else(|| (state.next_shard, left.epoch.max(right.epoch).saturating_add(1)));
        check_new(table, &[id])?;
        check_epoch(epoch, shards)?;
        let copied = (id, state.next_instance);
        let bloom = self.store.options.bloom;
        let mut merged = left.merge_with(right, copied, epoch, bloom)?;
        let record = |revision| {
            let body = Body::Merge(Merge {
                operation: plan.operation,
                left: (left.id, left.instance),
                right: (right.id, right.instance),
                merged: copied,
                epoch,
                revision,
                seam: &right.range.start,
            });
            Record { body, request: RequestId::default() }
        };
        let permit = self.wal.acquire(record(Revision(0)).encoded_len())?;
        // From here both take revisions of the merged shard's counter.
        merged.revision = RevisionCounter::unite(&left.revision, &right.revision);
        let merged = Arc::new(merged);
        let gone = [left.instance, right.instance];
        let new_table = table.replace(&gone, [Arc::clone(&merged)]).inspect_err(|_| {
            RevisionCounter::part(&left.revision, &right.revision, |_| ());
        })?;
        // Nobody merges its regions before the pass.
        let busy = merged.structural.lock();
        let live_of_both = || left.counted_live().wrapping_add(right.counted_live());
        let live_before = live_of_both();
        merged.count_live(live_before, 0);
        // 2.
        let swapped = Instant::now();
        self.store.table.store(Arc::new(new_table));
        // 3.
        self.stripes.pass();
        // What stragglers have changed since.
        merged.count_live(live_of_both(), live_before);
        left.retire();
        right.retire();
        let pause_us = swapped.elapsed().as_micros() as u64;
        Counters::add(&self.store.counters.shard_pauses_us, pause_us);
        // 4.
        let lsn = merged.revision.with_last(|revision| {
            // Stragglers' changes are the merged shard's, for who waits for one.
            merged.last_change.fetch_max(revision.0, Ordering::Release);
            self.wal.reserve(permit).publish(&record(revision))
        });
        state.saw(copied.0, copied.1);
        state.operations.end(plan.operation, OperationOutcome::Done, lsn);
        drop(busy);
        Ok((lsn, merged))
    }
}
