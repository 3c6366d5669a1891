//! The chain of nonces that tells a data directory from a copy of it.
//!
//! Invariants: each start has a random nonce, stored in the file `NODE` before a router hears it; a
//! router accepts a start only if it names the nonce that it knows, so two directories that go on
//! from one copy cannot both be accepted. A start whose registration was never confirmed may or may
//! not be known to the routers: its nonce stays a candidate until one is confirmed.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vmemkv_engine::io::{self, OsDisk};
use vmemkv_engine::{Error, Result};

/// The file, in the data directory.
const FILE: &str = "NODE";
/// The format of the file.
const FORMAT: u32 = 1;
/// Most starts without a confirmed registration that are remembered.
const CANDIDATES_MAX: usize = 16;

/// What the file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NonceChain {
    format: u32,
    /// The start that the nonce is for.
    boot: u64,
    /// The nonce of that start.
    nonce: u64,
    /// A router has accepted it.
    confirmed: bool,
    /// Nonces of earlier starts that a router may know, the newest first.
    previous: Vec<u64>,
}

impl NonceChain {
    /// The chain for the start with number `boot`; the first call of a start makes its nonce.
    pub(super) fn of_start(dir: &Path, boot: u64) -> Result<Self> {
        let stored = Self::load(dir)?;
        if let Some(stored) = &stored
            && stored.boot == boot
        {
            return Ok(stored.clone());
        }
        let chain = Self::next(stored, boot, rand::random_range(1..=u64::MAX));
        chain.store(dir)?;
        Ok(chain)
    }

    fn next(stored: Option<Self>, boot: u64, nonce: u64) -> Self {
        let mut previous = Vec::new();
        if let Some(stored) = stored {
            previous.push(stored.nonce);
            if !stored.confirmed {
                previous.extend(stored.previous);
            }
        }
        if previous.len() > CANDIDATES_MAX {
            // The oldest one is the last that a router surely knew: keep it.
            previous.remove(CANDIDATES_MAX - 1);
        }
        Self { format: FORMAT, boot, nonce, confirmed: false, previous }
    }

    /// The nonce of this start.
    pub(super) fn nonce(&self) -> u64 {
        self.nonce
    }

    /// What to call the previous nonce, in the order of likelihood; 0: there is none.
    pub(super) fn candidates(&self) -> Vec<u64> {
        if self.previous.is_empty() { vec![0] } else { self.previous.clone() }
    }

    /// The chain once a router has accepted this start.
    pub(super) fn confirmed(self) -> Self {
        Self { confirmed: true, ..self }
    }

    /// Writes the file, durably.
    pub(super) fn store(&self, dir: &Path) -> Result<()> {
        let content = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::invalid(format!("{FILE}: {error}")))?;
        io::replace_file(&OsDisk::new(dir), Path::new(FILE), &content)
    }

    fn load(dir: &Path) -> Result<Option<Self>> {
        let path: PathBuf = dir.join(FILE);
        let content = match std::fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &path, &error)),
        };
        let chain: Self =
            serde_json::from_slice(&content).map_err(|error| Error::corrupt(&path, 0, error))?;
        if chain.format != FORMAT {
            return Err(Error::foreign(&path, format!("format {} is not known", chain.format)));
        }
        Ok(Some(chain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_keeps_its_nonce_and_the_next_one_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = NonceChain::of_start(dir.path(), 1).unwrap();
        assert_eq!(first.candidates(), [0]);
        assert_eq!(NonceChain::of_start(dir.path(), 1).unwrap(), first);
        first.clone().confirmed().store(dir.path()).unwrap();
        let second = NonceChain::of_start(dir.path(), 2).unwrap();
        assert_ne!(second.nonce(), first.nonce());
        assert_eq!(second.candidates(), [first.nonce()]);
    }

    #[test]
    fn starts_that_nobody_confirmed_stay_candidates() {
        let dir = tempfile::tempdir().unwrap();
        let first = NonceChain::of_start(dir.path(), 1).unwrap().confirmed();
        first.store(dir.path()).unwrap();
        let second = NonceChain::of_start(dir.path(), 2).unwrap();
        let third = NonceChain::of_start(dir.path(), 3).unwrap();
        assert_eq!(third.candidates(), [second.nonce(), first.nonce()]);
    }

    #[test]
    fn candidates_are_bounded_and_keep_the_oldest() {
        let mut chain = NonceChain::next(None, 1, 1).confirmed();
        for boot in 2..100 {
            chain = NonceChain::next(Some(chain), boot, boot);
        }
        let candidates = chain.candidates();
        assert_eq!(candidates.len(), CANDIDATES_MAX);
        assert_eq!((candidates[0], candidates.last()), (98, Some(&1)));
    }

    #[test]
    fn a_broken_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), b"{").unwrap();
        let error = NonceChain::of_start(dir.path(), 1).unwrap_err();
        assert!(error.message().contains("NODE"), "{error}");
    }
}
