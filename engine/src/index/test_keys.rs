//! Keys that are hard on an index, and a generator of numbers that a seed repeats.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// A small random generator (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

thread_local! {
    static YIELD: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread switches at every race window.
pub(super) fn yield_in_race_windows() {
    YIELD.set(true);
}

pub(super) fn yield_if_asked() {
    if YIELD.get() {
        std::thread::yield_now();
    }
}

/// Tells the other threads to stop when it goes, also by a panic: a failed test must not hang.
pub(super) struct StopOnDrop<'a>(pub(super) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A key of few different bytes, so that prefixes and neighbours are common.
pub(super) fn short_key(random: &mut Random) -> Vec<u8> {
    let len = 1 + random.below(6);
    (0..len).map(|_| [0, 1, b'a', b'b', 0xfe, 0xff][random.below(6)]).collect()
}

/// Every kind of key that is easily got wrong, ascending.
pub(super) fn nasty_keys() -> Vec<Vec<u8>> {
    let mut keys = BTreeSet::new();
    for base in [&b"a"[..], b"\0", b"\xff", b"tenant/table/"] {
        for zeros in 0..6 {
            keys.insert([base, &vec![0; zeros]].concat());
            keys.insert([base, &vec![0xff; zeros]].concat());
        }
    }
    // Prefixes of each other, up to the longest key.
    for len in (1..40).chain([199, 200, 201, 255, 256, 257, 4095, 4096]) {
        for byte in [0, b'x', 0xff] {
            keys.insert(vec![byte; len]);
        }
    }
    // The difference comes late, or in the last byte.
    let long = "tenant/4711/orders/".repeat(12).into_bytes();
    for n in 0..300u32 {
        keys.insert([&long[..210], n.to_string().as_bytes()].concat());
        keys.insert([&long[..100], &n.to_le_bytes()[..], &long[..100]].concat());
    }
    for byte in 0..=255u8 {
        let mut longest = vec![b'k'; 4096];
        longest[4095] = byte;
        keys.insert(longest);
        keys.insert(vec![byte]);
    }
    let mut random = Random(1);
    for _ in 0..2000 {
        keys.insert(short_key(&mut random));
    }
    keys.into_iter().collect()
}

/// Bounds around each key: itself, its successor, its parent, and the empty key.
pub(super) fn bounds(keys: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut bounds = BTreeSet::from([Vec::new()]);
    for key in keys {
        bounds.insert(key.clone());
        bounds.insert([key, &b"\0"[..]].concat());
        bounds.insert(key[..key.len() - 1].to_vec());
        bounds.insert([&key[..key.len() - 1], &[key[key.len() - 1].wrapping_add(1)]].concat());
    }
    bounds.into_iter().collect()
}

/// What both regions' cursors can do.
pub(super) trait AnyCursor {
    fn seek(&mut self, to: Seek<'_>);
    fn step(&mut self, reverse: bool);
    fn here(&self) -> Option<(&[u8], u64)>;
}

/// Where to.
#[derive(Clone, Copy)]
pub(super) enum Seek<'k> {
    First,
    Last,
    AtOrAfter(&'k [u8]),
    Before(&'k [u8]),
}

macro_rules! any_cursor {
    ($cursor:ty) => {
        impl AnyCursor for $cursor {
            fn seek(&mut self, to: Seek<'_>) {
                match to {
                    Seek::First => self.seek_first(),
                    Seek::Last => self.seek_last(),
                    Seek::AtOrAfter(key) => self.seek_at_or_after(key),
                    Seek::Before(key) => self.seek_before(key),
                }
            }
            fn step(&mut self, reverse: bool) {
                if reverse { self.prev() } else { self.next() }
            }
            fn here(&self) -> Option<(&[u8], u64)> {
                Some((self.key()?, self.cell()?.load().payload))
            }
        }
    };
}
any_cursor!(super::append_region::AppendCursor<'_>);
any_cursor!(super::sorted_region::SortedCursor<'_>);

/// Checks a cursor over `expected` (ascending), whole and from each of `bounds`, both ways.
pub(super) fn check_cursor(
    cursor: &mut impl AnyCursor,
    expected: &[(Vec<u8>, u64)],
    bounds: &[Vec<u8>],
) {
    let at = |n: usize| expected.get(n).map(|(key, payload)| (&key[..], *payload));
    assert_eq!(cursor.here(), None);
    cursor.seek(Seek::First);
    for n in 0..=expected.len() {
        assert_eq!(cursor.here(), at(n));
        cursor.step(false);
    }
    cursor.seek(Seek::Last);
    for n in (0..expected.len()).rev() {
        assert_eq!(cursor.here(), at(n));
        cursor.step(true);
    }
    assert_eq!(cursor.here(), None);
    cursor.step(false);
    assert_eq!(cursor.here(), None);
    for bound in bounds {
        let n = expected.partition_point(|(key, _)| key < bound);
        for reverse_first in [false, true] {
            cursor.seek(Seek::AtOrAfter(bound));
            assert_eq!(cursor.here(), at(n));
            cursor.step(reverse_first);
            let next = if reverse_first && n < expected.len() { n.wrapping_sub(1) } else { n + 1 };
            assert_eq!(cursor.here(), at(next));
        }
        cursor.seek(Seek::Before(bound));
        assert_eq!(cursor.here(), at(n.wrapping_sub(1)));
        cursor.step(true);
        assert_eq!(cursor.here(), at(n.wrapping_sub(2)));
    }
}
