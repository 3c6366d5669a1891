//! The work that leaves each stored directory, and what is in it afterwards.
//!
//! Invariant: deterministic but for what the engine draws itself (salts, the node's id), so the
//! expected state is the same each time.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use vmemkv_engine::{
    Condition, Engine, ErrorKind, KeyRange, MergeShards, Operation, OperationOutcome, Options,
    ShardId, Sharding, SplitShard,
};

use crate::pack::hex;

/// Small segments; nothing happens by itself.
pub(crate) fn options() -> Options {
    Options {
        wal_segment_bytes: 16 << 10,
        wal_keep_bytes: 16 << 10,
        checkpoint_wal_bytes: 64 << 10,
        value_segment_bytes: (8 << 20) + (16 << 10),
        value_log_max_bytes: 1 << 30,
        ..Options::for_tests()
    }
}

/// What a directory holds, as the work says, and what the engine says of its shards.
pub(crate) struct Expected {
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    rest: String,
}

impl Expected {
    pub(crate) fn text(&self) -> String {
        entries(&self.model) + &self.rest
    }
}

fn entries(model: &BTreeMap<Vec<u8>, Vec<u8>>) -> String {
    model.iter().fold(String::new(), |mut text, (key, value)| {
        writeln!(text, "{} = {}", hex(key), short(value)).unwrap();
        text
    })
}

/// A value: long ones are one byte over and over.
fn short(value: &[u8]) -> String {
    let repeated = value.len() > 16 && value.iter().all(|byte| *byte == value[0]);
    if repeated { format!("{} x {:02x}", value.len(), value[0]) } else { hex(value) }
}

/// Contents, shards, outcomes of the operations, and the last changes of each shard.
pub(crate) fn describe(engine: &Engine) -> String {
    entries(&crate::contents(engine)) + &describe_shards(engine)
}

fn describe_shards(engine: &Engine) -> String {
    let mut text = String::new();
    for shard in engine.shards() {
        let (id, epoch, revision) = (shard.id, shard.epoch, shard.revision);
        writeln!(text, "shard {id} {:?} epoch {epoch} revision {revision}", shard.range).unwrap();
    }
    for operation in 1..10 {
        match engine.operation_outcome(operation) {
            None => {}
            Some(OperationOutcome::Done) => writeln!(text, "operation {operation} done").unwrap(),
            Some(OperationOutcome::Refused { reason }) => {
                writeln!(text, "operation {operation} refused: {reason}").unwrap();
            }
        }
    }
    text
}

/// An engine and what is in it.
struct Work {
    engine: Engine,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Work {
    fn begin(root: &Path, sharding: Sharding) -> Self {
        Self::begin_with(root, Options { sharding, ..options() })
    }

    fn begin_with(root: &Path, options: Options) -> Self {
        let engine = Engine::open(root, options).unwrap();
        Self { engine, model: BTreeMap::new() }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let lsn = self.engine.put(key, value, &Condition::None).unwrap().lsn;
        self.engine.wait_durable(lsn).unwrap();
        self.model.insert(key.to_vec(), value.to_vec());
    }

    fn delete(&mut self, key: &[u8]) {
        let lsn = self.engine.delete(key, &Condition::None).unwrap().lsn;
        self.engine.wait_durable(lsn).unwrap();
        self.model.remove(key);
    }

    fn batch(&mut self, puts: &[(&[u8], &[u8])], deletes: &[&[u8]]) {
        let put = |(key, value): &(&[u8], &[u8])| Operation::Put {
            key: key.to_vec(),
            value: value.to_vec(),
        };
        let delete = |key: &&[u8]| Operation::Delete { key: key.to_vec() };
        let operations: Vec<_> = puts.iter().map(put).chain(deletes.iter().map(delete)).collect();
        let lsn = self.engine.write_batch(&operations).unwrap();
        self.engine.wait_durable(lsn).unwrap();
        for (key, value) in puts {
            self.model.insert(key.to_vec(), value.to_vec());
        }
        for key in deletes {
            self.model.remove(*key);
        }
    }

    /// Inline values of each length, values around the inline limit, empty ones, long keys.
    fn edges(&mut self) {
        for len in 0..=10 {
            self.put(format!("len/{len:02}").as_bytes(), &vec![0xff; len]);
        }
        self.put(b"a", b"one byte");
        self.put(b"a\0", b"two bytes, and a value that is not inline");
        self.put(&[0xff; 3], b"high");
        self.put(&[b'p'; 300], &[7; 3000]);
        self.put(&[&[b'p'; 299][..], b"q"].concat(), b"");
    }

    fn many(&mut self, from: usize, to: usize, byte: u8) {
        for number in from..to {
            let key = format!("tenant/table/{number:04}");
            self.put(key.as_bytes(), &vec![byte; 5 + number * 7 % 120]);
        }
    }

    fn end(self, clean: bool) -> Expected {
        let rest = describe_shards(&self.engine);
        if clean {
            self.engine.close().unwrap();
        } else {
            drop(self.engine);
        }
        Expected { model: self.model, rest }
    }
}

fn alone(boundaries: &[&[u8]]) -> Sharding {
    Sharding::Alone { boundaries: boundaries.iter().map(|key| key.to_vec()).collect() }
}

/// Two shards, several checkpoints with few changes each (deltas), tombstones, a clean stop.
pub(crate) fn clean(root: &Path) -> Expected {
    let mut work = Work::begin(root, alone(&[b"m"]));
    work.edges();
    work.many(0, 130, b'1');
    work.engine.checkpoint().unwrap();
    for round in 0..3 {
        work.many(round * 5, round * 5 + 4, b'2');
        work.delete(format!("tenant/table/{:04}", 50 + round).as_bytes());
        work.put(b"len/03", &[round as u8; 20]);
        if round == 1 {
            work.engine.reorganize(None).unwrap();
        }
        work.engine.checkpoint().unwrap();
    }
    work.delete(b"a");
    work.put(b"last", b"before the stop");
    work.end(true)
}

/// A checkpoint, then several log segments that end with no clean stop: puts, values changed in
/// place, deletes, a batch over two shards, a delete of a range.
pub(crate) fn unclean(root: &Path) -> Expected {
    let mut work = Work::begin(root, alone(&[b"m"]));
    work.edges();
    work.many(0, 60, b'1');
    work.engine.checkpoint().unwrap();
    work.many(40, 120, b'2');
    work.many(100, 110, b'3');
    work.put(b"long", &[9; 20_000]);
    work.batch(
        &[(b"batch/1", b"left"), (b"z/2", &[5; 40]), (b"tenant/table/0001", b"b")],
        &[b"len/05", b"missing"],
    );
    let range = KeyRange::new(*b"tenant/table/0010", *b"tenant/table/0020");
    let deleted = work.engine.delete_range(&range, 100).unwrap();
    work.engine.wait_durable(deleted.lsn).unwrap();
    work.model.retain(|key, _| !range.contains(key));
    work.delete(b"tenant/table/0119");
    work.put(b"tenant/table/0119", b"again");
    work.end(false)
}

/// Values that the log only refers to, as of the checkpoint and after it, some of them replaced; no
/// clean stop.
pub(crate) fn references(root: &Path) -> Expected {
    let sharding = alone(&[b"m"]);
    let mut work = Work::begin_with(root, Options { sharding, write_once_bytes: 100, ..options() });
    work.many(0, 20, b'1');
    work.put(b"z/1", &[1; 5000]);
    work.engine.checkpoint().unwrap();
    work.put(b"z/1", &[2; 4000]);
    work.put(b"z/2", &[3; 100]);
    work.batch(&[(b"a/1", &[4; 300]), (b"a/2", b"here"), (b"z/3", &[5; 200])], &[b"z/2"]);
    work.many(15, 25, b'6');
    assert!(work.engine.stats().counters.puts_once > 5);
    work.end(false)
}

/// Shards that somebody made, split and merged, some as of the checkpoint and some in the log;
/// operations that were executed, refused and forgotten.
pub(crate) fn shards(root: &Path) -> Expected {
    let mut work = Work::begin(root, Sharding::Managed);
    let create = |work: &Work, id, start: &[u8], end: &[u8]| {
        work.engine.create_shard(ShardId(id), &KeyRange::new(start, end), 1).unwrap();
    };
    create(&work, 10, b"", b"m");
    create(&work, 11, b"m", b"");
    work.many(0, 80, b'1');
    work.edges();
    let split = |work: &Work, operation, shard, key: &[u8], left, right, epoch| {
        let (shard, key) = (ShardId(shard), key.to_vec());
        let (left, right) = (ShardId(left), ShardId(right));
        work.engine.split_shard(&SplitShard { operation, shard, key, left, right, epoch }).unwrap();
    };
    split(&work, 1, 11, b"tenant/table/0040", 12, 13, 2);
    work.many(30, 50, b'2');
    work.engine.refuse_operation(2, "the plan changed").unwrap();
    work.engine.refuse_operation(3, "and this is forgotten").unwrap();
    work.engine.checkpoint().unwrap();
    work.engine.forget_operation(3).unwrap();
    work.many(45, 55, b'3');
    split(&work, 4, 13, b"tenant/table/0060", 14, 15, 3);
    work.many(55, 65, b'4');
    let (left, right, merged) = (ShardId(12), ShardId(14), ShardId(16));
    work.engine.merge_shards(&MergeShards { operation: 5, left, right, merged, epoch: 4 }).unwrap();
    work.many(35, 45, b'5');
    work.engine.refuse_operation(6, "too late").unwrap();
    let error = work
        .engine
        .split_shard(&SplitShard {
            operation: 6,
            shard: ShardId(16),
            key: b"n".to_vec(),
            left: ShardId(17),
            right: ShardId(18),
            epoch: 5,
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    work.end(false)
}
