//! The sorted region against its input: nasty keys, block limits, shared blocks.

use std::sync::Arc;

use crate::types::KeyRange;

use super::{BLOCK_ENTRIES, BLOCK_SUFFIX_BYTES, SortedBuilder, SortedRegion};
use crate::index::entry::Entry;
use crate::index::test_keys::{bounds, check_cursor, nasty_keys};

fn build(entries: &[(Vec<u8>, u64)], bloom: bool) -> SortedRegion {
    let mut builder = SortedBuilder::new(entries.len(), bloom);
    entries.iter().for_each(|(key, n)| builder.push(key, Entry::value(*n), false));
    builder.finish()
}

fn check(region: &SortedRegion, present: &[(Vec<u8>, u64)], around: &[Vec<u8>]) {
    assert_eq!((region.len(), region.live()), (present.len(), present.len()));
    for key in around {
        let expected = present.binary_search_by(|(k, _)| k.cmp(key)).ok();
        let expected = expected.map(|at| Entry::value(present[at].1));
        assert_eq!(region.find(key).map(|cell| cell.load()), expected, "{}", key.escape_ascii());
    }
    check_cursor(&mut region.cursor(), present, around);
}

#[test]
fn agrees_with_its_input_on_nasty_keys() {
    let keys = nasty_keys();
    let around = bounds(&keys);
    for (bloom, step) in [(false, 1), (true, 2), (true, 1)] {
        let present: Vec<_> =
            keys.iter().step_by(step).enumerate().map(|(n, key)| (key.clone(), n as u64)).collect();
        check(&build(&present, bloom), &present, &around);
    }
}

#[test]
fn small_and_empty_regions() {
    let around = bounds(&[b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
    check(&SortedRegion::empty(), &[], &around);
    for count in [1, 2, 63, 64, 65, 127, 128, 129, 193] {
        let present: Vec<_> = (0..count).map(|n| (format!("k{n:05}").into_bytes(), n)).collect();
        let keys: Vec<_> = present.iter().map(|(key, _)| key.clone()).collect();
        let region = build(&present, true);
        check(&region, &present, &bounds(&keys));
        let blocks = region.blocks();
        assert_eq!(blocks.len(), (count as usize).div_ceil(BLOCK_ENTRIES));
    }
}

#[test]
fn long_suffixes_make_smaller_blocks() {
    // Nothing in common, 4 KiB each: 64 of them would overflow the offsets.
    let present: Vec<_> = (0..=255u8).map(|byte| (vec![byte; 4096], u64::from(byte))).collect();
    let region = build(&present, false);
    let suffixes = |block: &super::Block| (0..block.count()).map(|n| block.suffix(n).len()).sum();
    assert!(region.blocks().iter().all(|block| {
        let bytes: usize = suffixes(block);
        bytes <= BLOCK_SUFFIX_BYTES && block.count() >= 4
    }));
    let keys: Vec<_> = present.iter().map(|(key, _)| key.clone()).collect();
    check(&region, &present, &bounds(&keys));
}

#[test]
fn shared_prefixes_are_stored_once_for_a_block() {
    let prefix = "tenant/4711/orders/2026/".repeat(8);
    let present: Vec<_> =
        (0..64_000).map(|n| (format!("{prefix}{n:08}").into_bytes(), n)).collect();
    let region = build(&present, false);
    let per_key = region.memory_bytes() as f64 / present.len() as f64;
    assert!(per_key < 22.0, "{per_key} bytes for a key");
}

#[test]
fn entries_change_in_place_and_tombstones_are_counted() {
    let present: Vec<_> = (0..200u64).map(|n| (n.to_string().repeat(2).into_bytes(), n)).collect();
    let mut present: Vec<_> = present;
    present.sort();
    let region = build(&present, true);
    for (key, n) in &present {
        let entry = if n % 2 == 0 { Entry::tombstone() } else { Entry::value(n + 1000) };
        region.find(key).unwrap().store(entry);
    }
    assert_eq!((region.len(), region.live()), (200, 100));
    for (key, n) in &present {
        let entry = region.find(key).unwrap().load();
        assert_eq!(entry.is_tombstone(), n % 2 == 0);
        assert!(n % 2 == 0 || entry == Entry::value(n + 1000));
    }
}

#[test]
fn whole_blocks_are_shared() {
    let present: Vec<_> = (0..640u64).map(|n| (format!("{n:04}").into_bytes(), n)).collect();
    let old = build(&present, true);
    for known in [false, true] {
        let mut builder = if known {
            SortedBuilder::with_filter(old.filter().cloned())
        } else {
            SortedBuilder::new(old.len() + 2, true)
        };
        builder.push(b"00", Entry::value(9000), false);
        // One entry would make too small a block.
        assert!(!builder.push_block(&old.blocks()[0]));
        for (key, n) in &present[..64] {
            builder.push(key, Entry::value(*n), false);
        }
        assert!(old.blocks()[1..].iter().all(|block| builder.push_block(block)));
        let new = builder.finish();
        let mut expected = vec![(b"00".to_vec(), 9000)];
        expected.extend(present.iter().cloned());
        let keys: Vec<_> = expected.iter().map(|(key, _)| key.clone()).collect();
        check(&new, &expected, &bounds(&keys));
        let shared = |block: &Arc<_>| old.blocks().iter().any(|old| Arc::ptr_eq(old, block));
        assert_eq!(new.blocks().iter().filter(|block| shared(block)).count(), 9);
        assert!(new.blocks().iter().all(|block| block.count() >= BLOCK_ENTRIES / 2));
    }
}

#[test]
fn samples_are_few_and_stand_for_all_blocks_of_a_range() {
    let key = |n: u64| format!("{n:06}").into_bytes();
    let entries: Vec<_> = (0..20_000).map(|n| (key(n), n)).collect();
    let region = build(&entries, false);
    let count = region.blocks().len();
    assert!(count > 200, "{count}");
    let whole = KeyRange::new("", "");
    for most in [1, 7, 100, count, 2 * count] {
        let samples = region.sample(&whole, most);
        assert!(samples.len() <= most && samples.len() * 2 > most.min(count), "{most}");
        assert_eq!(samples.iter().map(|(_, blocks)| blocks).sum::<usize>(), count);
        assert_eq!(samples[0].0.key(), Some(&*key(0)));
        assert!(samples.windows(2).all(|pair| pair[0].0.key() < pair[1].0.key()));
    }
    // A part of it: only blocks that may hold some of it.
    let samples = region.sample(&KeyRange::new(key(5_000), key(6_000)), 10);
    assert!(samples.len() <= 10 && samples[0].0.key() <= Some(&*key(5_000)));
    let blocks: usize = samples.iter().map(|(_, blocks)| blocks).sum();
    assert!((blocks as f64) < count as f64 / 20.0 * 1.5, "{blocks} of {count}");
    assert_eq!(region.sample(&KeyRange::new("a", ""), 10).len(), 1, "behind all keys");
    assert!(SortedRegion::empty().sample(&whole, 10).is_empty());
}
