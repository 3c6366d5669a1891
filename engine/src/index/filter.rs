//! A blocked bloom filter over key hashes: a miss costs one cache line.
//!
//! Invariants: a hash that was added is always reported; the layout is part of the index file's
//! format (version 1), so it never changes without a new version.

/// Bits for each expected key: about 1 % false positives.
const BITS_PER_KEY: usize = 10;
/// Bytes of a line.
const LINE_BYTES: usize = 64;
/// Odd multipliers that pick one bit of each word; part of the format.
const SALTS: [u32; 8] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// One cache line: a hash sets one bit in each of its words.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(64))]
struct Line([u64; 8]);

const _: () = assert!(size_of::<Line>() == LINE_BYTES);

/// A bloom filter.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Filter {
    lines: Vec<Line>,
    /// Hashes added so far, dead keys and repetitions included.
    added: usize,
}

impl Filter {
    /// An empty filter for about `keys` keys.
    pub(crate) fn new(keys: usize) -> Self {
        let lines = Self::lines_for(keys);
        Self { lines: vec![Line::default(); lines.min(u32::MAX as usize)], added: 0 }
    }

    /// Whether `keys` more keys can be added at the usual false positive rate.
    pub(crate) fn has_room_for(&self, keys: usize) -> bool {
        let capacity = self.lines.len() * LINE_BYTES * 8 / BITS_PER_KEY;
        self.added.saturating_add(keys) <= capacity
    }

    /// The bits of a hash in its line.
    #[inline]
    fn bits(hash: u64) -> [u64; 8] {
        SALTS.map(|salt| 1u64 << ((hash as u32).wrapping_mul(salt) >> 26))
    }

    /// The line of a hash.
    #[inline]
    fn line(&self, hash: u64) -> usize {
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    /// Whether so many keys would do with half of it, or less.
    pub(crate) fn is_large_for(&self, keys: usize) -> bool {
        self.lines.len() > 2 * Self::lines_for(keys)
    }

    fn lines_for(keys: usize) -> usize {
        (keys.saturating_mul(BITS_PER_KEY)).div_ceil(LINE_BYTES * 8).max(1)
    }

    /// Adds a key's hash.
    pub(crate) fn add(&mut self, hash: u64) {
        self.added += 1;
        let at = self.line(hash);
        for (word, bit) in self.lines[at].0.iter_mut().zip(Self::bits(hash)) {
            *word |= bit;
        }
    }

    /// False: the hash was never added.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        let line = &self.lines[self.line(hash)];
        let missing = line.0.iter().zip(Self::bits(hash)).fold(0, |all, (w, bit)| all | (bit & !w));
        missing == 0
    }

    /// Memory in bytes; also the length of the stored form.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }

    /// Hands the stored form to `sink`, line by line.
    pub(crate) fn write(&self, mut sink: impl FnMut(&[u8])) {
        for line in &self.lines {
            let mut bytes = [0; LINE_BYTES];
            for (part, word) in bytes.chunks_exact_mut(8).zip(line.0) {
                part.copy_from_slice(&word.to_le_bytes());
            }
            sink(&bytes);
        }
    }

    /// The filter with this stored form, of `keys` keys, or `None` when no filter is stored like
    /// that.
    pub(crate) fn read(bytes: &[u8], keys: usize) -> Option<Self> {
        let (lines, rest) = bytes.as_chunks::<LINE_BYTES>();
        if lines.is_empty() || !rest.is_empty() || lines.len() > u32::MAX as usize {
            return None;
        }
        let line = |bytes: &[u8; LINE_BYTES]| {
            let mut words = [0; 8];
            for (word, part) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*part);
            }
            Line(words)
        };
        Some(Self { lines: lines.iter().map(line).collect(), added: keys })
    }
}

#[cfg(test)]
mod tests {
    use super::super::key_hash;
    use super::*;

    #[test]
    fn no_false_negatives_and_few_false_positives() {
        for keys in [0usize, 1, 50, 1000, 100_000] {
            let mut filter = Filter::new(keys);
            let hash = |n: usize| key_hash(format!("tenant/table/{n}").as_bytes());
            (0..keys).for_each(|n| filter.add(hash(n)));
            assert!((0..keys).all(|n| filter.may_contain(hash(n))));
            assert!(Filter::new(keys).has_room_for(keys));
            assert!(!filter.has_room_for(keys + 52));
            let tries = 200_000;
            let wrong = (keys..keys + tries).filter(|&n| filter.may_contain(hash(n))).count();
            let rate = wrong as f64 / tries as f64;
            assert!(rate < 0.02, "{keys} keys: false positive rate {rate}");
        }
    }

    #[test]
    fn the_stored_form_comes_back() {
        let mut filter = Filter::new(300);
        (0..300u64).for_each(|n| filter.add(key_hash(&n.to_le_bytes())));
        let mut bytes = Vec::new();
        filter.write(|line| bytes.extend_from_slice(line));
        assert_eq!(bytes.len(), filter.memory_bytes());
        assert!(Filter::read(&bytes, 300).unwrap() == filter);
        assert!(Filter::read(&bytes[1..], 0).is_none() && Filter::read(&[], 0).is_none());
    }
}
