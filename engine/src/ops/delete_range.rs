//! Deleting the front part of a range.
//!
//! Invariants: a chunk is one log record of tombstones by key, and all its stripes are held to the
//! log append, so a put that comes after it in time comes after it in the log; a chunk holds at
//! most [`CHUNK_KEYS`] stripes, so that other writers seldom wait.

use crate::api::RangeDeleted;
use crate::core::Core;
use crate::error::Result;
use crate::index::Slot;
use crate::ops::group::GroupPlan;
use crate::ops::scan::Walk;
use crate::ops::write::record_bytes;
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
            let chunk = match self.delete_chunk(&rest, left.min(CHUNK_KEYS)) {
                Ok(chunk) => chunk,
                // What is done is done: the next call gets the error.
                Err(_) if answer.deleted > 0 => break,
                Err(error) => return Err(error),
            };
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
        let walk = self.walk(range, false, &mut |visited| {
            if !matches!(visited.slot, Slot::Tombstone) {
                keys.push(visited.key.to_vec());
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
            let permit = self.acquire_log(record_bytes(&one_by_one))?;
            let held = self.stripes.lock(keys.iter().map(|key| WordIndex::of(key)));
            let changes = keys.iter().map(|key| (key.as_slice(), None));
            let plans = match self.plan_group(changes)? {
                GroupPlan::Ready(plans) => plans,
                GroupPlan::Full(shard) => {
                    drop((held, permit));
                    self.make_room(&shard)?;
                    continue;
                }
            };
            // Keys that somebody else deleted meanwhile are safe with their own LSN.
            answer.lsn = answer.lsn.max(held.ticket());
            answer.deleted = plans.len() as u64;
            if !plans.is_empty() {
                answer.lsn = self.commit_group(held, permit, plans);
            }
            return Ok(answer);
        }
    }
}
