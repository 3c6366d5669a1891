//! Values: incompressible, and a function of the record number, so that each can be checked.
//!
//! Invariants: a value that the window writes differs from the loaded one of the same record; a
//! written value is a slice of one random pool, so that handing it out copies nothing.

use crate::workload::{Flavour, Scenario};

const POOL_OFFSETS: u64 = 1 << 16;
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const SMALL_BYTES: usize = 8;

/// The values of a corpus.
pub(crate) struct Values {
    flavour: Flavour,
    full_bytes: usize,
    pool: Vec<u8>,
}

impl Values {
    /// The values of a scenario.
    pub(crate) fn new(scenario: Scenario, flavour: Flavour) -> Self {
        Self::of_size(scenario.value_bytes(), flavour)
    }

    /// Values of `full_bytes`; a fifth of the seeds' is small.
    pub(crate) fn of_size(full_bytes: usize, flavour: Flavour) -> Self {
        let mut pool = vec![0; full_bytes + 8 * POOL_OFFSETS as usize];
        fill(&mut pool, 0x5eed);
        Self { flavour, full_bytes, pool }
    }

    /// The size of record `index` when it is loaded or inserted: a fifth of the seeds' records is
    /// small.
    pub(crate) fn bytes_of(&self, index: u64) -> usize {
        let small = self.flavour == Flavour::Seed && index.is_multiple_of(5);
        if small { SMALL_BYTES.min(self.full_bytes) } else { self.full_bytes }
    }

    /// The value that record `index` is loaded with.
    pub(crate) fn loaded(&self, index: u64) -> Vec<u8> {
        let mut value = vec![0; self.bytes_of(index)];
        fill(&mut value, index.wrapping_mul(GOLDEN).wrapping_add(1));
        value
    }

    /// The value that the window inserts as record `index`.
    pub(crate) fn inserted(&self, index: u64) -> &[u8] {
        self.pooled(index, self.bytes_of(index))
    }

    /// The value that the `number`-th operation of a thread gives to record `index`: always of
    /// full size. It depends on both, so that a lost update shows even if the key had others.
    pub(crate) fn updated(&self, index: u64, number: u64) -> &[u8] {
        self.pooled(index ^ number.wrapping_add(1).rotate_right(24), self.full_bytes)
    }

    fn pooled(&self, index: u64, bytes: usize) -> &[u8] {
        let offset = 8 * (index.wrapping_mul(GOLDEN) >> 32 & (POOL_OFFSETS - 1)) as usize;
        &self.pool[offset..offset + bytes]
    }
}

/// xorshift64 from `seed`, which must not be 0.
fn fill(out: &mut [u8], seed: u64) {
    let mut state = seed.max(1);
    for chunk in out.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_seeds_values_is_small() {
        let values = Values::new(Scenario::Mem1Kb, Flavour::Seed);
        assert_eq!(values.loaded(0).len(), 8);
        assert_eq!(values.loaded(5).len(), 8);
        assert_eq!(values.loaded(6).len(), 1024);
        assert_eq!(values.updated(5, 0).len(), 1024);
        let field = Values::new(Scenario::Mem1Kb, Flavour::Field);
        assert_eq!(field.loaded(5).len(), 1024);
        assert_eq!(Values::new(Scenario::Mem8B, Flavour::Field).loaded(1).len(), 8);
    }

    #[test]
    fn values_differ_by_record_and_by_origin() {
        let values = Values::new(Scenario::Mem1Kb, Flavour::Seed);
        for index in 1..200 {
            assert_ne!(values.loaded(index), values.loaded(index - 1));
            assert_ne!(values.inserted(index), values.inserted(index - 1));
            assert_ne!(values.loaded(index), values.inserted(index));
            assert_ne!(values.updated(index, 7), values.updated(index, 8));
        }
    }

    #[test]
    fn bytes_are_evenly_spread() {
        let values = Values::new(Scenario::Ltm64Kb, Flavour::Field);
        let mut counts = [0usize; 256];
        for &byte in &values.loaded(7) {
            counts[byte as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (150..370).contains(&count)));
    }
}
