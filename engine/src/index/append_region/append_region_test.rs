//! The append region against a map, under threads, and with hashes that collide.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::AppendRegion;
use crate::index::entry::Entry;
use crate::index::test_keys::{Random, StopOnDrop, bounds, check_cursor, nasty_keys};

fn shuffled<T>(mut items: Vec<T>, seed: u64) -> Vec<T> {
    let mut random = Random(seed);
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at + 1));
    }
    items
}

#[test]
fn agrees_with_a_map_on_nasty_keys() {
    let keys = nasty_keys();
    for seed in 0..3 {
        let region = AppendRegion::new(keys.len());
        assert!(region.find(b"a").is_none());
        let numbered: Vec<_> =
            keys.iter().enumerate().map(|(n, key)| (key.clone(), n as u64)).collect();
        // Every other key only.
        let some: Vec<_> = numbered.iter().filter(|(_, n)| n % 2 == seed % 2).cloned().collect();
        for (key, n) in shuffled(some.clone(), seed) {
            assert!(region.find(&key).is_none() && region.try_reserve(1));
            region.insert(&key, Entry::value(n));
            assert_eq!(region.find(&key).unwrap().load(), Entry::value(n));
        }
        for (key, n) in &numbered {
            let entry = region.find(key).map(|cell| cell.load());
            assert_eq!(entry, (n % 2 == seed % 2).then(|| Entry::value(*n)));
        }
        check_cursor(&mut region.cursor(), &some, &bounds(&keys));
        assert_eq!((region.len(), region.tombstones()), (some.len(), 0));
        region.find(&some[0].0).unwrap().store(Entry::tombstone());
        assert_eq!(region.tombstones(), 1);
        let key_bytes: usize = some.iter().map(|(key, _)| key.len()).sum();
        assert!(region.memory_bytes() > key_bytes);
    }
}

#[test]
fn is_full_exactly_at_capacity() {
    let region = AppendRegion::new(10);
    assert!(region.try_reserve(4) && !region.try_reserve(7) && region.try_reserve(6));
    assert!(!region.try_reserve(1) && region.try_reserve(0));
    assert!(!region.try_reserve(usize::MAX));
    region.unreserve(1);
    assert!(region.try_reserve(1) && !region.try_reserve(1));
    assert_eq!((region.reserved(), region.len(), region.capacity()), (10, 0, 10));
}

#[test]
fn keys_with_one_hash_are_still_different_keys() {
    let keys = nasty_keys();
    for hash in [0, u64::MAX, 0xffff_0000_0000_0000, 12345] {
        let region = AppendRegion::new(200);
        assert!(region.try_reserve(200));
        for (n, key) in keys.iter().take(200).enumerate() {
            assert!(region.find_hashed(hash, key).is_none());
            region.insert_hashed(hash, key, Entry::value(n as u64));
        }
        for (n, key) in keys.iter().take(200).enumerate() {
            assert_eq!(region.find_hashed(hash, key).unwrap().load(), Entry::value(n as u64));
        }
        assert!(region.find_hashed(hash, &keys[200]).is_none());
    }
}

/// Writers insert keys of their own; readers find whatever was announced, and iterate both ways:
/// always in order, never missing a key announced before they began, never repeating one.
#[test]
fn inserts_finds_and_iterations_at_once() {
    const WRITERS: usize = 3;
    const EACH: usize = 6000;
    let region = AppendRegion::new(WRITERS * EACH);
    let key = |writer: usize, n: usize| {
        let spread = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
        format!("tenant/table/{spread:08}/{n}/{writer}").into_bytes()
    };
    let payload = |writer: usize, n: usize| (writer * EACH + n) as u64;
    let announced: Vec<_> = (0..WRITERS).map(|_| AtomicUsize::new(0)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (region, announced) = (&region, &announced);
                scope.spawn(move || {
                    for n in 0..EACH {
                        assert!(region.try_reserve(1));
                        region.insert(&key(writer, n), Entry::value(payload(writer, n)));
                        announced[writer].store(n + 1, Ordering::Release);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut random = Random(7);
            while !stop.load(Ordering::Relaxed) {
                let writer = random.below(WRITERS);
                let done = announced[writer].load(Ordering::Acquire);
                if done > 0 {
                    let n = random.below(done);
                    let entry = region.find(&key(writer, n)).unwrap().load();
                    assert_eq!(entry, Entry::value(payload(writer, n)));
                }
            }
        });
        scope.spawn(|| {
            let mut reverse = false;
            while !stop.load(Ordering::Relaxed) {
                let before: Vec<_> =
                    announced.iter().map(|done| done.load(Ordering::Acquire)).collect();
                let mut cursor = region.cursor();
                if reverse {
                    cursor.seek_last();
                } else {
                    cursor.seek_first();
                }
                let mut seen = [0; WRITERS];
                let mut last: Option<&[u8]> = None;
                while let (Some(at), Some(cell)) = (cursor.key(), cursor.cell()) {
                    let ordered = last.is_none_or(|l| if reverse { at < l } else { at > l });
                    assert!(ordered, "out of order or repeated");
                    last = Some(at);
                    let n = cell.load().payload as usize;
                    assert_eq!(at, key(n / EACH, n % EACH));
                    seen[n / EACH] += usize::from(n % EACH < before[n / EACH]);
                    if reverse { cursor.prev() } else { cursor.next() }
                }
                assert_eq!(&seen[..], &before[..], "a key was missed");
                reverse = !reverse;
            }
        });
        let stopping = StopOnDrop(&stop);
        for writer in writers {
            writer.join().unwrap();
        }
        drop(stopping);
    });
    let expected: BTreeMap<_, _> =
        (0..WRITERS).flat_map(|w| (0..EACH).map(move |n| (key(w, n), payload(w, n)))).collect();
    let expected: Vec<_> = expected.into_iter().collect();
    check_cursor(&mut region.cursor(), &expected, &[]);
    assert!(region.len() == WRITERS * EACH && !region.try_reserve(1));
}

#[test]
fn the_dirty_flag_only_rises() {
    let region = AppendRegion::new(1);
    assert!(!region.was_written());
    region.mark_written();
    region.mark_written();
    assert!(region.was_written());
}
