//! Point reads.
//!
//! Invariant: the value is copied first and the stripe word is looked at afterwards, so nothing is
//! shown that a crash could take back.

use crate::api::TryGet;
use crate::core::Core;
use crate::error::Result;
use crate::index::Slot;
use crate::options::Visibility;
use crate::stats::Counters;
use crate::store::Store;
use crate::sync::WordIndex;
use crate::value_log::{Access, Location};

impl Core {
    /// The value of a key, durable.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Store::check_key(key)?;
        let value = self.store.read_applied(key)?;
        self.settle(WordIndex::of(key))?;
        self.count_get(value.is_some());
        Ok(value)
    }

    /// The same without blocking for disk or log.
    pub(crate) fn try_get(&self, key: &[u8]) -> Result<TryGet> {
        Store::check_key(key)?;
        let value = {
            let guard = crossbeam_epoch::pin();
            match self.store.slot_of(key)? {
                Some(Slot::Value(at)) if !self.store.value_log.is_resident(Location(at)) => {
                    return Ok(TryGet::Cold);
                }
                Some(slot) => self.store.read_slot(key, slot, Access::Point, &guard)?,
                None => None,
            }
        };
        if self.store.options.visibility == Visibility::Durable {
            let lsn = self.stripes.settle(WordIndex::of(key));
            if lsn > self.wal.durable_lsn() {
                if self.wal.poisoned().is_some() {
                    // Fails at once: this log will never reach the LSN.
                    self.wal.wait(lsn)?;
                }
                Counters::add(&self.store.counters.reads_waited, 1);
                return Ok(TryGet::Pending(lsn));
            }
        }
        self.count_get(value.is_some());
        Ok(TryGet::Ready(value))
    }

    fn count_get(&self, hit: bool) {
        let counters = &self.store.counters;
        Counters::add(if hit { &counters.gets_hit } else { &counters.gets_miss }, 1);
    }
}
