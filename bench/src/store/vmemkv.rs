//! Our engine as a store.
//!
//! Invariant: a write waits for its own LSN before it is acknowledged.

use std::path::Path;
use std::str::FromStr;
use std::sync::Mutex;

use anyhow::Result;
use vmemkv_engine::{
    Condition, Engine, KeyRange, Lsn, MAX_BATCH_OPERATIONS, Operation, Options, ReadPolicy,
    ScanOptions, Written,
};

use super::{Pair, Store};

/// Bytes of keys and values of one batch of the load.
const LOAD_BATCH_BYTES: usize = 1 << 20;

/// The seeds' five variants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Variant {
    /// No bloom filter, no inline values.
    Baseline,
    /// With a bloom filter.
    Bloom,
    /// And with inline values: the default of the engine.
    Inline,
    /// Reads always through the random-access mapping.
    PinRandom,
    /// Reads always through the sequential mapping.
    PinSequential,
}

impl Variant {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::Baseline, Self::Bloom, Self::Inline, Self::PinRandom, Self::PinSequential];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Bloom => "bf",
            Self::Inline => "inline",
            Self::PinRandom => "pinrandom",
            Self::PinSequential => "pinseq",
        }
    }

    fn options(self) -> Options {
        match self {
            Self::Baseline => Options::baseline(),
            Self::Bloom => Options { inline: false, ..Options::default() },
            Self::Inline => Options::default(),
            Self::PinRandom => Options { read_policy: ReadPolicy::Random, ..Options::default() },
            Self::PinSequential => {
                Options { read_policy: ReadPolicy::Sequential, ..Options::default() }
            }
        }
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::Inline);
        }
        let names: Vec<_> = Self::ALL.iter().map(|variant| variant.name()).collect();
        let found = Self::ALL.into_iter().find(|variant| variant.name() == text);
        found.ok_or_else(|| format!("the variants of vmemkv are {}", names.join(", ")))
    }
}

/// An open engine.
pub(crate) struct VmemkvStore {
    engine: Engine,
    /// The end of what has been loaded.
    loaded: Mutex<Lsn>,
}

impl VmemkvStore {
    /// Opens `dir`.
    pub(crate) fn open(dir: &Path, variant: Variant) -> Result<Self> {
        let engine = Engine::open(dir, variant.options())?;
        Ok(Self { engine, loaded: Mutex::new(Lsn(0)) })
    }

    fn acknowledge(&self, written: &Written) -> Result<bool> {
        if written.applied {
            self.engine.wait_durable(written.lsn)?;
        }
        Ok(written.applied)
    }

    /// Writes operations in batches that keep to the engine's limits.
    fn write(&self, operations: impl Iterator<Item = Operation>) -> Result<()> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        for operation in operations {
            bytes += match &operation {
                Operation::Put { key, value } => key.len() + value.len(),
                Operation::Delete { key } => key.len(),
            };
            batch.push(operation);
            if bytes >= LOAD_BATCH_BYTES || batch.len() == MAX_BATCH_OPERATIONS {
                self.write_one_batch(&batch)?;
                batch.clear();
                bytes = 0;
            }
        }
        if batch.is_empty() { Ok(()) } else { self.write_one_batch(&batch) }
    }

    fn write_one_batch(&self, batch: &[Operation]) -> Result<()> {
        let lsn = self.engine.write_batch(batch)?;
        let mut loaded = self.loaded.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *loaded = (*loaded).max(lsn);
        Ok(())
    }
}

impl Store for VmemkvStore {
    fn load(&self, pairs: Vec<Pair>) -> Result<()> {
        self.write(pairs.into_iter().map(|(key, value)| Operation::Put { key, value }))
    }

    fn unload(&self, keys: Vec<Vec<u8>>) -> Result<()> {
        self.write(keys.into_iter().map(|key| Operation::Delete { key }))
    }

    fn settle(&self) -> Result<()> {
        let loaded = *self.loaded.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.engine.wait_durable(loaded)?;
        self.engine.reorganize(None)?;
        self.engine.checkpoint()?;
        Ok(())
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        match self.engine.get(key)? {
            Some(value) => {
                read(&value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.acknowledge(&self.engine.put(key, value, &Condition::IfAbsent)?)
    }

    fn update(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.acknowledge(&self.engine.put(key, value, &Condition::IfPresent)?)
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        self.acknowledge(&self.engine.delete(key, &Condition::IfPresent)?)
    }

    fn scan(
        &self,
        start: &[u8],
        limit: usize,
        read: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        let range = KeyRange::new(start, Vec::new());
        let mut options = ScanOptions { range, limit, ..ScanOptions::default() };
        let mut entries = 0;
        loop {
            let chunk = self.engine.scan(&options)?;
            entries += chunk.entries.len();
            for (key, value) in &chunk.entries {
                read(key, value);
            }
            if chunk.done || entries >= limit {
                return Ok(entries);
            }
            options.range.start = chunk.covered_to;
            options.limit = limit - entries;
        }
    }

    fn count(&self) -> Result<u64> {
        crate::bulk::count(&self.engine)
    }

    fn reorganize(&self) -> Result<()> {
        Ok(self.engine.reorganize(None)?)
    }

    fn checkpoint(&self) -> Result<()> {
        self.engine.checkpoint()?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.engine.close()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_the_five_of_the_seeds() {
        let options = |variant: Variant| {
            let options = variant.options();
            (options.bloom, options.inline, options.read_policy)
        };
        assert_eq!(options(Variant::Baseline), (false, false, ReadPolicy::Adaptive));
        assert_eq!(options(Variant::Bloom), (true, false, ReadPolicy::Adaptive));
        assert_eq!(options(Variant::Inline), (true, true, ReadPolicy::Adaptive));
        assert_eq!(options(Variant::PinRandom), (true, true, ReadPolicy::Random));
        assert_eq!(options(Variant::PinSequential), (true, true, ReadPolicy::Sequential));
        for variant in Variant::ALL {
            assert_eq!(variant.name().parse(), Ok(variant));
        }
    }
}
