//! Making an empty shard at somebody else's word.
//!
//! Invariant: the shard is in the log, durably, before a key can be written to it; no checkpoint
//! comes between its record and its place in the table.

use std::sync::Arc;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::index::{Shard, SortedRegion};
use crate::types::{KeyRange, ShardId};
use crate::wal::{Body, Record, RequestId};

impl Core {
    /// Makes an empty shard. The same id, range and epoch again is a no-op.
    pub(crate) fn create_shard(&self, id: ShardId, range: &KeyRange, epoch: u64) -> Result<()> {
        if range.is_empty() {
            return Err(Error::invalid(format!("range {range:?} of shard {id} is empty")));
        }
        for bound in [&range.start, &range.end] {
            if bound.len() > crate::options::MAX_KEY_BYTES + 1 {
                return Err(Error::invalid(format!("a bound of shard {id} is too long")));
            }
        }
        let mut state = self.table_lock.lock();
        self.check_writable()?;
        let table = self.store.table.load_full();
        if let Some(shard) = table.covering(range).first() {
            if shard.id == id && shard.range == *range && shard.epoch == epoch {
                return Ok(());
            }
            let what =
                format!("shard {id} {range:?} overlaps shard {} {:?}", shard.id, shard.range);
            return Err(Error::invalid(what));
        }
        if table.get(id).is_some() {
            return Err(Error::invalid(format!("shard {id} exists with another range")));
        }
        let instance = state.next_instance;
        let body = Body::CreateShard {
            shard: id,
            instance,
            epoch,
            revision: self.feed.floor(),
            start: &range.start,
            end: &range.end,
        };
        let record = Record { body, request: RequestId::default() };
        let permit = self.wal.acquire(record.encoded_len())?;
        let end = self.wal.reserve(permit).publish(&record);
        state.saw(id, instance);
        self.wal.wait(end)?;
        let capacity = self.store.options.append_capacity;
        let empty = SortedRegion::empty();
        let shard = Shard::new(id, instance, epoch, range.clone(), empty, capacity, true);
        shard.revision.raise(self.feed.floor());
        self.store.table.store(Arc::new(table.insert(Arc::new(shard))?));
        Ok(())
    }
}
