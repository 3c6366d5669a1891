//! Several puts and deletes as one: all of them or none, also after a crash.
//!
//! Invariants: the batch is one log record; its stripes are held from the first look-up to the
//! log append; of several operations on one key only the last is applied, so that no reader sees
//! a value that was never committed.

use std::collections::BTreeMap;

use crate::api::Operation;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::ops::group::{GroupPlan, op};
use crate::ops::write::record_bytes;
use crate::options::{MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS};
use crate::store::Store;
use crate::sync::WordIndex;
use crate::types::Lsn;
use crate::wal::Op;

impl Core {
    /// Applies all operations or none.
    pub(crate) fn write_batch(&self, operations: &[Operation]) -> Result<Lsn> {
        let changes = check(operations)?;
        if changes.is_empty() {
            return Ok(Lsn(0));
        }
        let words: Vec<WordIndex> = changes.keys().map(|key| WordIndex::of(key)).collect();
        let mut no_space = None;
        loop {
            self.check_writable()?;
            if changes.values().any(Option::is_some) {
                self.check_space()?;
            }
            // Which shards the keys lie in is known only under the stripes; a header for each key
            // is room enough.
            let ops: Vec<Op<'_>> = changes.iter().map(|(key, value)| op((key, *value))).collect();
            let one_by_one: Vec<&[Op<'_>]> = ops.chunks(1).collect();
            let permit = self.acquire_log(record_bytes(&one_by_one))?;
            let held = self.stripes.lock(words.iter().copied());
            let changed = changes.iter().map(|(key, value)| (*key, *value));
            let plans = match self.plan_group(changed) {
                Ok(GroupPlan::Ready(plans)) => plans,
                Err(error) if self.tries_again(&error, &mut no_space) => {
                    drop((held, permit));
                    self.wait_a_moment();
                    continue;
                }
                Err(error) => return Err(error),
                Ok(GroupPlan::Full(shard)) => {
                    drop((held, permit));
                    self.make_room(&shard)?;
                    continue;
                }
            };
            if plans.is_empty() {
                return Ok(held.ticket());
            }
            return Ok(self.commit_group(held, permit, plans));
        }
    }
}

/// Checks the limits; the last operation on each key, in key order.
fn check(operations: &[Operation]) -> Result<BTreeMap<&[u8], Option<&[u8]>>> {
    if operations.len() > MAX_BATCH_OPERATIONS {
        return Err(Error::invalid(format!(
            "batch has {} operations; the limit is {MAX_BATCH_OPERATIONS}",
            operations.len()
        )));
    }
    let mut changes = BTreeMap::new();
    let mut bytes = 0;
    for (position, operation) in operations.iter().enumerate() {
        let (key, value) = match operation {
            Operation::Put { key, value } => (key, Some(value.as_slice())),
            Operation::Delete { key } => (key, None),
        };
        let located = |error: Error| {
            Error::invalid(format!("operation {position} of the batch: {}", error.message()))
        };
        Store::check_key(key).map_err(located)?;
        Store::check_value(value.unwrap_or_default()).map_err(located)?;
        bytes += key.len() + value.map_or(0, <[u8]>::len);
        changes.insert(key.as_slice(), value);
    }
    if operations.len() > 1 && bytes > MAX_BATCH_BYTES {
        return Err(Error::invalid(format!(
            "batch has {bytes} bytes of keys and values; the limit is {MAX_BATCH_BYTES}"
        )));
    }
    Ok(changes)
}
