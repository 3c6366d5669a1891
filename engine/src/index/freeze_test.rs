//! Freeze, merge, publish and split under concurrent writers, with a real array of stripes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;

use super::entry::{Entry, Slot};
use super::range_iter::RangeIter;
use super::shard::{MIN_APPEND_CAPACITY, Shard};
use super::shard_table::ShardTable;
use super::sorted_region::SortedRegion;
use super::test_keys::{Random, StopOnDrop};
use super::{decode, encode, key_hash};
use crate::error::ErrorKind;
use crate::index::Meta;
use crate::types::{CheckpointId, InstanceId, KeyRange, ShardId};

const STRIPES: usize = 32;
const KEYS: usize = 3000;

/// A store in small: stripes, a table, and what each key must be (guarded by its stripe).
struct Store {
    table: ArcSwap<ShardTable>,
    stripes: Vec<Mutex<BTreeMap<Vec<u8>, Entry>>>,
    writes: AtomicU64,
}

fn key(n: usize) -> Vec<u8> {
    format!("tenant/{:02}/row/{n:06}", n % 7).into_bytes()
}

fn new_shard(id: u64, range: KeyRange) -> Shard {
    let empty = SortedRegion::empty();
    Shard::new(ShardId(id), InstanceId(id), 1, range, empty, 1 << 20, false)
}

impl Store {
    fn new() -> Self {
        let table = ShardTable::new(vec![Arc::new(new_shard(1, KeyRange::all()))]).unwrap();
        Self {
            table: ArcSwap::from_pointee(table),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            writes: AtomicU64::new(0),
        }
    }

    /// The caller's duties of a write, in order. Waits for room outside the stripe.
    fn write(&self, key: &[u8], entry: Entry) {
        let hash = key_hash(key);
        loop {
            let mut stripe = self.stripes[hash as usize % STRIPES].lock().unwrap();
            let table = self.table.load();
            let bundle = table.find(key).unwrap().load();
            let found = bundle.lookup_hashed(hash, key);
            let before = found.map(|found| found.cell.load()).filter(|e| !e.is_tombstone());
            assert_eq!(before, stripe.get(key).copied(), "{}", key.escape_ascii());
            let needs_room = bundle.needs_room(found);
            if needs_room && !bundle.active.try_reserve(1) {
                drop(stripe);
                std::thread::yield_now();
                continue;
            }
            bundle.mark_dirty();
            assert_eq!(bundle.publish(hash, key, found, entry), needs_room);
            if entry.is_tombstone() {
                stripe.remove(key);
            } else {
                stripe.insert(key.to_vec(), entry);
            }
            self.writes.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }

    fn pass_every_stripe(&self) {
        for stripe in &self.stripes {
            drop(stripe.lock().unwrap());
        }
    }

    fn reorganize(&self, shard: &Shard, keep_dirty: bool) {
        let _one = shard.structural.lock();
        shard.freeze().unwrap();
        assert_eq!(shard.freeze().err().unwrap().kind(), ErrorKind::Unavailable);
        self.pass_every_stripe();
        let merged = shard.merge_frozen(true, &|| ());
        shard.publish_merged(merged, keep_dirty).unwrap();
    }

    fn split(&self, shard: &Arc<Shard>, at: &[u8], ids: [u64; 2]) {
        let _one = shard.structural.lock();
        let id = |n| (ShardId(n), InstanceId(n));
        let (left, right) = shard.split(at, id(ids[0]), id(ids[1]), 2).unwrap();
        let children = [Arc::new(left), Arc::new(right)];
        let table = self.table.load().replace(&[shard.instance], children.clone()).unwrap();
        self.table.store(Arc::new(table));
        self.pass_every_stripe();
        for child in children {
            assert!(child.is_dirty());
            let merged = child.merge_frozen(true, &|| ());
            child.publish_merged(merged, true).unwrap();
        }
    }

    /// Everything, from the index.
    fn contents(&self) -> BTreeMap<Vec<u8>, Entry> {
        let mut all = BTreeMap::new();
        for shard in self.table.load().shards() {
            let bundle = shard.load();
            let mut iter = RangeIter::new(&bundle, shard.range.clone(), false);
            while let Some(item) = iter.next() {
                if !item.entry.is_tombstone() {
                    assert!(all.insert(item.key.to_vec(), item.entry).is_none());
                }
            }
        }
        all
    }

    fn expected(&self) -> BTreeMap<Vec<u8>, Entry> {
        self.stripes.iter().flat_map(|stripe| stripe.lock().unwrap().clone()).collect()
    }
}

fn random_entry(random: &mut Random, n: usize) -> Entry {
    match random.below(5) {
        0 => Entry::tombstone(),
        1 => Entry::inline(&(n as u32).to_le_bytes()).unwrap(),
        _ => Entry::value((random.next() << 16) | n as u64),
    }
}

/// Writers on all keys, reorganizes and splits at once, readers that check whose entry they got.
#[test]
fn no_write_is_lost_over_freeze_merge_and_split() {
    let store = Store::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|seed| {
                let store = &store;
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for _ in 0..60_000 {
                        let n = random.below(KEYS);
                        store.write(&key(n), random_entry(&mut random, n));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut random = Random(99);
            while !stop.load(Ordering::Relaxed) {
                let n = random.below(KEYS);
                let key = key(n);
                let table = store.table.load();
                let bundle = table.find(&key).unwrap().load();
                match bundle.lookup(&key).map(|found| found.cell.load().decode()) {
                    Some(Slot::Value(payload)) => assert_eq!(payload & 0xffff, n as u64),
                    Some(Slot::Inline(bytes, len)) => {
                        assert_eq!(bytes[..len], (n as u32).to_le_bytes());
                    }
                    _ => {}
                }
            }
        });
        let structural = scope.spawn(|| {
            let mut next_id = 2;
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) || rounds < 10 {
                rounds += 1;
                let shards = store.table.load().shards().to_vec();
                for shard in &shards {
                    store.reorganize(shard, rounds % 2 == 0);
                }
                if shards.len() < 6 {
                    let at = key(rounds * 37 % KEYS);
                    let shard = store.table.load().find(&at).cloned().unwrap();
                    if shard.range.start != at {
                        store.split(&shard, &at, [next_id, next_id + 1]);
                        next_id += 2;
                    }
                }
            }
            rounds
        });
        let stopping = StopOnDrop(&stop);
        for writer in writers {
            writer.join().unwrap();
        }
        drop(stopping);
        assert!(structural.join().unwrap() >= 10);
    });
    assert_eq!(store.writes.load(Ordering::Relaxed), 180_000);
    assert!(store.table.load().shards().len() > 1);
    assert!(store.contents() == store.expected());
}

/// F18: a set of the dirty flag is lost neither by the freeze nor by the publish.
#[test]
fn what_the_checkpoint_did_not_take_leaves_the_shard_dirty() {
    let store = Store::new();
    let shard = store.table.load().shards()[0].clone();
    assert!(!shard.is_dirty());
    store.write(b"a", Entry::value(1));
    // A writer that is late: it loaded the bundle before the freeze and marks it after.
    let late = shard.load();
    assert!(shard.is_dirty());
    let frozen = shard.freeze().unwrap();
    assert!(!frozen.active.was_written() && frozen.frozen.as_ref().unwrap().was_written());
    late.mark_dirty();
    drop(late);
    // Between freeze and publish, through the new bundle.
    store.write(b"b", Entry::value(2));
    shard.publish_merged(shard.merge_frozen(false, &|| ()), false).unwrap();
    assert!(shard.is_dirty(), "b is not in the checkpoint");
    store.reorganize(&shard, false);
    assert!(!shard.is_dirty());
    store.write(b"a", Entry::value(3));
    store.reorganize(&shard, true);
    assert!(shard.is_dirty(), "a reorganize is no checkpoint");
    store.reorganize(&shard, false);
    assert!(!shard.is_dirty());
    shard.mark_dirty();
    assert!(shard.is_dirty());
    let not_frozen = shard.publish_merged(Arc::new(SortedRegion::empty()), true).err().unwrap();
    assert_eq!(not_frozen.kind(), ErrorKind::Unavailable);
    assert!(store.contents() == store.expected());
}

/// F2: while frozen, changes of old keys go to the active region, and the merge does not see them.
#[test]
fn old_entries_do_not_change_while_frozen() {
    let store = Store::new();
    let shard = store.table.load().shards()[0].clone();
    (0..100).for_each(|n| store.write(&key(n), Entry::value(n as u64)));
    store.reorganize(&shard, true);
    (100..200).for_each(|n| store.write(&key(n), Entry::value(n as u64)));
    let bundle = shard.freeze().unwrap();
    (0..200).for_each(|n| store.write(&key(n), Entry::value(1000 + n as u64)));
    store.write(&key(5), Entry::tombstone());
    assert_eq!(bundle.active.len(), 200);
    let merged = shard.merge_frozen(true, &|| ());
    for n in 0..200 {
        assert_eq!(merged.find(&key(n)).unwrap().load(), Entry::value(n as u64));
    }
    let meta = Meta {
        shard: shard.id,
        instance: shard.instance,
        epoch: shard.epoch,
        checkpoint: CheckpointId(1),
        previous: CheckpointId(0),
        range: shard.range.clone(),
    };
    let mut file = Vec::new();
    encode(&merged, &meta, &mut |piece| {
        file.extend_from_slice(piece);
        Ok(())
    })
    .unwrap();
    shard.publish_merged(merged, false).unwrap();
    let (_, stored) = decode("t1/1-1.t1".as_ref(), &file).unwrap();
    assert_eq!((stored.len(), stored.find(&key(5)).unwrap().load()), (200, Entry::value(5)));
    assert!(store.contents() == store.expected());
}

#[test]
fn capacity_follows_demand() {
    let store = Store::new();
    let shard = store.table.load().shards()[0].clone();
    assert_eq!(shard.load().active.capacity(), MIN_APPEND_CAPACITY);
    for n in 0..7000 {
        store.write(&n.to_string().into_bytes(), Entry::value(n));
    }
    store.reorganize(&shard, true);
    assert_eq!(shard.load().active.capacity(), 14_000);
    store.reorganize(&shard, true);
    assert_eq!(shard.load().active.capacity(), MIN_APPEND_CAPACITY);
    assert_eq!(shard.load().sorted.len(), 7000);
}

#[test]
fn a_split_key_must_lie_inside() {
    let shard = new_shard(1, KeyRange::new("c", "k"));
    let id = |n| (ShardId(n), InstanceId(n));
    for key in ["", "b", "c", "k", "z"] {
        let error = shard.split(key.as_bytes(), id(2), id(3), 1).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let (left, right) = shard.split(b"c\0", id(2), id(3), 1).unwrap();
    assert_eq!((left.range, right.range), (KeyRange::new("c", "c\0"), KeyRange::new("c\0", "k")));
}

/// What has only been written over is no work for a merge, and nothing is missed for it: new keys,
/// deletes that a file knows, and regions that were put together are merged.
#[test]
fn a_merge_of_nothing_new_is_the_region_itself() {
    let store = Store::new();
    let shard = store.table.load().shards()[0].clone();
    (0..500).for_each(|n| store.write(&key(n), Entry::value(n as u64)));
    let merge = |bloom: bool, take: bool| {
        let old = Arc::clone(&shard.load().sorted);
        shard.freeze().unwrap();
        let merged = shard.merge_frozen(bloom, &|| ());
        if take {
            merged.take_changed();
        }
        shard.publish_merged(Arc::clone(&merged), false).unwrap();
        assert!(store.contents() == store.expected());
        Arc::ptr_eq(&old, &merged)
    };
    assert!(!merge(true, true));
    (0..500).for_each(|n| store.write(&key(n), Entry::value(1000 + n as u64)));
    assert!(merge(true, false));
    assert_eq!(shard.load().sorted.changed(), 500, "no file has them");
    store.write(&key(500), Entry::value(1));
    assert!(!merge(true, true));
    assert_eq!(shard.load().sorted.len(), 501);
    // A tombstone stays until a file has it, and goes then.
    store.write(&key(7), Entry::tombstone());
    assert!(merge(true, true));
    assert_eq!(shard.load().sorted.len(), 501);
    assert!(!merge(true, true));
    assert_eq!((shard.load().sorted.len(), shard.load().sorted.tombstones()), (500, 0));
    // Another filter than the region has.
    assert!(!merge(false, true) && merge(false, true) && !merge(true, true));
    // The parts of a split hold half the keys each; put together, they are merged once.
    let id = |n| (ShardId(n), InstanceId(n));
    let (left, right) = shard.split(&key(250), id(2), id(3), 1).unwrap();
    let halves = [left, right].map(|child| {
        let merged = child.merge_frozen(true, &|| ());
        child.publish_merged(merged, true).unwrap();
        child
    });
    let [left, right] = &halves;
    assert_eq!(left.load().sorted.len() + right.load().sorted.len(), 500);
    assert!(left.load().sorted.len() > 0 && right.load().sorted.len() > 0);
    let whole = left.merge_with(right, id(4), 1, true).unwrap();
    // A writer that still has the old regions: the count of the new one does not know.
    left.load().lookup(&key(3)).unwrap().cell.store(Entry::tombstone());
    left.load().sorted.take_changed();
    let joint = Arc::clone(&whole.load().sorted);
    assert_eq!(joint.tombstones(), 0);
    whole.mark_filed();
    let merged = whole.merge_frozen(true, &|| ());
    assert!(!Arc::ptr_eq(&joint, &merged));
    assert_eq!((merged.len(), merged.tombstones()), (499, 0));
}
