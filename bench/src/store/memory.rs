//! A map in memory as a store, for tests of the harness: right, or wrong in a chosen way.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::{Pair, Store};

/// How the store cheats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// It does not.
    None,
    /// One write in 50 is acknowledged and dropped.
    LosesWrites,
    /// Reads give the right length and other bytes.
    WrongBytes,
    /// Scans leave out each tenth entry.
    ShortScans,
}

/// The map.
pub(crate) struct MemoryStore {
    map: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    fault: Fault,
    writes: AtomicU64,
}

impl MemoryStore {
    /// An empty one.
    pub(crate) fn new(fault: Fault) -> Self {
        Self { map: Mutex::default(), fault, writes: AtomicU64::new(0) }
    }

    fn drops_write(&self) -> bool {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        self.fault == Fault::LosesWrites && number.is_multiple_of(50)
    }

    fn change(&self, key: &[u8], value: Option<&[u8]>, wants_present: bool) -> bool {
        let mut map = self.map.lock().expect("map");
        if map.contains_key(key) != wants_present {
            return false;
        }
        if !self.drops_write() {
            match value {
                Some(value) => map.insert(key.to_vec(), value.to_vec()),
                None => map.remove(key),
            };
        }
        true
    }
}

impl Store for MemoryStore {
    fn load(&self, pairs: Vec<Pair>) -> Result<()> {
        self.map.lock().expect("map").extend(pairs);
        Ok(())
    }

    fn unload(&self, keys: Vec<Vec<u8>>) -> Result<()> {
        let mut map = self.map.lock().expect("map");
        for key in keys {
            map.remove(&key);
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let map = self.map.lock().expect("map");
        let Some(value) = map.get(key) else { return Ok(false) };
        if self.fault == Fault::WrongBytes {
            read(&vec![0; value.len()]);
        } else {
            read(value);
        }
        Ok(true)
    }

    fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(key, Some(value), false))
    }

    fn update(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(key, Some(value), true))
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        Ok(self.change(key, None, true))
    }

    fn scan(
        &self,
        start: &[u8],
        limit: usize,
        read: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        let map = self.map.lock().expect("map");
        let from = map.range::<[u8], _>((Bound::Included(start), Bound::Unbounded));
        let kept = from.enumerate().filter(|(i, _)| self.fault != Fault::ShortScans || i % 10 != 9);
        Ok(kept.take(limit).map(|(_, (key, value))| read(key, value)).count())
    }

    fn count(&self) -> Result<u64> {
        Ok(self.map.lock().expect("map").len() as u64)
    }

    fn reorganize(&self) -> Result<()> {
        Ok(())
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
