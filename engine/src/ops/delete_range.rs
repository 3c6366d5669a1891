//! Deleting the front part of a range.
//!
//! Invariants: a chunk is one log record of tombstones by key, and all its stripes are held to the
//! log append, so a put that comes after it in time comes after it in the log; a chunk holds at
//! most [`CHUNK_KEYS`] stripes, so that other writers seldom wait.

use crate::api::RangeDeleted;
use crate::core::Core;
use crate::error::Result;
use crate::index::{Shard, Slot};
use crate::ops::scan::Walk;
use crate::ops::write::record_bytes;
use crate::store::{Plan, Planned};
use crate::sync::WordIndex;
use crate::types::KeyRange;
use crate::wal::Op;

/// Most keys of one chunk.
const CHUNK_KEYS: usize = 128;

impl Core {
    /// Removes at most `max_keys` keys from the front of the range, and at least looks at some.
    pub(crate) fn delete_range(&self, range: &KeyRange, max_keys: usize) -> Result<RangeDeleted> {
        let mut answer =
            RangeDeleted { covered_to: range.start.clone(), ..RangeDeleted::default() };
        let mut left = max_keys.max(1);
        while !answer.done && left > 0 {
            let rest = KeyRange { start: answer.covered_to.clone(), end: range.end.clone() };
            let chunk = self.delete_chunk(&rest, left.min(CHUNK_KEYS))?;
            left = left.saturating_sub(chunk.deleted.max(1) as usize);
            answer.deleted += chunk.deleted;
            answer.covered_to = chunk.covered_to;
            answer.done = chunk.done;
            answer.lsn = answer.lsn.max(chunk.lsn);
        }
        Ok(answer)
    }

    fn delete_chunk(&self, range: &KeyRange, max_keys: usize) -> Result<RangeDeleted> {
        self.check_writable()?;
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let walk = self.walk(range, false, &mut |key, slot, _guard| {
            if !matches!(slot, Slot::Tombstone) {
                keys.push(key.to_vec());
            }
            Ok(if keys.len() == max_keys { Walk::Stop } else { Walk::On })
        })?;
        // A key that was already a tombstone may be one that no crash has made safe yet.
        let mut answer = RangeDeleted {
            deleted: 0,
            covered_to: walk.covered_to,
            done: walk.done,
            lsn: walk.lsn,
        };
        if keys.is_empty() {
            return Ok(answer);
        }
        let ops: Vec<Op<'_>> = keys.iter().map(|key| Op::delete(key)).collect();
        let one_by_one: Vec<&[Op<'_>]> = ops.chunks(1).collect();
        loop {
            let permit = self.wal.acquire(record_bytes(&one_by_one))?;
            let held = self.stripes.lock(keys.iter().map(|key| WordIndex::of(key)));
            let mut plans: Vec<Plan<'_>> = Vec::with_capacity(keys.len());
            let mut full = None;
            for key in &keys {
                match self.store.plan(key, None) {
                    // Somebody else deleted it meanwhile.
                    Ok(Planned::Ready(plan)) if plan.is_nothing() => {}
                    Ok(Planned::Ready(plan)) => plans.push(plan),
                    Ok(Planned::Full(shard)) => {
                        full = Some(Ok(shard));
                        break;
                    }
                    Err(error) => {
                        full = Some(Err(error));
                        break;
                    }
                }
            }
            if let Some(stop) = full {
                plans.into_iter().for_each(|plan| self.store.abandon(plan));
                drop(held);
                drop(permit);
                let shard = stop?;
                self.make_room(&shard)?;
                continue;
            }
            answer.lsn = answer.lsn.max(held.ticket());
            if plans.is_empty() {
                return Ok(answer);
            }
            answer.deleted = plans.len() as u64;
            let logged: Vec<Op<'_>> = plans.iter().map(|plan| Op::delete(plan.key())).collect();
            let shards: Vec<_> = plans.iter().map(|plan| plan.shard.clone()).collect();
            let in_flight = self.in_flight(held);
            plans.into_iter().for_each(|plan| in_flight.apply(plan));
            let mut parts: Vec<(&Shard, &[Op<'_>])> = Vec::new();
            let mut start = 0;
            for end in 1..=shards.len() {
                if end == shards.len() || shards[end].instance != shards[start].instance {
                    parts.push((&shards[start], &logged[start..end]));
                    start = end;
                }
            }
            let lsn = self.log(permit, &parts);
            in_flight.commit(lsn);
            answer.lsn = lsn;
            shards.iter().for_each(|shard| self.trigger(shard));
            return Ok(answer);
        }
    }
}
