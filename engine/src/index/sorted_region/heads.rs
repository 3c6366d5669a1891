//! Finds, among ascending keys, the last that is not greater than a given one, by 8 bytes of each.
//!
//! Invariants: the bytes are those behind what all the keys have in common; where they are equal
//! they say nothing, and the caller compares in full.

use std::cmp::Ordering as Order;

/// The decisive bytes of some ascending keys.
pub(super) struct Heads {
    /// What all the keys begin with.
    prefix: Box<[u8]>,
    heads: Box<[u64]>,
}

impl Heads {
    /// Of `count` keys, which `read` writes into its buffer.
    pub(super) fn new(count: usize, read: impl Fn(usize, &mut Vec<u8>)) -> Self {
        let (mut key, mut last) = (Vec::new(), Vec::new());
        if count > 0 {
            read(0, &mut key);
            read(count - 1, &mut last);
        }
        let common = common_prefix(&key, &last);
        let prefix = key[..common].into();
        let heads = (0..count).map(|index| {
            read(index, &mut key);
            head_of(&key[common..])
        });
        Self { heads: heads.collect(), prefix }
    }

    /// The last key that is not greater than `key`; `compare` says how the key of an index
    /// compares to `key`.
    #[inline]
    pub(super) fn last_not_greater(
        &self,
        key: &[u8],
        compare: impl Fn(usize) -> Order,
    ) -> Option<usize> {
        let Some(rest) = key.strip_prefix(&*self.prefix) else {
            // The prefix decides, the same way for all.
            return if key < &*self.prefix { None } else { self.heads.len().checked_sub(1) };
        };
        let head = head_of(rest);
        let mut low = self.heads.partition_point(|&first| first < head);
        let mut high = self.heads.len();
        // Equal heads are few as a rule, and next to each other.
        if self.heads.get(low) != Some(&head) {
            high = low;
        } else if self.heads.get(low + 1) != Some(&head) {
            high = low + 1;
        } else {
            high = low + self.heads[low..high].partition_point(|&first| first == head);
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            if compare(middle).is_le() { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1)
    }

    /// Memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.prefix.len() + size_of_val(&*self.heads)
    }
}

/// The first 8 bytes as a number whose order never contradicts the order of keys.
#[inline]
fn head_of(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    match key.first_chunk::<8>() {
        Some(first) => bytes = *first,
        None => bytes[..key.len()].copy_from_slice(key),
    }
    bytes.reverse();
    u64::from_le_bytes(bytes)
}

/// How many bytes two keys have in common at the start.
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::test_keys::{bounds, nasty_keys};

    #[test]
    fn heads_never_contradict_the_order() {
        let keys = nasty_keys();
        assert!(keys.windows(2).all(|pair| head_of(&pair[0]) <= head_of(&pair[1])));
    }

    #[test]
    fn finds_the_last_that_is_not_greater() {
        let all = nasty_keys();
        let around = bounds(&all);
        for keys in [&all[..0], &all[..1], &all[..], &all[1000..1300], &all[700..702]] {
            let heads = Heads::new(keys.len(), |n, key| key.clone_from(&keys[n]));
            for bound in &around {
                let expected = keys.partition_point(|key| key <= bound).checked_sub(1);
                assert_eq!(heads.last_not_greater(bound, |n| keys[n].cmp(bound)), expected);
            }
        }
    }
}
