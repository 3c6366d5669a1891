//! Put and delete of one key, with or without a condition.
//!
//! Invariant: a write whose condition fails, or that finds nothing to delete, is a read: its
//! ticket is the newest LSN of the key's word.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::api::{Condition, Written};
use crate::core::Core;
use crate::error::Result;
use crate::index::{RevisionCounter, Shard, Slot};
use crate::ops::group::op;
use crate::stats::Counters;
use crate::store::{Planned, Store};
use crate::sync::WordIndex;
use crate::types::{InstanceId, Lsn, Revision};
use crate::wal::{Body, Op, Permit, Record, RequestId, Section};

impl Core {
    /// Sets a key.
    pub(crate) fn put(&self, key: &[u8], value: &[u8], condition: &Condition) -> Result<Written> {
        Store::check_value(value)?;
        self.write(key, Some(value), condition)
    }

    /// Removes a key.
    pub(crate) fn delete(&self, key: &[u8], condition: &Condition) -> Result<Written> {
        self.write(key, None, condition)
    }

    fn write(&self, key: &[u8], value: Option<&[u8]>, condition: &Condition) -> Result<Written> {
        // 1. Limits and state before anything is touched; room is waited for without a stripe.
        Store::check_key(key)?;
        let ops = [op((key, value))];
        let bytes = record_bytes(&[&ops]);
        let word = WordIndex::of(key);
        let mut no_space = None;
        loop {
            self.check_writable()?;
            if value.is_some() {
                self.check_space()?;
            }
            let permit = self.acquire_log(bytes)?;
            // 2. The stripe, then shard and regions as one pointer, then the entry.
            let held = self.stripes.lock([word]);
            if let Some(refused) = self.refuse(key, condition)? {
                Counters::add(&self.store.counters.conditions_failed, 1);
                return Ok(Written { lsn: held.ticket(), ..refused });
            }
            let plan = match self.store.plan(key, value) {
                Ok(Planned::Ready(plan)) => plan,
                Err(error) if self.tries_again(&error, &mut no_space) => {
                    drop((held, permit));
                    self.wait_a_moment();
                    continue;
                }
                Err(error) => return Err(error),
                Ok(Planned::Full(shard)) => {
                    drop(held);
                    drop(permit);
                    self.make_room(&shard)?;
                    continue;
                }
            };
            let existed = plan.existed;
            if plan.is_nothing() {
                return Ok(Written { applied: true, existed, current: None, lsn: held.ticket() });
            }
            if plan.is_insert() && self.memory.is_full() {
                return Err(self.refuse_insert(plan));
            }
            // 3. Apply, and 4. log, before the stripe is let go.
            let shard = plan.shard.clone();
            let grown = usize::from(plan.grows());
            let in_flight = self.in_flight(held);
            let [op] = ops;
            let op = in_flight.apply(plan).map_or(op, |at| op.refer(at));
            let lsn = self.log(permit, &[(&shard, &[op])]);
            in_flight.commit(lsn);
            // 5. The caller waits for the LSN and acknowledges.
            self.trigger(&shard, grown);
            return Ok(Written { applied: true, existed, current: None, lsn });
        }
    }

    /// The answer when `condition` does not hold. Call under the key's stripe.
    fn refuse(&self, key: &[u8], condition: &Condition) -> Result<Option<Written>> {
        let refused = |current: Option<Vec<u8>>| {
            Some(Written { applied: false, existed: current.is_some(), current, lsn: Lsn(0) })
        };
        let exists = || {
            let slot = self.store.slot_of(key)?;
            Ok(slot.is_some_and(|slot| !matches!(slot, Slot::Tombstone)))
        };
        Ok(match condition {
            Condition::None => None,
            Condition::IfPresent => {
                if exists()? {
                    None
                } else {
                    refused(None)
                }
            }
            Condition::IfAbsent => {
                if exists()? {
                    refused(self.store.read_applied(key)?)
                } else {
                    None
                }
            }
            Condition::IfValueEquals(expected) => {
                let current = self.store.read_applied(key)?;
                if current.as_ref() == Some(expected) { None } else { refused(current) }
            }
        })
    }

    /// Logs applied operations, by shard, as one record. Under their stripes; cannot fail.
    pub(crate) fn log(&self, mut permit: Permit<'_>, parts: &[(&Shard, &[Op<'_>])]) -> Lsn {
        let ops: SmallVec<[&[Op<'_>]; 1]> = parts.iter().map(|(_, ops)| *ops).collect();
        permit.shrink(record_bytes(&ops));
        // A shard's revisions are in log order: its counter is held while both are taken. Parts are
        // in key order, so two batches take the locks in the same order.
        let counters: SmallVec<[&RevisionCounter; 1]> =
            parts.iter().map(|(shard, _)| &shard.revision).collect();
        let (reservation, sections) = RevisionCounter::lock_all(&counters, |mut counters| {
            let reservation = self.wal.reserve(permit);
            let mut sections: SmallVec<[Section<'_>; 1]> = SmallVec::new();
            for (number, (shard, ops)) in parts.iter().enumerate() {
                let count = ops.len() as u64;
                let first_revision = counters.take(number, count);
                // Between reserve and publish: see the feed's waiters.
                shard.last_change.store(first_revision.0 + count - 1, Ordering::Release);
                sections.push(Section { instance: shard.instance, first_revision, ops });
            }
            (reservation, sections)
        });
        reservation.publish(&Record { body: Body::Write(&sections), request: RequestId::default() })
    }
}

/// Room that a record of these operations takes, each slice as a section of its own.
pub(crate) fn record_bytes(parts: &[&[Op<'_>]]) -> usize {
    let section = |ops| Section { instance: InstanceId(0), first_revision: Revision(0), ops };
    let sections: SmallVec<[Section<'_>; 1]> = parts.iter().map(|ops| section(*ops)).collect();
    Record { body: Body::Write(&sections), request: RequestId::default() }.encoded_len()
}
