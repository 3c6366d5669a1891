//! Replay by several workers against replay by one: random logs with splits, merges, batches and full
//! append regions; and logs with records that cannot be replayed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{Condition, MergeShards, Operation, ScanOptions, SplitShard};
use crate::core::Core;
use crate::error::ErrorKind;
use crate::io::testing::{CrashDisk, SeededRandom};
use crate::options::{Options, Sharding};
use crate::recovery::{self, open_with};
use crate::types::{KeyRange, Lsn, Revision, ShardId};
use crate::wal::{Body, Op, Record, RequestId, Section};

fn options() -> Options {
    Options {
        wal_segment_bytes: 1 << 20,
        wal_keep_bytes: 0,
        write_once_bytes: usize::MAX,
        ..Options::for_tests()
    }
}

fn seed(test: &str) -> u64 {
    let given = std::env::var("VMEMKV_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = given.unwrap_or_else(|| now.map_or(1, |now| now.as_nanos() as u64 & 0xffff_ffff));
    println!("{test}: VMEMKV_SEED={seed}");
    seed
}

fn key(random: &mut SeededRandom) -> Vec<u8> {
    // Few keys that are written again and again, and many that fill the append regions.
    match random.below(4) {
        0 => format!("hot/{:02}", random.below(20)).into_bytes(),
        _ => format!("key/{:05}", random.below(30_000)).into_bytes(),
    }
}

fn value(random: &mut SeededRandom) -> Vec<u8> {
    let len = [4, 8, 30, 100, 2000][random.below(5) as usize];
    let word = random.next().to_le_bytes();
    word.iter().copied().cycle().take(len).collect()
}

fn change_shards(core: &Core, random: &mut SeededRandom) {
    let shards = core.shard_infos();
    let next = core.table_lock.lock().next_shard.0;
    let epoch = shards.iter().map(|shard| shard.epoch).max().unwrap() + 1;
    if shards.len() > 3 {
        let at = random.below(shards.len() as u64 - 1) as usize;
        let (left, right) = (shards[at].id, shards[at + 1].id);
        let merged = ShardId(next);
        core.merge_shards(&MergeShards { operation: next, left, right, merged, epoch }).unwrap();
        return;
    }
    let key = key(random);
    let parent = shards.iter().find(|shard| shard.range.contains(&key)).unwrap();
    if parent.range.start != key {
        let (shard, left, right) = (parent.id, ShardId(next), ShardId(next + 1));
        core.split_shard(&SplitShard { operation: next, shard, key, left, right, epoch }).unwrap();
    }
}

/// A log of many records, in a directory without a checkpoint. Without `changes` of shards the
/// append region of the only one fills up several times.
fn write_log(core: &Core, random: &mut SeededRandom, changes: bool) {
    for step in 0..8000 {
        match random.below(100) {
            0..60 => drop(core.put(&key(random), &value(random), &Condition::None).unwrap()),
            60..85 => drop(core.delete(&key(random), &Condition::None).unwrap()),
            85..98 => {
                let put = |random: &mut SeededRandom| Operation::Put {
                    key: key(random),
                    value: value(random),
                };
                let operations: Vec<_> = (0..1 + random.below(40)).map(|_| put(random)).collect();
                core.write_batch(&operations).unwrap();
            }
            _ => {
                let start = key(random);
                let range = KeyRange::new(start.clone(), [&start[..], b"~"].concat());
                core.delete_range(&range, 100).unwrap();
            }
        }
        if changes && step % 100 == 99 {
            change_shards(core, random);
        }
    }
    core.wal.wait(core.wal.appended_lsn()).unwrap();
}

mod faults;

type Shown = (BTreeMap<Vec<u8>, Vec<u8>>, Vec<(ShardId, KeyRange, u64, Revision)>);

/// All that an engine shows.
fn shown(core: &Core) -> Shown {
    let mut options = ScanOptions::default();
    let mut entries = BTreeMap::new();
    loop {
        let chunk = core.scan(&options).unwrap();
        entries.extend(chunk.entries);
        if chunk.done {
            break;
        }
        options.range.start = chunk.covered_to;
    }
    let shards = core.shard_infos().into_iter();
    (entries, shards.map(|one| (one.id, one.range, one.epoch, one.revision)).collect())
}

#[test]
fn many_workers_replay_what_one_does() {
    let seed = seed("many workers");
    let dir = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let mut random = SeededRandom(seed + round);
        let disk = CrashDisk::new(dir.path().join(format!("{round}"))).unwrap();
        let core = recovery::open(disk.clone(), options()).unwrap();
        write_log(&core, &mut random, round % 2 == 1);
        let expected = shown(&core);
        for workers in [1, 2, 5] {
            let copy = disk.kill(&dir.path().join(format!("{round}-{workers}"))).unwrap();
            let again = open_with(copy, options(), workers).unwrap();
            let at = format!("seed {seed} round {round} workers {workers}");
            let found = shown(&again);
            assert!(found.0 == expected.0, "{at}: contents");
            assert_eq!(found.1, expected.1, "{at}: shards");
            assert_eq!(again.recount_live(), Vec::<String>::new(), "{at}");
        }
    }
}

/// A worker that has failed never answers: whoever waits for it must hear of its end. Behind the bad
/// record comes one that waits for all workers.
#[test]
fn a_record_that_waits_for_a_failed_worker_does_not_wait_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { sharding: Sharding::Managed, ..options() };
    for round in 0..20 {
        let disk = CrashDisk::new(dir.path().join(format!("data-{round}"))).unwrap();
        let core = recovery::open(disk.clone(), options.clone()).unwrap();
        core.create_shard(ShardId(1), &KeyRange::new("a", "m"), 1).unwrap();
        let first = log(&core, format!("z{round}").as_bytes());
        core.create_shard(ShardId(2), &KeyRange::new("n", "o"), 1).unwrap();
        for workers in [2, 3] {
            let copy = disk.kill(&dir.path().join(format!("{round}-{workers}"))).unwrap();
            let (done, ended) = std::sync::mpsc::channel();
            let options = options.clone();
            std::thread::spawn(move || done.send(open_with(copy, options, workers).err()));
            let ended = ended.recv_timeout(Duration::from_secs(60));
            let error = ended.expect("the open hangs").expect("the record cannot be replayed");
            let expected = format!("log record at LSN {first} cannot be replayed");
            assert!(error.message().starts_with(&expected), "{error}, not {expected}");
        }
    }
}

/// Logs a write as it is, whatever shards there are; where its record starts.
fn log(core: &Core, key: &[u8]) -> Lsn {
    let ops = [Op::put(key, b"some value")];
    let instance = core.shard_infos()[0].instance;
    let sections = [Section { instance, first_revision: Revision(9), ops: &ops }];
    let record = Record { body: Body::Write(&sections), request: RequestId::default() };
    let permit = core.wal.acquire(record.encoded_len()).unwrap();
    let start = core.wal.appended_lsn();
    core.wal.wait(core.wal.reserve(permit).publish(&record)).unwrap();
    start
}

/// Log records that no shard holds, amid others: the first of them is the one that is named, however
/// the workers share the keys.
#[test]
fn the_first_record_that_cannot_be_replayed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { sharding: Sharding::Managed, ..options() };
    let disk = CrashDisk::new(dir.path().join("data")).unwrap();
    let core = recovery::open(disk.clone(), options.clone()).unwrap();
    core.create_shard(ShardId(1), &KeyRange::new("a", "m"), 1).unwrap();
    (0..700u32).for_each(|i| _ = log(&core, format!("b{i}").as_bytes()));
    let first = log(&core, b"z0");
    (0..700u32).for_each(|i| _ = log(&core, format!("b{i}").as_bytes()));
    (1..20u32).for_each(|i| _ = log(&core, format!("z{i}").as_bytes()));
    for workers in [1, 2, 3, 5] {
        let copy = disk.kill(&dir.path().join(format!("{workers}"))).unwrap();
        let error = open_with(copy, options.clone(), workers).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{workers}: {error}");
        let expected = format!("log record at LSN {first} cannot be replayed");
        assert!(error.message().starts_with(&expected), "{workers}: {error}, not {expected}");
    }
}
