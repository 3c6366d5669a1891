//! A random run of operations over an engine and a model of it.
//!
//! Invariant: `durable` plus the first `k` of `pending`, for some `k`, is what a crash leaves.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod compare;
#[path = "../support/scribble.rs"]
mod scribble;
mod shards;

use std::collections::BTreeMap;
use std::sync::Arc;

use compare::{check_scan, contents, difference, set};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use scribble::{cut_to, killed_to};
use vmemkv_engine::io::testing::{CrashDisk, PowerCut};
use vmemkv_engine::{
    Condition, Continue, DefragmentOptions, DefragmentProgress, DefragmentReport, Engine, KeyRange,
    Lsn, Operation, Options, ScanOptions, TryGet, Written,
};

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;
/// Keys with their new values; `None` removes.
type Change = Vec<(Vec<u8>, Option<Vec<u8>>)>;

pub(crate) struct Run {
    seed: u64,
    random: StdRng,
    options: Options,
    _folder: tempfile::TempDir,
    next_dir: usize,
    disk: Arc<CrashDisk>,
    engine: Option<Engine>,
    /// As applied.
    model: Model,
    /// As of the last write known durable.
    durable: Model,
    pending: Vec<(Lsn, Change)>,
    /// Records that defragment moved.
    moved: u64,
    /// Records that were put in order.
    ordered: u64,
    shards: shards::Expected,
}

impl Run {
    pub(crate) fn new(seed: u64, options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = CrashDisk::new(folder.path().join("0")).unwrap();
        let engine = Engine::open_on(disk.clone(), options.clone()).unwrap();
        Self {
            seed,
            random: StdRng::seed_from_u64(seed),
            options,
            _folder: folder,
            next_dir: 1,
            disk,
            engine: Some(engine),
            model: Model::new(),
            durable: Model::new(),
            pending: Vec::new(),
            moved: 0,
            ordered: 0,
            shards: shards::Expected::default(),
        }
    }

    pub(crate) fn run(&mut self, operations: usize) {
        for number in 0..operations {
            let before = format!("seed {} operation {number}", self.seed);
            self.step(&before);
        }
        self.compare_all("at the end");
        println!("defragment moved {} records, {} were put in order", self.moved, self.ordered);
        // The background may have been faster.
        let found = self.moved > 0 || self.options.background;
        assert!(found, "seed {}: defragment found something to do", self.seed);
        let found = self.ordered > 0 || self.options.background;
        assert!(found, "seed {}: something was put in order", self.seed);
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    fn key(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        match random.random_range(0..10) {
            0 => b"a"[..].to_vec(),
            1 => b"a\0"[..].to_vec(),
            2 => vec![0; random.random_range(1..4)],
            3 => vec![0xff; random.random_range(1..4)],
            4 => {
                let mut key = vec![b'p'; 200];
                key.push(random.random_range(0..4));
                key
            }
            5 => format!("k/{:04}", random.random_range(0..50)).into_bytes(),
            _ => format!("tenant/table/{:06}", random.random_range(0..2000)).into_bytes(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let len = match random.random_range(0..100) {
            0..40 => random.random_range(0..=9),
            40..80 => random.random_range(10..200),
            80..99 => random.random_range(200..5000),
            _ => random.random_range(5000..40_000),
        };
        let byte: u8 = random.random();
        let mut value = vec![byte; len];
        random.fill(&mut value[..len.min(8)]);
        value
    }

    fn condition(&mut self, key: &[u8]) -> Condition {
        match self.random.random_range(0..8) {
            0 => Condition::IfAbsent,
            1 => Condition::IfPresent,
            2 => Condition::IfValueEquals(self.value()),
            3 => Condition::IfValueEquals(self.model.get(key).cloned().unwrap_or_default()),
            _ => Condition::None,
        }
    }

    fn range(&mut self) -> KeyRange {
        let (a, b) = (self.key(), self.key());
        match self.random.random_range(0..6) {
            0 => KeyRange::all(),
            1 => KeyRange::new(a, Vec::new()),
            2 => KeyRange::new(Vec::new(), b),
            _ => KeyRange::new(a.clone().min(b.clone()), a.max(b)),
        }
    }

    fn step(&mut self, at: &str) {
        match self.random.random_range(0..10_000) {
            0..40 => self.change_shards(at),
            40..4500 => self.write(at),
            4500..6500 => self.get(at),
            6500..7300 => self.scan(at),
            7300..8200 => self.batch(at),
            8200..8500 => self.delete_range(at),
            8500..9700 => self.wait(at),
            9700..9900 => self.engine().reorganize(None).unwrap(),
            9900..9940 => self.engine().checkpoint().map(drop).unwrap(),
            9940..9950 => self.put_in_order(at),
            9950..9970 => self.defragment(at),
            9970..9980 => self.compare_all(at),
            9980..9984 => self.reopen(at),
            9984..9992 => self.kill(at),
            _ => self.power_cut(at),
        }
    }

    fn applied(&mut self, lsn: Lsn, change: Change) {
        for (key, value) in &change {
            set(&mut self.model, key, value.as_ref());
        }
        self.pending.push((lsn, change));
    }

    fn write(&mut self, at: &str) {
        let key = self.key();
        let condition = self.condition(&key);
        let old = self.model.get(&key).cloned();
        let holds = match &condition {
            Condition::None => true,
            Condition::IfAbsent => old.is_none(),
            Condition::IfPresent => old.is_some(),
            Condition::IfValueEquals(expected) => old.as_ref() == Some(expected),
        };
        let delete = self.random.random_bool(0.3);
        let value = (!delete).then(|| self.value());
        let written = match &value {
            Some(value) => self.engine().put(&key, value, &condition),
            None => self.engine().delete(&key, &condition),
        };
        let Written { applied, existed, current, lsn } = written.unwrap();
        assert_eq!((applied, existed), (holds, old.is_some()), "{at}: {condition:?}");
        if applied {
            assert_eq!(current, None, "{at}");
            if value.is_some() || existed {
                self.applied(lsn, vec![(key, value)]);
            }
        } else {
            assert_eq!(current, old, "{at}");
        }
    }

    fn get(&mut self, at: &str) {
        let key = self.key();
        let expected = self.model.get(&key).cloned();
        let found = match self.random.random_range(0..2) {
            0 => self.engine().get(&key).unwrap(),
            _ => loop {
                match self.engine().try_get(&key).unwrap() {
                    TryGet::Ready(value) => break value,
                    TryGet::Cold => break self.engine().get(&key).unwrap(),
                    TryGet::Pending(lsn) => self.engine().wait_durable(lsn).unwrap(),
                }
            },
        };
        assert_eq!(found, expected, "{at}: {}", key.escape_ascii());
    }

    fn scan(&mut self, at: &str) {
        let options = ScanOptions {
            range: self.range(),
            reverse: self.random.random_bool(0.5),
            limit: self.random.random_range(0..40),
            keys_only: self.random.random_bool(0.3),
            max_bytes: self.random.random_range(1..4000),
        };
        check_scan(self.engine(), &self.model, &options, at);
    }

    fn batch(&mut self, at: &str) {
        let mut operations = Vec::new();
        let mut change: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        for _ in 0..self.random.random_range(0..12) {
            let key = self.key();
            if self.random.random_bool(0.3) {
                change.insert(key.clone(), None);
                operations.push(Operation::Delete { key });
            } else {
                let value = self.value();
                change.insert(key.clone(), Some(value.clone()));
                operations.push(Operation::Put { key, value });
            }
        }
        let lsn = self.engine().write_batch(&operations).unwrap_or_else(|e| panic!("{at}: {e}"));
        change.retain(|key, value| value.is_some() || self.model.contains_key(key));
        if !change.is_empty() {
            self.applied(lsn, change.into_iter().collect());
        }
    }

    fn delete_range(&mut self, at: &str) {
        let mut range = self.range();
        if self.random.random_bool(0.9) {
            // Mostly small ones, or nothing would be left.
            range.end = range.start.clone();
            range.end.push(b'5');
        }
        let max_keys = self.random.random_range(1..300);
        let deleted = self.engine().delete_range(&range, max_keys).unwrap();
        let covered = KeyRange::new(range.start.clone(), deleted.covered_to.clone());
        let gone: Vec<_> = self.model.keys().filter(|key| covered.contains(key)).cloned().collect();
        assert_eq!(deleted.deleted as usize, gone.len(), "{at} {range:?} {covered:?}");
        assert_eq!(deleted.done, deleted.covered_to == range.end || range.is_empty(), "{at}");
        // A range is several records; here one thread writes, so the chunks are known.
        for chunk in gone.chunks(128) {
            let change = chunk.iter().map(|key| (key.clone(), None)).collect();
            self.applied(deleted.lsn, change);
        }
    }

    fn wait(&mut self, _at: &str) {
        if let Some((lsn, _)) = self.pending.last() {
            self.engine().wait_durable(*lsn).unwrap();
        }
        self.settle();
    }

    /// Moves what is durable out of `pending`.
    fn settle(&mut self) {
        let durable = self.engine().durable_lsn();
        let count = self.pending.iter().take_while(|(lsn, _)| *lsn <= durable).count();
        for (_, change) in self.pending.drain(..count) {
            for (key, value) in change {
                set(&mut self.durable, &key, value.as_ref());
            }
        }
    }

    fn compare_all(&mut self, at: &str) {
        self.check_shards(at);
        let found = contents(self.engine());
        assert!(found == self.model, "{at}: {}", difference(&found, &self.model));
        let report = self.engine().verify(&|| false).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "{at}");
        assert_eq!(report.records as usize, self.model.len(), "{at}");
        let mut sum = vmemkv_engine::Checksum::default();
        self.model.iter().for_each(|(key, value)| sum.add(key, value));
        assert_eq!(self.engine().checksum(&KeyRange::all(), &|| false).unwrap(), sum, "{at}");
        if !self.options.background {
            // Nobody moves records meanwhile.
            assert_eq!(self.engine().recount_live(), Vec::<String>::new(), "{at}");
        }
    }

    /// Empties whatever has a dead byte; one in three is ended early.
    fn defragment(&mut self, at: &str) {
        self.moved += self.move_records(at, |engine, control| {
            let options = DefragmentOptions { min_dead_ratio: 0.001, max_bytes: 0 };
            engine.defragment(&options, control).unwrap()
        });
    }

    /// Puts whatever is not in key order; one in three is ended early.
    fn put_in_order(&mut self, at: &str) {
        if self.random.random_bool(0.3) {
            // The open segment is left alone: this opens another one.
            let (key, value) = (b"z/filler".to_vec(), vec![1; 8 << 20]);
            let lsn = self.engine().put(&key, &value, &Condition::None).unwrap().lsn;
            self.applied(lsn, vec![(key.clone(), Some(value))]);
            let lsn = self.engine().delete(&key, &Condition::None).unwrap().lsn;
            self.applied(lsn, vec![(key, None)]);
            self.engine().checkpoint().unwrap();
        }
        self.ordered += self.move_records(at, |engine, control| {
            engine.put_in_order(&DefragmentOptions::default(), control).unwrap()
        });
    }

    fn move_records(
        &mut self,
        at: &str,
        job: impl Fn(&Engine, &dyn Fn(DefragmentProgress) -> Continue) -> DefragmentReport,
    ) -> u64 {
        let steps = match self.random.random_range(0..3) {
            0 => self.random.random_range(1..20),
            _ => u32::MAX,
        };
        let left = std::cell::Cell::new(steps);
        let control = |_| {
            left.set(left.get().saturating_sub(1));
            if left.get() == 0 { Continue::No } else { Continue::Yes }
        };
        let report = job(self.engine(), &control);
        assert_eq!(report.problems, Vec::<String>::new(), "{at}");
        assert!(report.cancelled || steps == u32::MAX || left.get() > 0, "{at}");
        report.records_moved
    }

    fn next_dir(&mut self) -> std::path::PathBuf {
        let dir = self._folder.path().join(self.next_dir.to_string());
        self.next_dir += 1;
        dir
    }

    fn reopen(&mut self, at: &str) {
        let engine = self.engine.take().unwrap();
        if self.random.random_bool(0.5) {
            engine.close().unwrap();
        } else {
            drop(engine);
        }
        self.open(at);
        // Closing and dropping both flush the log.
        let found = contents(self.engine());
        assert!(found == self.model, "{at}: reopen: {}", difference(&found, &self.model));
        self.durable = self.model.clone();
        self.pending.clear();
    }

    fn kill(&mut self, at: &str) {
        self.settle();
        let dir = self.next_dir();
        let disk = killed_to(&self.disk, &dir, self.random.random());
        self.crashed(disk, at);
    }

    fn power_cut(&mut self, at: &str) {
        self.settle();
        let dir = self.next_dir();
        let cut = PowerCut::random(self.random.random());
        let disk = cut_to(&self.disk, None, &dir, &cut);
        self.crashed(disk, at);
    }

    fn crashed(&mut self, disk: Arc<CrashDisk>, at: &str) {
        // The old process goes on in its own folder; what it does there is of no consequence.
        drop(self.engine.take());
        let old = std::mem::replace(&mut self.disk, disk);
        let _ = std::fs::remove_dir_all(vmemkv_engine::io::Disk::root(&*old));
        self.open(at);
        let found = contents(self.engine());
        let mut expected = self.durable.clone();
        let mut pending = std::mem::take(&mut self.pending).into_iter();
        while found != expected {
            let Some((_, change)) = pending.next() else {
                panic!("{at}: after a crash: {}", difference(&found, &expected));
            };
            change.iter().for_each(|(key, value)| set(&mut expected, key, value.as_ref()));
        }
        self.durable = expected.clone();
        self.model = expected;
    }

    fn open(&mut self, at: &str) {
        let engine = Engine::open_on(self.disk.clone(), self.options.clone());
        self.engine = Some(engine.unwrap_or_else(|error| panic!("{at}: open: {error:?}")));
        self.check_shards(at);
    }
}
