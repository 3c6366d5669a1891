//! Changes of several keys that become one log record.
//!
//! Invariants: all are planned before the first is applied, and all are given back when one cannot
//! be; a change that does nothing (a delete of a missing key) is neither applied nor logged.

use std::sync::Arc;

use crate::core::Core;
use crate::error::Result;
use crate::index::Shard;
use crate::store::{Plan, Planned};
use crate::sync::Held;
use crate::types::Lsn;
use crate::wal::{Op, Permit};

/// Whether several changes could be planned.
pub(crate) enum GroupPlan<'a> {
    /// They can be applied; those that do nothing are left out.
    Ready(Vec<Plan<'a>>),
    /// This shard's append region is full: let go of everything and make room.
    Full(Arc<Shard>),
}

impl Core {
    /// Plans changes of distinct keys; `None` deletes. The caller holds all their stripes.
    pub(crate) fn plan_group<'a>(
        &'a self,
        changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> Result<GroupPlan<'a>> {
        let mut plans: Vec<Plan<'a>> = Vec::with_capacity(changes.size_hint().0);
        for (key, value) in changes {
            let full = match self.store.plan(key, value) {
                Ok(Planned::Ready(plan)) if plan.is_nothing() => continue,
                Ok(Planned::Ready(plan)) if plan.is_insert() && self.memory.is_full() => {
                    Err(self.refuse_insert(plan))
                }
                Ok(Planned::Ready(plan)) => {
                    plans.push(plan);
                    continue;
                }
                Ok(Planned::Full(shard)) => Ok(GroupPlan::Full(shard)),
                Err(error) => Err(error),
            };
            plans.into_iter().for_each(|plan| self.store.abandon(plan));
            return full;
        }
        Ok(GroupPlan::Ready(plans))
    }

    /// Applies and logs planned changes, which are in key order, and unlocks. Cannot fail.
    pub(crate) fn commit_group<'a>(
        &'a self,
        held: Held<'a>,
        permit: Permit<'_>,
        plans: Vec<Plan<'_>>,
    ) -> Lsn {
        let mut ops: Vec<Op<'_>> = plans.iter().map(|plan| op(plan.change())).collect();
        let shards: Vec<Arc<Shard>> = plans.iter().map(|plan| Arc::clone(&plan.shard)).collect();
        let grown = plans.iter().filter(|plan| plan.grows()).count();
        let in_flight = self.in_flight(held);
        for (op, plan) in ops.iter_mut().zip(plans) {
            if let Some(at) = in_flight.apply(plan) {
                *op = op.refer(at);
            }
        }
        let mut parts: Vec<(&Shard, &[Op<'_>])> = Vec::new();
        let mut start = 0;
        for end in 1..=shards.len() {
            if end == shards.len() || shards[end].instance != shards[start].instance {
                parts.push((&shards[start], &ops[start..end]));
                start = end;
            }
        }
        let lsn = self.log(permit, &parts);
        in_flight.commit(lsn);
        // One for each shard: they are in key order.
        let mut last = None;
        for shard in shards {
            if last.replace(shard.instance) != Some(shard.instance) {
                // To each as if all of it were its own: at worst the memory is counted once more.
                self.trigger(&shard, grown);
            }
        }
        lsn
    }
}

/// A change as the log has it.
pub(crate) fn op<'a>((key, value): (&'a [u8], Option<&'a [u8]>)) -> Op<'a> {
    value.map_or(Op::delete(key), |value| Op::put(key, value))
}
