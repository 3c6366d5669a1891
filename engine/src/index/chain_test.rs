//! A shard's life in its index files, against a map: changes, merges, files of what changed, files
//! of everything, checkpoints that fail halfway, and reading the chain back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::chain::join_chain;
use super::entry::Entry;
use super::index_file::{Meta, decode, encode, encode_changes};
use super::shard::Shard;
use super::sorted_region::SortedRegion;
use super::test_keys::{Random, nasty_keys};
use crate::types::{CheckpointId, InstanceId, KeyRange, ShardId};

type Model = BTreeMap<Vec<u8>, Entry>;

struct Life {
    random: Random,
    keys: Vec<Vec<u8>>,
    shard: Shard,
    /// What the shard holds.
    model: Model,
    /// What the files hold, and the files.
    saved: Model,
    files: Vec<Vec<u8>>,
    /// The changed bits are no longer right.
    rewrite: bool,
    attempt: u64,
    /// How often what happened.
    wholes: usize,
    deltas: usize,
    restored: usize,
    longest: usize,
}

fn shard(sorted: SortedRegion) -> Shard {
    Shard::new(ShardId(1), InstanceId(1), 1, KeyRange::all(), sorted, 1 << 14, false)
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut keys = nasty_keys();
        keys.truncate(500);
        Self {
            random: Random(seed),
            keys,
            shard: shard(SortedRegion::empty()),
            model: Model::new(),
            saved: Model::new(),
            files: Vec::new(),
            rewrite: false,
            attempt: 0,
            wholes: 0,
            deltas: 0,
            restored: 0,
            longest: 0,
        }
    }

    fn write(&mut self) {
        let key = self.keys[self.random.below(self.keys.len())].clone();
        let entry = match self.random.below(5) {
            0 | 1 => Entry::tombstone(),
            2 => Entry::inline(&self.random.next().to_le_bytes()[..self.random.below(9)]).unwrap(),
            _ => Entry::value(self.random.next()),
        };
        if entry.is_tombstone() && !self.model.contains_key(&key) {
            return;
        }
        let bundle = self.shard.load();
        bundle.mark_dirty();
        let found = bundle.lookup(&key);
        assert!(!bundle.needs_room(found) || bundle.active.try_reserve(1));
        bundle.publish(super::key_hash(&key), &key, found, entry);
        drop(bundle);
        match entry.is_tombstone() {
            true => self.model.remove(&key),
            false => self.model.insert(key, entry),
        };
    }

    fn reorganize(&mut self) {
        self.shard.freeze().unwrap();
        self.shard.publish_merged(self.shard.merge_frozen(true, &|| ()), true).unwrap();
    }

    fn checkpoint(&mut self) {
        self.attempt += 1;
        self.shard.freeze().unwrap();
        let (entries, changed) = self.shard.count_frozen();
        let mut merged = self.shard.merge_frozen(true, &|| ());
        assert!(entries >= merged.len() && changed >= merged.changed());
        let whole = self.files.is_empty() || self.rewrite || self.random.below(8) == 0;
        let mut meta = Meta {
            shard: ShardId(1),
            instance: InstanceId(1),
            epoch: 1,
            checkpoint: CheckpointId(self.attempt),
            previous: CheckpointId(0),
            range: KeyRange::all(),
        };
        let mut file = Vec::new();
        let mut sink = |piece: &[u8]| {
            file.extend_from_slice(piece);
            Ok(())
        };
        if whole {
            encode(&merged, &meta, &mut sink).unwrap();
        } else {
            meta.previous = CheckpointId(self.attempt - 1);
            encode_changes(&merged, &meta, &mut sink).unwrap();
        }
        let count = if whole { merged.len() } else { merged.changed() };
        let taken = merged.take_changed();
        assert_eq!(merged.changed(), 0);
        let mut lost = false;
        if self.random.below(4) == 0 {
            // What a checkpoint does when deletes are many.
            merged = self.shard.without_tombstones(&merged, true, &|| ());
            assert_eq!(merged.tombstones(), 0);
            lost = true;
        }
        self.shard.publish_merged(merged, false).unwrap();
        let published = Arc::clone(&self.shard.load().sorted);
        if self.random.below(3) == 0 {
            // It fails; meanwhile there were writes, and perhaps a merge.
            (0..self.random.below(20)).for_each(|_| self.write());
            if self.random.below(3) == 0 {
                self.reorganize();
                lost = true;
            }
            if lost {
                self.rewrite = true;
            } else {
                published.restore_changed(&taken);
                self.restored += 1;
            }
            self.shard.mark_dirty();
            return;
        }
        let (read, region) = decode(Path::new("t1/1-1.t1"), &file).unwrap();
        assert_eq!((read, region.len()), (meta, count));
        if whole {
            self.files.clear();
            self.wholes += 1;
        } else {
            self.deltas += 1;
        }
        self.files.push(file);
        self.longest = self.longest.max(self.files.len());
        self.rewrite = false;
        self.saved = self.model.clone();
    }

    /// What the files hold.
    fn read_back(&self) -> SortedRegion {
        let decoded = |file: &Vec<u8>| decode(Path::new("t1/1-1.t1"), file).unwrap().1;
        let mut regions = self.files.iter().map(decoded);
        let whole = regions.next().unwrap_or_else(SortedRegion::empty);
        join_chain(whole, &regions.collect::<Vec<_>>(), &KeyRange::all(), true)
    }

    fn check_files(&self, at: &str) {
        let region = self.read_back();
        let mut found = Model::new();
        let mut cursor = region.cursor();
        cursor.seek_first();
        while let (Some(key), Some(cell)) = (cursor.key(), cursor.cell()) {
            found.insert(key.to_vec(), cell.load());
            cursor.next();
        }
        assert!(found == self.saved, "{at}: the files say something else");
        assert_eq!((region.changed(), region.tombstones()), (0, 0), "{at}");
        let missing = |key: &&Vec<u8>| region.find(key).is_none();
        assert_eq!(self.saved.keys().filter(missing).count(), 0, "{at}: the filter");
    }

    fn crash(&mut self) {
        self.shard = shard(self.read_back());
        self.model = self.saved.clone();
        self.rewrite = false;
    }
}

#[test]
fn files_of_changes_add_up_to_the_shard() {
    for seed in 1..=6 {
        let mut life = Life::new(seed);
        for step in 0..6000 {
            match life.random.below(400) {
                0..10 => life.reorganize(),
                10..22 => {
                    life.checkpoint();
                    life.check_files(&format!("seed {seed} step {step}"));
                }
                22 => life.crash(),
                _ => life.write(),
            }
        }
        let Life { wholes, deltas, restored, longest, .. } = life;
        assert!(wholes > 5 && deltas > 20 && restored > 2 && longest > 4, "seed {seed}");
    }
}

/// A tombstone is in memory until a file has it, and goes with the merge after.
#[test]
fn a_tombstone_stays_until_it_is_saved_and_not_longer() {
    let mut life = Life::new(1);
    let key = b"k".to_vec();
    let put = |life: &Life, entry| {
        let bundle = life.shard.load();
        bundle.mark_dirty();
        let found = bundle.lookup(&key);
        assert!(!bundle.needs_room(found) || bundle.active.try_reserve(1));
        bundle.publish(super::key_hash(&key), &key, found, entry);
    };
    let lens = |life: &Life| {
        let sorted = &life.shard.load().sorted;
        (sorted.len(), sorted.live(), sorted.changed())
    };
    // No file knows the key: nothing to keep.
    put(&life, Entry::value(1));
    put(&life, Entry::tombstone());
    life.reorganize();
    assert_eq!(lens(&life), (0, 0, 0));
    put(&life, Entry::value(2));
    life.reorganize();
    assert_eq!(lens(&life), (1, 1, 1));
    let saved = Arc::clone(&life.shard.load().sorted);
    saved.take_changed();
    put(&life, Entry::tombstone());
    life.reorganize();
    life.reorganize();
    assert_eq!(lens(&life), (1, 0, 1));
    let saved = Arc::clone(&life.shard.load().sorted);
    assert_eq!(saved.take_changed(), [1]);
    life.reorganize();
    assert_eq!(lens(&life), (0, 0, 0));
    // The same by way of the append region: deleted while a merge is under way.
    put(&life, Entry::value(3));
    life.reorganize();
    life.shard.load().sorted.take_changed();
    life.shard.freeze().unwrap();
    put(&life, Entry::tombstone());
    life.shard.publish_merged(life.shard.merge_frozen(true, &|| ()), true).unwrap();
    life.reorganize();
    assert_eq!(lens(&life), (1, 0, 1));
    life.crash();
}
