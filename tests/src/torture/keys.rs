//! Which keys there are, who writes them, and what each of their writes is.
//!
//! Invariants: a key has one writer; write `n` of a key (from 1; 0 is "never written") is a pure
//! function of seed, key and `n`, so two numbers of a key say all that may be found; keys of one
//! unit are always written together, with the same `n`.

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Threads that write.
pub(super) const WRITERS: usize = 16;
/// Keys of a writer that are written alone.
const SINGLES: usize = 60;
/// Pairs of a writer that are written by one batch.
const TWINS: usize = 12;
/// Ranges of a writer that are deleted as a range.
const RANGES: usize = 2;
/// Keys of such a range.
const RANGE_KEYS: usize = 24;

/// How a unit is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Put, conditional put, delete of one key.
    Single,
    /// One batch: both or none.
    Twins,
    /// A batch of puts, now and then one `delete_range`.
    Range,
}

/// Keys that are written together.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// How.
    pub(super) kind: Kind,
    /// Numbers of the keys, ascending in key order.
    pub(super) keys: Vec<usize>,
}

/// All keys of a run.
pub(super) struct Keys {
    seed: u64,
    names: Vec<Vec<u8>>,
    kinds: Vec<Kind>,
    /// By writer.
    pub(super) units: Vec<Vec<Unit>>,
}

impl Keys {
    /// The keys of a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut keys = Self { seed, names: Vec::new(), kinds: Vec::new(), units: Vec::new() };
        for writer in 0..WRITERS {
            let mut units = Vec::new();
            for number in 0..SINGLES {
                units.push(keys.unit(Kind::Single, vec![single(writer, number)]));
            }
            for number in 0..TWINS {
                // Far from each other: on different shards once there are several.
                let name = |first: char| format!("{first}/twin/{writer:02}/{number:03}").into();
                units.push(keys.unit(Kind::Twins, vec![name('b'), name('y')]));
            }
            for number in 0..RANGES {
                let name = |i| format!("range/{writer:02}/{number}/{i:04}").into_bytes();
                units.push(keys.unit(Kind::Range, (0..RANGE_KEYS).map(name).collect()));
            }
            keys.units.push(units);
        }
        keys
    }

    fn unit(&mut self, kind: Kind, names: Vec<Vec<u8>>) -> Unit {
        let first = self.names.len();
        self.kinds.extend(names.iter().map(|_| kind));
        self.names.extend(names);
        Unit { kind, keys: (first..self.names.len()).collect() }
    }

    /// How many keys there are.
    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    /// A key's bytes.
    pub(super) fn name(&self, key: usize) -> &[u8] {
        &self.names[key]
    }

    /// The first key of the range that a key belongs to, and its end.
    pub(super) fn range_of(&self, key: usize) -> (Vec<u8>, Vec<u8>) {
        let name = &self.names[key];
        let prefix = &name[..name.len() - 4];
        (prefix.to_vec(), [prefix, b"~"].concat())
    }

    /// What write `n` of a key leaves: a value, or nothing.
    pub(super) fn written(&self, key: usize, n: u64) -> Option<Vec<u8>> {
        if n == 0 {
            return None;
        }
        let mut random = StdRng::seed_from_u64(
            self.seed ^ (key as u64) << 40 ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        );
        let gone = match self.kinds[key] {
            Kind::Single => random.random_bool(0.15),
            Kind::Twins => false,
            Kind::Range => n.is_multiple_of(6),
        };
        if gone {
            return None;
        }
        let len = match random.random_range(0..200) {
            0..50 => random.random_range(0..=9),
            50..120 => random.random_range(10..200),
            120..190 => random.random_range(200..3000),
            190..199 => random.random_range(3000..20_000),
            _ => random.random_range(20_000..300_000),
        };
        let mut value = vec![0; len];
        random.fill(&mut value[..]);
        Some(value)
    }
}

/// Names at the edges: shared prefixes, one the prefix of another, binary, long.
fn single(writer: usize, number: usize) -> Vec<u8> {
    let tail = [writer as u8, number as u8];
    match number % 6 {
        0 => format!("tenant/table/{:03}/{writer:02}", number * 7 % 101).into_bytes(),
        1 => [&[b'p'; 210][..], &tail].concat(),
        2 => [b"z", &tail[..], b"\0"].concat(),
        3 => [&[0xff, 0xff][..], &tail].concat(),
        4 => [&[0; 3][..], &tail].concat(),
        // With the one before it in the same table: a key and its prefix.
        _ => format!("tenant/table/{:03}/{writer:02}\0x", (number - 5) * 7 % 101).into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct_and_writes_are_the_same_each_time() {
        let keys = Keys::new(7);
        let mut names = keys.names.clone();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), keys.count());
        let again = Keys::new(7);
        assert!((0..50).all(|n| keys.written(3, n) == again.written(3, n)));
        assert!((0..50).any(|n| keys.written(3, n) != Keys::new(8).written(3, n)));
        assert!((1..50).any(|n| keys.written(3, n).is_none()));
        let unit = keys.units[2].iter().find(|unit| unit.kind == Kind::Range).expect("a range");
        let (start, end) = keys.range_of(unit.keys[0]);
        let inside = |key| keys.name(key) >= &start[..] && keys.name(key) < &end[..];
        assert_eq!((0..keys.count()).filter(|key| inside(*key)).count(), RANGE_KEYS);
    }
}
