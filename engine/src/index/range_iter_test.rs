//! The range iterator over three regions against a map.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::append_region::AppendRegion;
use super::bundle::{Bundle, Place};
use super::entry::Entry;
use super::range_iter::RangeIter;
use super::sorted_region::SortedBuilder;
use super::test_keys::{Random, bounds, nasty_keys};
use crate::types::KeyRange;

type Model = BTreeMap<Vec<u8>, (Entry, Place)>;

fn filled(random: &mut Random, keys: &[Vec<u8>], place: Place, model: &mut Model) -> AppendRegion {
    let region = AppendRegion::new(keys.len());
    for key in keys {
        if random.below(3) == 0 {
            let tombstone = random.below(4) == 0;
            let entry = if tombstone { Entry::tombstone() } else { Entry::value(random.next()) };
            assert!(region.try_reserve(1));
            region.insert(key, entry);
            model.insert(key.clone(), (entry, place));
        }
    }
    region
}

fn collect(
    bundle: &Bundle,
    range: &KeyRange,
    reverse: bool,
    most: usize,
) -> Vec<(Vec<u8>, (Entry, Place))> {
    let mut iter = RangeIter::new(bundle, range.clone(), reverse);
    let mut all = Vec::new();
    while all.len() < most
        && let Some(item) = iter.next()
    {
        all.push((item.key.to_vec(), (item.entry, item.place)));
    }
    all
}

#[test]
fn newest_of_three_regions_both_ways_from_every_bound() {
    let keys: Vec<_> = nasty_keys().into_iter().step_by(3).collect();
    let mut random = Random(11);
    for with_frozen in [true, false] {
        let mut model = Model::new();
        let mut builder = SortedBuilder::new(keys.len(), false);
        for key in &keys {
            if random.below(2) == 0 {
                let entry = Entry::value(random.next());
                builder.push(key, entry, false);
                model.insert(key.clone(), (entry, Place::Sorted));
            }
        }
        let frozen =
            with_frozen.then(|| Arc::new(filled(&mut random, &keys, Place::Frozen, &mut model)));
        let active = Arc::new(filled(&mut random, &keys, Place::Active, &mut model));
        let bundle = Bundle { active, frozen, sorted: Arc::new(builder.finish()) };
        for key in &keys {
            let found = bundle.lookup(key).map(|found| (found.cell.load(), found.place));
            assert_eq!(found, model.get(key).copied());
        }
        let all: Vec<_> = model.into_iter().collect();
        for bound in bounds(&keys) {
            let at = all.partition_point(|(key, _)| *key < bound);
            let up = collect(&bundle, &KeyRange::new(bound.clone(), []), false, 5);
            assert_eq!(up, all[at..all.len().min(at + 5)]);
            if !bound.is_empty() {
                let mut down = collect(&bundle, &KeyRange::new([], bound), true, 5);
                down.reverse();
                assert_eq!(down, all[at.saturating_sub(5)..at]);
            }
        }
        for _ in 0..200 {
            let (a, b) = (&keys[random.below(keys.len())], &keys[random.below(keys.len())]);
            let range = KeyRange::new(a.clone(), b.clone());
            let expected: Vec<_> =
                all.iter().filter(|(key, _)| range.contains(key)).cloned().collect();
            assert_eq!(collect(&bundle, &range, false, usize::MAX), expected);
            let mut down = collect(&bundle, &range, true, usize::MAX);
            down.reverse();
            assert_eq!(down, expected);
        }
        let mut whole = collect(&bundle, &KeyRange::all(), true, usize::MAX);
        whole.reverse();
        assert_eq!(whole, all);
    }
}

#[test]
fn inserts_meanwhile_neither_hide_nor_repeat_keys() {
    for reverse in [false, true] {
        let active = Arc::new(AppendRegion::new(10_000));
        assert!(active.try_reserve(10_000));
        let mut builder = SortedBuilder::new(1000, false);
        for n in 0..1000u64 {
            let key = format!("{:05}", 10 * n);
            if n % 2 == 0 {
                builder.push(key.as_bytes(), Entry::value(n), false);
            } else {
                active.insert(key.as_bytes(), Entry::value(n));
            }
        }
        let sorted = Arc::new(builder.finish());
        let bundle = Bundle { active: Arc::clone(&active), frozen: None, sorted };
        let mut iter = RangeIter::new(&bundle, KeyRange::all(), reverse);
        let mut random = Random(13);
        let mut seen = Vec::new();
        while let Some(item) = iter.next() {
            seen.push(item.key.to_vec());
            let key = format!("{:05}", random.below(10_000));
            if active.find(key.as_bytes()).is_none() {
                active.insert(key.as_bytes(), Entry::value(0));
            }
        }
        if reverse {
            seen.reverse();
        }
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]));
        let old = |n: u64| format!("{:05}", 10 * n).into_bytes();
        assert!((0..1000).all(|n| seen.binary_search(&old(n)).is_ok()));
        assert!(iter.next().is_none());
    }
}
