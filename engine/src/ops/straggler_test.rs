//! Splits and merges of shards against writers that dawdle under their stripe (F13, F14, F15, and
//! the straggler that seed 002 lost), and what the log says of revisions afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::api::{Condition, MergeShards, Operation, ScanOptions, SplitShard};
use crate::core::Core;
use crate::io::testing::{CrashDisk, PowerCut, SeededRandom};
use crate::options::Options;
use crate::recovery;
use crate::store::Planned;
use crate::sync::WordIndex;
use crate::types::{InstanceId, Lsn, Revision, ShardId};
use crate::wal::{BodyView, Op, Replay};

struct Bench {
    dir: tempfile::TempDir,
    disk: Arc<CrashDisk>,
    core: Arc<Core>,
    options: Options,
    images: usize,
}

impl Bench {
    fn new() -> Self {
        let options = Options { wal_segment_bytes: 16 << 20, ..Options::for_tests() };
        let dir = tempfile::tempdir().unwrap();
        let disk = CrashDisk::new(dir.path().join("data")).unwrap();
        let core = Arc::new(recovery::open(disk.clone(), options.clone()).unwrap());
        Self { dir, disk, core, options, images: 0 }
    }

    /// What the worst power cut leaves now.
    fn cut(&mut self) -> Arc<CrashDisk> {
        self.images += 1;
        let image = self.dir.path().join(self.images.to_string());
        self.disk.materialise(None, &image, &PowerCut::strict()).unwrap();
        CrashDisk::new(&image).unwrap()
    }

    fn after_cut(&mut self) -> Core {
        let cut = self.cut();
        recovery::open(cut, self.options.clone()).unwrap()
    }
}

fn put(core: &Core, key: &[u8], value: &[u8]) -> Lsn {
    let lsn = core.put(key, value, &Condition::None).unwrap().lsn;
    core.wal.wait(lsn).unwrap();
    lsn
}

fn split(core: &Core, shard: u64, key: &[u8]) -> [u64; 2] {
    let epoch = core.store.table.load().get(ShardId(shard)).unwrap().epoch + 1;
    let next = core.table_lock.lock().next_shard.0;
    let (left, right) = (ShardId(next), ShardId(next + 1));
    let key = key.to_vec();
    core.split_shard(&SplitShard { operation: 0, shard: ShardId(shard), key, left, right, epoch })
        .unwrap();
    [left.0, right.0]
}

fn merge(core: &Core, [left, right]: [u64; 2]) -> u64 {
    let epoch_of = |id| core.store.table.load().get(ShardId(id)).unwrap().epoch;
    let epoch = epoch_of(left).max(epoch_of(right)) + 1;
    let merged = core.table_lock.lock().next_shard;
    let (left, right) = (ShardId(left), ShardId(right));
    core.merge_shards(&MergeShards { operation: 0, left, right, merged, epoch }).unwrap();
    merged.0
}

/// Stripes are not public: words that differ modulo 1024 lie under different ones.
fn stripe(key: &[u8]) -> u32 {
    let text = format!("{:?}", WordIndex::of(key));
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u32>().unwrap() % 1024
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Split,
    Merge,
}

/// A writer has loaded shard and regions and dawdles; the shard is split or merged; another key is
/// written through the new shard, durably, and the power is cut there; only then the writer changes
/// what it has loaded.
fn change_meets_a_straggler(change: Change, key: &[u8], value: Option<&[u8]>) {
    let at = format!("{change:?} {} {:?}", key.escape_ascii(), value.map(<[u8]>::len));
    let mut bench = Bench::new();
    let core = Arc::clone(&bench.core);
    for side in [b'a', b'z'] {
        put(&core, &[side, b's'], &[1; 300]);
    }
    let ids = match change {
        Change::Split => [1, 0],
        Change::Merge => split(&core, 1, b"m"),
    };
    core.reorganize(None).unwrap();
    for side in [b'a', b'z'] {
        put(&core, &[side, b'r'], &[2; 300]);
    }
    let side = key[0];
    let other = (0..=u8::MAX).map(|i| [side, b'o', i]).find(|o| stripe(o) != stripe(key)).unwrap();
    let ops = [value.map_or(Op::delete(key), |value| Op::put(key, value))];
    let before = core.store.shard_of(key).unwrap().instance;

    let permit = core.wal.acquire(8192).unwrap();
    let held = core.stripes.lock([WordIndex::of(key)]);
    let Ok(Planned::Ready(plan)) = core.store.plan(key, value) else { panic!("{at}: no plan") };
    std::thread::scope(|scope| {
        let (done, ended) = channel();
        let changing = &core;
        scope.spawn(move || {
            match change {
                Change::Split => drop(split(changing, ids[0], b"m").len()),
                Change::Merge => assert!(merge(changing, ids) > 0),
            }
            done.send(()).unwrap();
        });
        while core.store.shard_of(key).unwrap().instance == before {
            std::thread::yield_now();
        }
        put(&core, &other, &[5; 100]);
        // It must not get on; a moment is enough for it to if it could.
        let early = ended.recv_timeout(Duration::from_millis(60));
        assert!(early.is_err(), "{at}: nobody waited for the holder of a stripe");
        // F15: the write names a shard whose record is not there.
        let after = bench.after_cut();
        assert_eq!(after.store.table.load().shards().len(), if ids[1] == 0 { 1 } else { 2 });
        assert_eq!(after.get(&other).unwrap(), Some(vec![5; 100]), "{at}: F15");
        drop(after);
        // F13, F14: the change is made in regions that the table does not name any more.
        let shard = plan.shard.clone();
        let in_flight = core.in_flight(held);
        in_flight.apply(plan);
        let lsn = core.log(permit, &[(&shard, &ops)]);
        in_flight.commit(lsn);
        ended.recv().unwrap();
    });
    let check = |core: &Core, when: &str| {
        assert_eq!(core.get(key).unwrap().as_deref(), value, "{at}: {when}");
        assert_eq!(core.get(&other).unwrap(), Some(vec![5; 100]), "{at}: {when}");
        let shards = core.store.table.load().shards().len();
        assert_eq!(shards, if ids[1] == 0 { 2 } else { 1 }, "{at}: {when}");
        let chunk = core.scan(&ScanOptions::default()).unwrap();
        let found: Vec<_> = chunk.entries.iter().map(|entry| entry.0.clone()).collect();
        assert!(found.is_sorted_by(|a, b| a < b), "{at}: {when}: a key twice");
        assert_eq!(found.contains(&key.to_vec()), value.is_some(), "{at}: {when}");
    };
    check(&core, "at once");
    check(&bench.after_cut(), "after a cut");
    check_log(bench.cut(), &bench.options);
    core.reorganize(None).unwrap();
    check(&core, "reorganized");
    core.checkpoint().unwrap();
    check(&bench.after_cut(), "after a checkpoint");
    put(&core, key, b"again");
    assert_eq!(bench.after_cut().get(key).unwrap().as_deref(), Some(&b"again"[..]), "{at}");
}

#[test]
fn f13_f14_f15_a_straggler_over_a_split_or_merge() {
    for change in [Change::Split, Change::Merge] {
        for value in [Some(&b"inline"[..]), Some(&[7; 300]), None] {
            for key in [&b"as"[..], b"ar", b"an", b"zs", b"zr", b"zn"] {
                if key[1] != b'n' || value.is_some() {
                    change_meets_a_straggler(change, key, value);
                }
            }
        }
    }
}

/// Writers of single keys and of batches over the cut, while the shard is split and merged all the
/// time. In the log the revisions of each key grow, and each change of shards stands where it says.
#[test]
fn revisions_are_in_log_order_over_splits_and_merges() {
    let mut bench = Bench::new();
    let core = Arc::clone(&bench.core);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (core, stop) = (&core, &stop);
            scope.spawn(move || {
                let mut random = SeededRandom(thread + 1);
                while !stop.load(Ordering::Relaxed) {
                    let mut key = || vec![b'a' + random.below(26) as u8];
                    let lsn = if key()[0] < b'm' {
                        core.put(&key(), b"v", &Condition::None).unwrap().lsn
                    } else {
                        let put = |key| Operation::Put { key, value: b"w".to_vec() };
                        core.write_batch(&[put(key()), put(key()), put(key())]).unwrap()
                    };
                    core.wal.wait(lsn).unwrap();
                }
            });
        }
        let mut only = 1;
        for round in 0..60u8 {
            let halves = split(&core, only, &[b'b' + round % 24]);
            if round % 3 == 0 {
                core.reorganize(None).unwrap();
            }
            only = merge(&core, halves);
        }
        stop.store(true, Ordering::Relaxed);
    });
    core.wal.wait(core.wal.appended_lsn()).unwrap();
    let (changes, writes) = check_log(bench.cut(), &bench.options);
    assert_eq!(changes, 120);
    assert!(writes > 200, "{writes} writes");
}

/// Reads the whole log: the revisions of each key grow, each change of shards stands where it says,
/// and what old and new shards logged side by side before it is in one order. Answers how many
/// changes and writes there are.
fn check_log(cut: Arc<CrashDisk>, options: &Options) -> (usize, usize) {
    let mut writes: Vec<(u64, InstanceId, Revision, Revision)> = Vec::new();
    // With how many of the instances are old.
    let mut changes: Vec<(u64, [InstanceId; 3], usize, Revision)> = Vec::new();
    let mut keys: BTreeMap<Vec<u8>, Revision> = BTreeMap::new();
    let replay = Replay::open(cut, options, Lsn(0), Lsn(0)).unwrap();
    replay
        .for_each(&mut |record, _| {
            let at = record.start_lsn().0;
            match record.body() {
                BodyView::Write(sections) => {
                    for section in sections {
                        let first = section.first_revision;
                        let mut last = first;
                        for (revision, op) in (first.0..).map(Revision).zip(section.ops()) {
                            let before = keys.insert(op.key.to_vec(), revision);
                            assert!(before.is_none_or(|before| before < revision), "LSN {at}");
                            last = revision;
                        }
                        writes.push((at, section.instance, first, last));
                    }
                }
                BodyView::Split(s) => {
                    changes.push((at, [s.parent.1, s.left.1, s.right.1], 1, s.revision));
                }
                BodyView::Merge(m) => {
                    changes.push((at, [m.left.1, m.right.1, m.merged.1], 2, m.revision));
                }
                _ => {}
            }
            Ok(())
        })
        .unwrap();
    for (at, instances, old, revision) in &changes {
        let (at, family) = (*at, writes.iter().filter(|write| instances.contains(&write.1)));
        let mut new = family.clone().filter(|write| instances[*old..].contains(&write.1));
        let side_by_side = new.next().map_or(at, |write| write.0);
        let mut before = Revision(0);
        for (lsn, _, first, last) in family {
            let stands_right = if *lsn < at { last <= revision } else { first > revision };
            assert!(stands_right, "{revision:?} at {at}, {first:?} to {last:?} at {lsn}");
            if (side_by_side..at).contains(lsn) {
                assert!(*first > before, "{first:?} at {lsn}, {before:?} before, change at {at}");
            }
            before = before.max(*last);
        }
    }
    (changes.len(), writes.len())
}

/// F16: a checkpoint holds the table lock from its position to its list of shards. It is held up in
/// between, at a busy shard; nothing may come in: the split would be in neither list nor log, or its
/// outcome would be.
#[test]
fn f16_no_shard_changes_between_a_checkpoints_position_and_its_list() {
    let mut bench = Bench::new();
    let core = Arc::clone(&bench.core);
    let [_, right] = split(&core, 1, b"h");
    let [_, last] = split(&core, right, b"p");
    core.checkpoint().unwrap();
    for key in [b"a", b"k", b"z"] {
        put(&core, key, &[1; 100]);
    }
    let middle = core.store.shard_of(b"k").unwrap();
    let busy = middle.structural.lock();
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| core.checkpoint());
        while core.store.shard_of(b"a").unwrap().load().frozen.is_none() {
            std::thread::yield_now();
        }
        let (done, ended) = channel();
        let changing = &core;
        scope.spawn(move || {
            let (left, right) = (ShardId(100), ShardId(101));
            let (operation, shard, key, epoch) = (7, ShardId(last), b"t".to_vec(), 9);
            let split = SplitShard { operation, shard, key, left, right, epoch };
            changing.split_shard(&split).unwrap();
            done.send(()).unwrap();
        });
        let early = ended.recv_timeout(Duration::from_millis(100));
        drop(busy);
        assert!(early.is_err(), "a split came between position and list");
        checkpoint.join().unwrap().unwrap();
        ended.recv().unwrap();
    });
    let after = bench.after_cut();
    assert_eq!(after.operation_outcome(7), Some(crate::api::OperationOutcome::Done));
    assert_eq!(after.store.table.load().shards().len(), 4);
    let all = ScanOptions::default();
    assert_eq!(after.scan(&all).unwrap(), core.scan(&all).unwrap());
}
