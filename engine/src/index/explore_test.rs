//! The index under the explorer of thread schedules: an entry is never torn, no write is lost over
//! a freeze, a merge and a split, and a scan meets every key once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cell::{CellRef, Sequence};
use super::entry::{Entry, Slot};
use super::key_hash;
use super::range_iter::RangeIter;
use super::shard::Shard;
use super::shard_table::ShardTable;
use super::sorted_region::SortedRegion;
use crate::sync::explore::explore;
use crate::sync::primitives::atomic::{AtomicU8, AtomicU64, AtomicUsize};
use crate::sync::primitives::{ArcSwap, thread};
use crate::sync::{Stripes, WordIndex};
use crate::types::{InstanceId, KeyRange, Lsn, ShardId};

/// Two keys under one sequence lock, a writer each, two readers.
#[test]
fn explore_an_entry_is_whole() {
    explore("cell", 2000, || {
        #[derive(Default)]
        struct Two {
            sequence: Sequence,
            payloads: [AtomicU64; 2],
            tags: [AtomicU8; 2],
            tombstones: AtomicUsize,
        }
        impl Two {
            fn cell(&self, key: usize) -> CellRef<'_> {
                let Self { sequence, payloads, tags, tombstones } = self;
                CellRef::new(sequence, &payloads[key], &tags[key], tombstones)
            }
        }
        let two = Arc::new(Two::default());
        // The tag follows from the payload.
        let entry = |key: usize, n: u64| match n % 2 {
            0 => Entry::value(100 * (key as u64 + 1) + n),
            _ => Entry::inline(&[key as u8, n as u8, 0, 0, 0, 0, 0, 0]).unwrap(),
        };
        (0..2).for_each(|key| two.cell(key).store(entry(key, 0)));
        let mut threads = Vec::new();
        for key in 0..2 {
            let writer = Arc::clone(&two);
            threads.push(thread::spawn(move || {
                (1..4).for_each(|n| writer.cell(key).store(entry(key, n)));
            }));
            let reader = Arc::clone(&two);
            threads.push(thread::spawn(move || {
                let mut last = 0;
                for _ in 0..3 {
                    let got = reader.cell(key).load();
                    let n = match got.decode() {
                        Slot::Value(at) => at - 100 * (key as u64 + 1),
                        Slot::Inline(bytes, _) => u64::from(bytes[1]),
                        Slot::Tombstone => 0,
                    };
                    assert_eq!(got, entry(key, n), "torn");
                    assert!(n >= last && n < 4, "{n} after {last}");
                    last = n;
                }
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        (0..2).for_each(|key| assert_eq!(two.cell(key).load(), entry(key, 3)));
    });
}

/// A store in small: the table, the stripes.
struct Small {
    table: ArcSwap<ShardTable>,
    stripes: Stripes,
}

const KEYS: [&[u8]; 4] = [b"a", b"g", b"m", b"t"];

impl Small {
    fn new() -> Self {
        let empty = SortedRegion::empty();
        let (id, instance) = (ShardId(1), InstanceId(1));
        let shard = Shard::new(id, instance, 1, KeyRange::all(), empty, 1 << 13, false);
        let table = ShardTable::new(vec![Arc::new(shard)]).unwrap();
        Self { table: ArcSwap::from_pointee(table), stripes: Stripes::new(Lsn(0)) }
    }

    fn write(&self, key: &[u8], entry: Entry) {
        let _held = self.stripes.lock([WordIndex::of(key)]);
        let table = self.table.load_full();
        let bundle = table.find(key).unwrap().load();
        let hash = key_hash(key);
        let found = bundle.lookup_hashed(hash, key);
        if bundle.needs_room(found) {
            assert!(bundle.active.try_reserve(1));
        }
        bundle.mark_dirty();
        bundle.publish(hash, key, found, entry);
    }

    fn read(&self, key: &[u8]) -> Option<Entry> {
        let table = self.table.load_full();
        let bundle = table.find(key).unwrap().load();
        bundle.lookup(key).map(|found| found.cell.load()).filter(|entry| !entry.is_tombstone())
    }

    fn scan(&self) -> BTreeMap<Vec<u8>, Entry> {
        let table = self.table.load_full();
        let mut all = BTreeMap::new();
        let mut last: Vec<u8> = Vec::new();
        for shard in table.shards() {
            let bundle = shard.load();
            let mut entries = RangeIter::new(&bundle, shard.range.clone(), false);
            while let Some(item) = entries.next() {
                assert!(last.as_slice() < item.key, "order");
                last = item.key.to_vec();
                if !item.entry.is_tombstone() {
                    all.insert(item.key.to_vec(), item.entry);
                }
            }
        }
        all
    }

    fn reorganize(&self, shard: &Shard) {
        let _one = shard.structural.lock();
        shard.freeze().unwrap();
        self.stripes.pass();
        shard.publish_merged(shard.merge_frozen(true, &|| ()), true).unwrap();
    }

    fn split(&self, at: &[u8]) {
        let parent = self.table.load_full().shards()[0].clone();
        let _one = parent.structural.lock();
        let id = |n| (ShardId(n), InstanceId(n));
        let (left, right) = parent.split(at, id(2), id(3), 2).unwrap();
        let children = [Arc::new(left), Arc::new(right)];
        let table = self.table.load_full().replace(&[parent.instance], children.clone()).unwrap();
        self.table.store(Arc::new(table));
        self.stripes.pass();
        for child in children {
            child.publish_merged(child.merge_frozen(true, &|| ()), true).unwrap();
        }
    }
}

fn numbered(n: u64) -> Entry {
    if n.is_multiple_of(2) { Entry::value(n) } else { Entry::inline(&n.to_le_bytes()).unwrap() }
}

fn number_of(entry: Entry) -> u64 {
    match entry.decode() {
        Slot::Value(n) => n,
        Slot::Inline(bytes, _) => u64::from_le_bytes(bytes),
        Slot::Tombstone => panic!("filtered"),
    }
}

/// Two writers of two keys each, a reader, a scanner, and one structural operation after another.
fn structural(schedules: usize, name: &str, work: impl Fn(&Small) + Copy + Send + Sync + 'static) {
    explore(name, schedules, move || {
        let small = Arc::new(Small::new());
        KEYS.iter().for_each(|key| small.write(key, numbered(0)));
        let shard = small.table.load_full().shards()[0].clone();
        small.reorganize(&shard);
        let mut threads = Vec::new();
        for keys in [[0, 2], [1, 3]] {
            let small = Arc::clone(&small);
            threads.push(thread::spawn(move || {
                for n in 1..3 {
                    for key in keys {
                        small.write(KEYS[key], numbered(n));
                        let own = small.read(KEYS[key]);
                        assert_eq!(own, Some(numbered(n)), "own write");
                    }
                }
            }));
        }
        let reader = Arc::clone(&small);
        threads.push(thread::spawn(move || {
            let mut last = [0; 4];
            for round in 0..4 {
                let key = round % 2;
                let n = number_of(reader.read(KEYS[key]).expect("a key that is always there"));
                assert!(n >= last[key], "{n} after {}", last[key]);
                last[key] = n;
            }
            for _ in 0..2 {
                let found = reader.scan();
                assert_eq!(found.len(), KEYS.len(), "a scan lost a key");
                for (key, last) in KEYS.iter().zip(&mut last) {
                    let n = number_of(found[*key]);
                    assert!(n >= *last, "a scan saw {n} after {last}");
                    *last = n;
                }
            }
        }));
        let worker = Arc::clone(&small);
        threads.push(thread::spawn(move || work(&worker)));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let found = small.scan();
        let expected: BTreeMap<_, _> = KEYS.iter().map(|key| (key.to_vec(), numbered(2))).collect();
        assert_eq!(found, expected, "at the end");
        for shard in small.table.load_full().shards() {
            small.reorganize(shard);
        }
        assert_eq!(small.scan(), expected, "after a merge of all");
    });
}

#[test]
fn explore_a_freeze_against_put_get_and_scan() {
    structural(400, "freeze", |small| {
        let shard = small.table.load_full().shards()[0].clone();
        (0..2).for_each(|_| small.reorganize(&shard));
    });
}

/// F13, F14: children without the late writes of their parent; a writer in a dead region.
#[test]
fn explore_a_split_swaps_both_children_in_at_once() {
    structural(400, "split", |small| {
        small.split(b"k");
        let right = small.table.load_full().shards()[1].clone();
        small.reorganize(&right);
    });
}
