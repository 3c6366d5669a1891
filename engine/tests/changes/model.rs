//! Random runs against the list of all changes that were made.
//!
//! Under test: revisions, order and completeness of the feed of each shard, at any position and
//! any size of answer; nothing that a power cut takes back is ever shown; a position stays good
//! over restarts; a batch is never cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use vmemkv_engine::io::testing::{CrashDisk, PowerCut};
use vmemkv_engine::{
    Change, ChangeKind, Condition, Engine, ErrorKind, KeyRange, Lsn, Operation, Options, Revision,
    Sharding,
};

use crate::support::{cut_to, fast_dir, killed_to, seed, small};

/// A change as made.
struct Made {
    change: Change,
    lsn: Lsn,
}

/// A range of keys, with all that was done to it. It may be a part of a shard.
struct Followed {
    range: KeyRange,
    made: Vec<Made>,
    /// Readers: how many of `made` they have seen, and their position.
    readers: Vec<(usize, Revision)>,
}

struct Run {
    random: StdRng,
    options: Options,
    folder: tempfile::TempDir,
    dirs: usize,
    disk: Arc<CrashDisk>,
    engine: Option<Engine>,
    present: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The last revision of each shard, in key order.
    revisions: Vec<u64>,
    followed: Vec<Followed>,
    too_old: usize,
}

fn key(number: usize) -> Vec<u8> {
    format!("key/{number:03}").into_bytes()
}

/// The shards are cut at these keys.
const CUTS: [usize; 2] = [30, 70];
const KEYS: usize = 100;

fn ranges() -> Vec<KeyRange> {
    let [a, b] = CUTS.map(key);
    vec![
        KeyRange::new(Vec::new(), a.clone()),
        KeyRange::new(a.clone(), b.clone()),
        KeyRange::new(b, Vec::new()),
        // Parts of shards.
        KeyRange::new(key(35), key(36)),
        KeyRange::new(a, key(50)),
    ]
}

impl Run {
    fn new(seed: u64, keep: u64, write_once_bytes: usize) -> Self {
        let boundaries = CUTS.map(key).to_vec();
        let sharding = Sharding::Alone { boundaries };
        let options = Options { sharding, wal_keep_bytes: keep, write_once_bytes, ..small() };
        let folder = fast_dir();
        let disk = CrashDisk::new(folder.path().join("0")).unwrap();
        let engine = Engine::open_on(disk.clone(), options.clone()).unwrap();
        let follow =
            |range| Followed { range, made: Vec::new(), readers: vec![(0, Revision(0)); 4] };
        Self {
            random: StdRng::seed_from_u64(seed),
            options,
            folder,
            dirs: 1,
            disk,
            engine: Some(engine),
            present: BTreeMap::new(),
            revisions: vec![0; CUTS.len() + 1],
            followed: ranges().into_iter().map(follow).collect(),
            too_old: 0,
        }
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    /// Notes a logged record: its changes in key order, those that do nothing left out.
    fn made(&mut self, lsn: Lsn, changes: &BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
        for (key, value) in changes {
            let shard = CUTS.iter().filter(|cut| *key >= self::key(**cut)).count();
            self.revisions[shard] += 1;
            let revision = Revision(self.revisions[shard]);
            let kind = match value {
                Some(value) => ChangeKind::Put(value.clone()),
                None => ChangeKind::Delete,
            };
            match value {
                Some(value) => self.present.insert(key.clone(), value.clone()),
                None => self.present.remove(key),
            };
            let change = Change { revision, key: key.clone(), kind };
            for followed in self.followed.iter_mut().filter(|f| f.range.contains(key)) {
                followed.made.push(Made { change: change.clone(), lsn });
            }
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.random.random_range(0..20) {
            0..10 => self.random.random_range(0..10),
            10..19 => self.random.random_range(10..300),
            _ => self.random.random_range(300..20_000),
        };
        let byte = self.random.random();
        vec![byte; len]
    }

    fn write(&mut self) {
        let number = self.random.random_range(0..KEYS);
        let key = key(number);
        let deletes = self.random.random_bool(0.3);
        let value = (!deletes).then(|| self.value());
        let written = match &value {
            Some(value) => self.engine().put(&key, value, &Condition::None).unwrap(),
            None => self.engine().delete(&key, &Condition::None).unwrap(),
        };
        if value.is_some() || written.existed {
            self.made(written.lsn, &BTreeMap::from([(key, value)]));
        }
    }

    fn batch(&mut self) {
        let mut operations = Vec::new();
        let mut changes = BTreeMap::new();
        for _ in 0..self.random.random_range(1..12) {
            let number = self.random.random_range(0..KEYS);
            let key = key(number);
            if self.random.random_bool(0.3) {
                changes.insert(key.clone(), None);
                operations.push(Operation::Delete { key });
            } else {
                let value = self.value();
                changes.insert(key.clone(), Some(value.clone()));
                operations.push(Operation::Put { key, value });
            }
        }
        let lsn = self.engine().write_batch(&operations).unwrap();
        changes.retain(|key, value| value.is_some() || self.present.contains_key(key));
        self.made(lsn, &changes);
    }

    fn delete_range(&mut self) {
        let from = self.random.random_range(0..KEYS);
        let range = KeyRange::new(key(from), key(from + 5));
        let deleted = self.engine().delete_range(&range, 100).unwrap();
        let gone: Vec<_> = self.present.range(range.start..range.end).collect();
        let changes = gone.into_iter().map(|(key, _)| (key.clone(), None)).collect();
        self.made(deleted.lsn, &changes);
    }

    /// One answer for one reader.
    fn read(&mut self, at: &str) {
        let which = self.random.random_range(0..self.followed.len());
        let reader = self.random.random_range(0..self.followed[which].readers.len());
        let max_bytes = [1, 100, 3000, 100_000][self.random.random_range(0..4)];
        let engine = self.engine.as_ref().unwrap();
        let followed = &mut self.followed[which];
        let (seen, after) = followed.readers[reader];
        let before = engine.durable_lsn();
        let changes = match engine.changes_since(&followed.range, after, max_bytes) {
            Ok(changes) => changes,
            Err(error) => {
                let ErrorKind::TooOld { oldest } = error.kind() else { panic!("{at}: {error:?}") };
                assert!(oldest > after, "{at}: {error}");
                self.too_old += 1;
                let made = &followed.made;
                let seen = made.partition_point(|made| made.change.revision <= oldest);
                followed.readers[reader] = (seen, oldest);
                return;
            }
        };
        let expected = &followed.made[seen..];
        let range = &followed.range;
        let count = changes.records.len();
        let is_same = expected.iter().map(|made| &made.change).take(count).eq(&changes.records);
        let found: Vec<_> = changes.records.iter().map(|c| (c.revision.0, &c.key)).collect();
        let show: Vec<_> =
            expected.iter().map(|m| (m.change.revision.0, &m.change.key, m.lsn.0)).collect();
        assert!(is_same, "{at}: {range:?} after {after}: {found:?} instead of {show:?}");
        let now = engine.durable_lsn();
        let shown_in_time = expected.iter().take(count).all(|made| made.lsn <= now);
        assert!(shown_in_time, "{at}: {range:?} after {after}: shows what is not durable");
        if changes.caught_up {
            let due = expected.iter().take_while(|made| made.lsn <= before).count();
            assert!(count >= due, "{at}: {range:?} after {after}: {count} of {due}");
        }
        if let Some(last) = changes.records.last() {
            assert!(changes.next >= last.revision, "{at}");
            let cut = expected.get(count).is_some_and(|next| next.lsn == expected[count - 1].lsn);
            // A range of keys to delete is one ticket, and one record here.
            assert!(!cut, "{at}: a batch cut in two");
            let size = |change: &Change| match &change.kind {
                ChangeKind::Put(value) => change.key.len() + value.len(),
                ChangeKind::Delete => change.key.len(),
            };
            let last_lsn = expected[count - 1].lsn;
            let whole: usize = expected[..count]
                .iter()
                .take_while(|made| made.lsn != last_lsn)
                .map(|made| size(&made.change))
                .sum();
            assert!(whole < max_bytes, "{at}: an answer goes on beyond {max_bytes} bytes");
        }
        followed.readers[reader] = (seen + count, changes.next);
    }

    /// After a restart: what the feed says was lost, and whether the rest is what is there.
    fn reopened(&mut self, at: &str) {
        let engine = Engine::open_on(self.disk.clone(), self.options.clone());
        let engine = engine.unwrap_or_else(|error| panic!("{at}: open: {error:?}"));
        let contents = crate::support::contents(&engine);
        let durable: Vec<u64> = engine.shards().iter().map(|shard| shard.revision.0).collect();
        // What a crash took are the last records: the shards' revisions say how many are left.
        let mut left: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (shard, followed) in self.followed.iter_mut().enumerate() {
            let shard = if shard > 2 { 1 } else { shard };
            followed.made.retain(|made| made.change.revision.0 <= durable[shard]);
            for (seen, after) in &followed.readers {
                assert!(*seen <= followed.made.len(), "{at}: {after} was shown and is lost");
            }
            for made in &followed.made {
                match &made.change.kind {
                    ChangeKind::Put(value) => left.insert(made.change.key.clone(), value.clone()),
                    ChangeKind::Delete => left.remove(&made.change.key),
                };
            }
        }
        assert!(left == contents, "{at}: {}", crate::support::difference(&contents, &left));
        self.present = contents;
        self.revisions = durable;
        self.engine = Some(engine);
    }

    fn crash(&mut self, cut: Option<PowerCut>, at: &str) {
        let dir = self.folder.path().join(self.dirs.to_string());
        self.dirs += 1;
        let disk = match cut {
            Some(cut) => cut_to(&self.disk, None, &dir, &cut),
            None => killed_to(&self.disk, &dir, self.random.random()),
        };
        drop(self.engine.take());
        let old = std::mem::replace(&mut self.disk, disk);
        let _ = std::fs::remove_dir_all(vmemkv_engine::io::Disk::root(&*old));
        self.reopened(at);
    }

    fn step(&mut self, at: &str) {
        match self.random.random_range(0..1000) {
            0..450 => self.write(),
            450..550 => self.batch(),
            550..570 => self.delete_range(),
            570..650 => {
                let lsn = self.followed.iter().filter_map(|f| f.made.last()).map(|m| m.lsn).max();
                self.engine().wait_durable(lsn.unwrap_or_default()).unwrap();
            }
            650..960 => self.read(at),
            960..970 => self.engine().reorganize(None).unwrap(),
            970..990 => self.engine().checkpoint().map(drop).unwrap(),
            990..994 => {
                let engine = self.engine.take().unwrap();
                if self.random.random_bool(0.5) {
                    engine.close().unwrap();
                } else {
                    drop(engine);
                }
                self.reopened(at);
            }
            994..997 => self.crash(None, at),
            _ => {
                let cut = PowerCut::random(self.random.random());
                self.crash(Some(cut), at);
            }
        }
    }
}

fn run(seed: u64, keep: u64, write_once_bytes: usize, steps: usize) -> usize {
    let mut run = Run::new(seed, keep, write_once_bytes);
    for number in 0..steps {
        run.step(&format!("VMEMKV_SEED={seed} step {number}"));
    }
    let shown: usize = run.followed.iter().flat_map(|f| &f.readers).map(|reader| reader.0).sum();
    assert!(shown > steps / 10, "VMEMKV_SEED={seed}: only {shown} changes were seen");
    run.too_old
}

#[test]
fn readers_see_every_change_in_order_or_are_too_old() {
    let seed = seed("readers_see_every_change_in_order_or_are_too_old");
    let too_old: usize = (0..6).map(|round| run(seed + round, 32 << 10, 100, 4000)).sum();
    assert!(too_old > 0, "VMEMKV_SEED={seed}: the log is never recycled");
}

#[test]
fn nobody_is_too_old_while_the_log_is_kept() {
    let seed = seed("nobody_is_too_old_while_the_log_is_kept");
    for round in 0..4 {
        assert_eq!(run(seed + round, 1 << 30, usize::MAX, 4000), 0, "VMEMKV_SEED={}", seed + round);
    }
}
