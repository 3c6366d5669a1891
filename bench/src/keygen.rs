//! Keys of the two flavours, and a permutation for orders that look random.
//!
//! Invariants: key order is index order in both flavours; an existing, a missing and a new key
//! are never the same; all keys of a flavour have one length.
//!
//! Seed: `k` and 15 hexadecimal digits. Field: 24 bytes that all keys share, then 16 digits of
//! twice the index, so that the odd numbers lie between the keys.

use crate::workload::Flavour;

const FIELD_PREFIX: &[u8; 24] = b"tenant/0042/documents/v1";
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Which key of the flavour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyKind {
    /// Record `index` of the corpus.
    Existing,
    /// A key that is never there: seed beyond the largest, field between two keys.
    Missing,
    /// The key of the `index`-th insert: seed ascending, field anywhere between the keys.
    New {
        /// Records that were there before the inserts.
        loaded: u64,
    },
}

/// The keys of a corpus.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    flavour: Flavour,
    records: u64,
}

impl Keys {
    /// The keys of a corpus of `records`.
    pub(crate) fn new(flavour: Flavour, records: u64) -> Self {
        Self { flavour, records }
    }

    /// The length of each key.
    pub(crate) fn key_bytes(&self) -> usize {
        match self.flavour {
            Flavour::Seed => 16,
            Flavour::Field => FIELD_PREFIX.len() + 16,
        }
    }

    /// How many inserts have keys of their own.
    pub(crate) fn new_keys(&self) -> u64 {
        match self.flavour {
            Flavour::Seed => 1 << 40,
            Flavour::Field => self.records,
        }
    }

    /// Writes a key over `out`, which is [`key_bytes`](Self::key_bytes) long.
    pub(crate) fn write(&self, kind: KeyKind, index: u64, out: &mut [u8]) {
        match self.flavour {
            Flavour::Seed => {
                let number = match kind {
                    KeyKind::Existing => index,
                    KeyKind::Missing => self.records + index,
                    KeyKind::New { loaded } => loaded + index,
                };
                out[0] = b'k';
                write_hex(number, &mut out[1..]);
            }
            Flavour::Field => {
                let number = match kind {
                    KeyKind::Existing => 2 * index,
                    KeyKind::Missing => 2 * index + 1,
                    KeyKind::New { .. } => 2 * permute(index, self.records, 1) + 1,
                };
                out[..FIELD_PREFIX.len()].copy_from_slice(FIELD_PREFIX);
                write_hex(number, &mut out[FIELD_PREFIX.len()..]);
            }
        }
    }

    /// The same as a vector.
    pub(crate) fn key(&self, kind: KeyKind, index: u64) -> Vec<u8> {
        let mut key = vec![0; self.key_bytes()];
        self.write(kind, index, &mut key);
        key
    }

    /// The index of an existing key.
    pub(crate) fn index_of(&self, key: &[u8]) -> Option<u64> {
        let digits = match self.flavour {
            Flavour::Seed => key.strip_prefix(b"k")?,
            Flavour::Field => key.strip_prefix(FIELD_PREFIX)?,
        };
        let number = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        match self.flavour {
            Flavour::Seed => Some(number),
            Flavour::Field => (number % 2 == 0).then_some(number / 2),
        }
    }

    /// The record that is loaded as the `position`-th.
    pub(crate) fn load_order(&self, position: u64) -> u64 {
        match self.flavour {
            Flavour::Seed => position,
            Flavour::Field => permute(position, self.records, 2),
        }
    }

    /// The record that a rank of the Zipf distribution stands for.
    pub(crate) fn of_rank(&self, rank: u64, records: u64) -> u64 {
        match self.flavour {
            Flavour::Seed => rank,
            Flavour::Field => permute(rank, records, 3),
        }
    }
}

/// Writes a number as hexadecimal digits, as many as `out` is long.
pub(crate) fn write_hex(number: u64, out: &mut [u8]) {
    let mut rest = number;
    for digit in out.iter_mut().rev() {
        *digit = DIGITS[(rest & 15) as usize];
        rest >>= 4;
    }
}

/// A bijection of `0..n`: four rounds of a Feistel network over the next even power of two, walked
/// until the value lies below `n`.
pub(crate) fn permute(value: u64, n: u64, seed: u64) -> u64 {
    debug_assert!(value < n);
    let bits = (64 - n.saturating_sub(1).leading_zeros()).max(2).div_ceil(2);
    let mask = (1u64 << bits) - 1;
    let mut value = value;
    loop {
        let (mut left, mut right) = (value >> bits, value & mask);
        for round in 0..4 {
            let mixed = mix(right ^ (seed << 56) ^ (round << 48)) & mask;
            (left, right) = (right, left ^ mixed);
        }
        value = (left << bits) | right;
        if value < n {
            return value;
        }
    }
}

/// The finaliser of splitmix64: a bijection.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn seed_keys_are_those_of_the_seeds() {
        let keys = Keys::new(Flavour::Seed, 1000);
        assert_eq!(keys.key(KeyKind::Existing, 0), b"k000000000000000");
        assert_eq!(keys.key(KeyKind::Existing, 255), b"k0000000000000ff");
        assert_eq!(keys.key(KeyKind::Missing, 0), b"k0000000000003e8");
        assert_eq!(keys.key(KeyKind::New { loaded: 0 }, 3), b"k000000000000003");
        assert_eq!(keys.load_order(7), 7);
        assert_eq!(keys.of_rank(7, 900), 7);
    }

    #[test]
    fn field_keys_share_24_bytes_and_misses_lie_between_them() {
        let keys = Keys::new(Flavour::Field, 1000);
        let (a, b) = (keys.key(KeyKind::Existing, 4), keys.key(KeyKind::Existing, 5));
        let miss = keys.key(KeyKind::Missing, 4);
        assert_eq!(a.len(), 40);
        assert_eq!(a[..24], b[..24]);
        assert!(a < miss && miss < b);
    }

    #[test]
    fn keys_order_as_their_indices_and_lead_back_to_them() {
        for flavour in [Flavour::Seed, Flavour::Field] {
            let keys = Keys::new(flavour, 5000);
            let all: Vec<_> = (0..5000).map(|i| keys.key(KeyKind::Existing, i)).collect();
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
            for (index, key) in all.iter().enumerate() {
                assert_eq!(keys.index_of(key), Some(index as u64));
            }
        }
    }

    #[test]
    fn new_and_missing_keys_are_not_there() {
        for flavour in [Flavour::Seed, Flavour::Field] {
            let keys = Keys::new(flavour, 2000);
            let existing: HashSet<_> = (0..2000).map(|i| keys.key(KeyKind::Existing, i)).collect();
            let new: HashSet<_> =
                (0..2000).map(|i| keys.key(KeyKind::New { loaded: 2000 }, i)).collect();
            assert_eq!(new.len(), 2000);
            assert!(existing.is_disjoint(&new));
            assert!((0..2000).all(|i| !existing.contains(&keys.key(KeyKind::Missing, i))));
        }
    }

    #[test]
    fn permute_is_a_bijection_that_mixes() {
        for n in [1, 2, 3, 1000, 4096, 4097] {
            let seen: HashSet<_> = (0..n).map(|i| permute(i, n, 2)).collect();
            assert_eq!(seen.len() as u64, n);
            assert!(seen.iter().all(|&value| value < n));
        }
        let neighbours =
            (0..9999).filter(|&i| permute(i, 10_000, 2).abs_diff(permute(i + 1, 10_000, 2)) < 100);
        assert!(neighbours.count() < 500);
    }
}
