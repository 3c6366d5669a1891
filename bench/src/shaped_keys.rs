//! Keys of a chosen length and shared prefix.
//!
//! Invariants: all keys are of one length and differ; the number of a key decides it, so that it can
//! be written in any order and found again.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::keygen::{mix, permute, write_hex};

const TEXT: &[u8] = b"tenant/0042/documents/v1/";
const DIGITS: usize = 16;

/// What follows the shared prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KeyShape {
    /// Ascending numbers, as the seeds' keys: neighbours have most digits in common
    Dense,
    /// 16 random digits: neighbours have few digits in common
    Scattered,
}

/// The keys of a corpus.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ShapedKeys {
    /// Length of each key.
    pub(crate) key_bytes: usize,
    /// Leading bytes that all keys have in common by intent.
    pub(crate) shared_prefix: usize,
    /// What follows.
    pub(crate) shape: KeyShape,
    /// How many.
    pub(crate) records: u64,
}

impl ShapedKeys {
    /// The keys of the seeds: 16 bytes, dense.
    pub(crate) fn of_seeds(records: u64) -> Self {
        Self { key_bytes: 16, shared_prefix: 0, shape: KeyShape::Dense, records }
    }

    /// Refuses lengths that cannot tell the keys apart.
    pub(crate) fn check(&self) -> Result<()> {
        let digits = self.key_bytes.saturating_sub(self.shared_prefix);
        let needed = match self.shape {
            KeyShape::Dense => 1 + self.records.max(2).ilog(16) as usize,
            KeyShape::Scattered => DIGITS,
        };
        ensure!(
            digits >= needed && self.key_bytes <= vmemkv_engine::MAX_KEY_BYTES,
            "--key-bytes {} with --shared-prefix {} leaves {digits} bytes: {needed} are needed, and a \
             key is at most {} long",
            self.key_bytes,
            self.shared_prefix,
            vmemkv_engine::MAX_KEY_BYTES
        );
        Ok(())
    }

    /// The key of record `index`.
    pub(crate) fn key(&self, index: u64) -> Vec<u8> {
        let mut key: Vec<u8> = TEXT.iter().copied().cycle().take(self.shared_prefix).collect();
        key.resize(self.key_bytes, b'0');
        let number = match self.shape {
            KeyShape::Dense => index,
            KeyShape::Scattered => mix(index),
        };
        let digits = DIGITS.min(self.key_bytes - self.shared_prefix);
        write_hex(number, &mut key[self.key_bytes - digits..]);
        key
    }

    /// The record that is loaded as the `position`-th, in an order that looks random.
    pub(crate) fn loaded(&self, position: u64) -> u64 {
        permute(position, self.records, 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn keys(key_bytes: usize, shared_prefix: usize, shape: KeyShape) -> ShapedKeys {
        ShapedKeys { key_bytes, shared_prefix, shape, records: 5000 }
    }

    #[test]
    fn all_differ_and_share_the_prefix() {
        for (key_bytes, prefix, shape) in [
            (16, 0, KeyShape::Dense),
            (4, 0, KeyShape::Dense),
            (40, 24, KeyShape::Dense),
            (16, 0, KeyShape::Scattered),
            (40, 24, KeyShape::Scattered),
            (300, 200, KeyShape::Scattered),
        ] {
            let keys = keys(key_bytes, prefix, shape);
            keys.check().expect("right");
            let all: HashSet<_> = (0..5000).map(|i| keys.key(keys.loaded(i))).collect();
            assert_eq!(all.len(), 5000);
            let first = keys.key(0);
            assert!(
                all.iter().all(|key| key.len() == key_bytes && key[..prefix] == first[..prefix])
            );
        }
    }

    #[test]
    fn keys_that_could_not_differ_are_refused() {
        assert!(keys(3, 0, KeyShape::Dense).check().is_err());
        assert!(keys(16, 1, KeyShape::Scattered).check().is_err());
        assert!(keys(16, 24, KeyShape::Dense).check().is_err());
        assert!(keys(5000, 0, KeyShape::Dense).check().is_err());
    }
}
