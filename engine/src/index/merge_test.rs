//! Merges against a map, over and over, with nasty keys and cut ranges.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::append_region::AppendRegion;
use super::entry::Entry;
use super::merge::{Tombstones, merge};
use super::sorted_region::{BLOCK_ENTRIES, SortedRegion};
use super::test_keys::{Random, nasty_keys, short_key};
use crate::types::KeyRange;

type Model = BTreeMap<Vec<u8>, Entry>;

fn contents(region: &SortedRegion) -> Model {
    let mut all = Model::new();
    let mut cursor = region.cursor();
    cursor.seek_first();
    while let (Some(key), Some(cell)) = (cursor.key(), cursor.cell()) {
        assert!(all.last_key_value().is_none_or(|(last, _)| last.as_slice() < key));
        all.insert(key.to_vec(), cell.load());
        cursor.next();
    }
    assert_eq!(all.len(), region.len());
    all
}

fn random_entry(random: &mut Random) -> Entry {
    match random.below(4) {
        0 => Entry::tombstone(),
        1 => Entry::inline(&random.next().to_le_bytes()[..random.below(9)]).unwrap(),
        _ => Entry::value(random.next()),
    }
}

#[test]
fn newest_wins_and_tombstones_go() {
    let keys = nasty_keys();
    for bloom in [false, true] {
        let mut random = Random(3 + u64::from(bloom));
        let mut sorted = SortedRegion::empty();
        let mut model = Model::new();
        for round in 0..60 {
            let frozen = AppendRegion::new(1000);
            // Some rounds touch a small part of the keys only.
            let from = random.below(keys.len());
            let span = if round % 3 == 0 { keys.len() } else { 1 + random.below(40) };
            for _ in 0..random.below(400) {
                let key = if random.below(5) == 0 {
                    short_key(&mut random)
                } else {
                    keys[(from + random.below(span)) % keys.len()].clone()
                };
                let entry = random_entry(&mut random);
                match frozen.find(&key) {
                    Some(cell) => cell.store(entry),
                    None => {
                        assert!(frozen.try_reserve(1));
                        frozen.insert(&key, entry);
                    }
                }
                model.insert(key, entry);
            }
            // In-place changes of the sorted region, as between two freezes.
            for _ in 0..random.below(20) {
                let key = &keys[random.below(keys.len())];
                if let (None, Some(cell)) = (frozen.find(key), sorted.find(key)) {
                    let entry = random_entry(&mut random);
                    cell.store(entry);
                    model.insert(key.clone(), entry);
                }
            }
            sorted =
                merge(Some(&frozen), &sorted, &KeyRange::all(), bloom, Tombstones::Drop, &|| ());
            model.retain(|_, entry| !entry.is_tombstone());
            assert!(contents(&sorted) == model, "round {round}");
            assert!(keys.iter().chain(model.keys()).all(|key| {
                sorted.find(key).map(|cell| cell.load()) == model.get(key).copied()
            }));
            assert_eq!(sorted.live(), model.len());
            assert_eq!(sorted.filter().is_some(), bloom);
        }
    }
}

#[test]
fn a_range_cuts_both_regions() {
    let keys = nasty_keys();
    let frozen = AppendRegion::new(keys.len());
    let mut first = AppendRegion::new(keys.len());
    for region in [&frozen, &first] {
        assert!(region.try_reserve(keys.len()));
    }
    for (n, key) in keys.iter().enumerate() {
        first.insert(key, Entry::value(n as u64));
        if n % 7 == 0 {
            frozen.insert(key, Entry::value(1_000_000 + n as u64));
        }
    }
    let sorted = merge(
        Some(&first),
        &SortedRegion::empty(),
        &KeyRange::all(),
        true,
        Tombstones::Drop,
        &|| (),
    );
    let whole =
        contents(&merge(Some(&frozen), &sorted, &KeyRange::all(), true, Tombstones::Drop, &|| ()));
    first = AppendRegion::new(1);
    let mut random = Random(5);
    for _ in 0..100 {
        let (a, b) = (&keys[random.below(keys.len())], &keys[random.below(keys.len())]);
        let range = KeyRange::new(a.min(b).clone(), a.max(b).clone());
        for frozen in [Some(&frozen), Some(&first), None] {
            let merged = contents(&merge(frozen, &sorted, &range, true, Tombstones::Drop, &|| ()));
            let source = match frozen {
                Some(region) if region.len() > 0 => &whole,
                _ => &contents(&sorted),
            };
            let inside = |(key, _): &(&Vec<u8>, &Entry)| range.contains(key);
            let expected: Model =
                source.iter().filter(inside).map(|(k, e)| (k.clone(), *e)).collect();
            assert!(merged == expected);
        }
    }
}

#[test]
fn a_small_merge_shares_what_it_does_not_touch() {
    let first = AppendRegion::new(64_000);
    assert!(first.try_reserve(64_000));
    (0..64_000u64).for_each(|n| first.insert(format!("{n:08}").as_bytes(), Entry::value(n)));
    let old = merge(
        Some(&first),
        &SortedRegion::empty(),
        &KeyRange::all(),
        true,
        Tombstones::Drop,
        &|| (),
    );
    let frozen = AppendRegion::new(10);
    assert!(frozen.try_reserve(10));
    (0..10).for_each(|n| frozen.insert(format!("00030000/{n}").as_bytes(), Entry::value(n)));
    let new = merge(Some(&frozen), &old, &KeyRange::all(), true, Tombstones::Drop, &|| ());
    assert_eq!(new.len(), 64_010);
    let shared = new
        .blocks()
        .iter()
        .filter(|block| old.blocks().iter().any(|old| Arc::ptr_eq(old, block)))
        .count();
    assert!(shared >= old.blocks().len() - 2, "{shared} of {} blocks", old.blocks().len());
    // Deletions must not leave crumbs behind.
    let mut region = new;
    for round in 0..20 {
        let frozen = AppendRegion::new(4000);
        assert!(frozen.try_reserve(3200));
        (0..64_000u64)
            .filter(|n| n % 20 == round)
            .for_each(|n| frozen.insert(format!("{n:08}").as_bytes(), Entry::tombstone()));
        region = merge(Some(&frozen), &region, &KeyRange::all(), true, Tombstones::Drop, &|| ());
        let average = region.len() / region.blocks().len();
        assert!(average >= BLOCK_ENTRIES / 3 || region.len() < 64, "{average} entries a block");
    }
    assert_eq!(region.len(), 10);
}
