//! What the bench asks of a store, and the stores by name.
//!
//! Invariants: `insert`, `update` and `delete` return only once the write is durable; values are
//! handed to a callback, so that each store reads them in its cheapest way.

#[cfg(test)]
pub(crate) mod memory;
mod vmemkv;

use std::path::Path;
use std::str::FromStr;

use anyhow::{Result, bail};

pub(crate) use vmemkv::{Variant, VmemkvStore};

/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// A store under test.
pub(crate) trait Store: Sync {
    /// Adds pairs, in any order, not durable before [`settle`](Self::settle).
    fn load(&self, pairs: Vec<Pair>) -> Result<()>;
    /// Removes keys, not durable before [`settle`](Self::settle).
    fn unload(&self, keys: Vec<Vec<u8>>) -> Result<()>;
    /// Makes everything durable and brings the store into its resting shape.
    fn settle(&self) -> Result<()>;
    /// Hands the value to `read`; whether the key is there.
    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool>;
    /// Sets a key that is absent; false, and nothing done, if it is there. Durable.
    fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool>;
    /// Sets a key that is there; false, and nothing done, if it is absent. Durable.
    fn update(&self, key: &[u8], value: &[u8]) -> Result<bool>;
    /// Removes a key; false if it is absent. Durable.
    fn delete(&self, key: &[u8]) -> Result<bool>;
    /// Hands at most `limit` entries from `start` on to `read`, in key order; how many.
    fn scan(&self, start: &[u8], limit: usize, read: &mut dyn FnMut(&[u8], &[u8]))
    -> Result<usize>;
    /// Counts the keys by visiting them.
    fn count(&self) -> Result<u64>;
    /// Forces the store to reorganize; nothing for a store that has no such thing.
    fn reorganize(&self) -> Result<()>;
    /// Forces a checkpoint; nothing for a store that has no such thing.
    fn checkpoint(&self) -> Result<()>;
    /// Closes the store in order.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A store by its name on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StoreName {
    /// Ours.
    Vmemkv(Variant),
    /// A known rival.
    Rival(String),
}

const RIVALS: [&str; 3] = ["rocksdb", "rocksdb-blobdb", "lmdb"];

impl FromStr for StoreName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, variant) = text.split_once(':').unwrap_or((text, ""));
        if name == "vmemkv" {
            return variant.parse().map(Self::Vmemkv);
        }
        if RIVALS.contains(&name) && matches!(variant, "" | "seed" | "tuned") {
            return Ok(Self::Rival(text.to_owned()));
        }
        let variants: Vec<_> = Variant::ALL.iter().map(|variant| variant.name()).collect();
        Err(format!("the stores are vmemkv[:{}]", variants.join("|")))
    }
}

impl StoreName {
    /// The name as it appears in the output.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Vmemkv(Variant::Inline) => "vmemkv".into(),
            Self::Vmemkv(variant) => format!("vmemkv:{}", variant.name()),
            Self::Rival(name) => name.clone(),
        }
    }

    /// The version of the store.
    pub(crate) fn version(&self) -> &'static str {
        // All packages of the workspace have one version.
        env!("CARGO_PKG_VERSION")
    }

    /// An error for a store that this build cannot open.
    pub(crate) fn check_built(&self) -> Result<()> {
        if let Self::Rival(name) = self {
            bail!("the store {name} is not built yet: this version measures vmemkv only");
        }
        Ok(())
    }

    /// Opens the store in `dir`, which it makes if need be.
    pub(crate) fn open(&self, dir: &Path) -> Result<Box<dyn Store>> {
        match self {
            Self::Vmemkv(variant) => Ok(Box::new(VmemkvStore::open(dir, *variant)?)),
            Self::Rival(_) => {
                self.check_built()?;
                bail!("the store {} cannot be opened", self.name())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_variants() {
        let name = |text: &str| text.parse::<StoreName>().map(|store| store.name());
        assert_eq!(name("vmemkv"), Ok("vmemkv".into()));
        assert_eq!(name("vmemkv:inline"), Ok("vmemkv".into()));
        assert_eq!(name("vmemkv:pinseq"), Ok("vmemkv:pinseq".into()));
        assert_eq!(name("rocksdb:tuned"), Ok("rocksdb:tuned".into()));
        assert!(name("vmemkv:other").is_err());
        assert!(name("leveldb").is_err());
    }

    #[test]
    fn a_rival_is_refused_and_not_pretended() {
        let store: StoreName = "lmdb".parse().expect("name");
        let error = store.check_built().expect_err("refused").to_string();
        assert!(error.contains("not built yet"));
        assert!(store.open(Path::new("nowhere")).is_err());
    }
}
