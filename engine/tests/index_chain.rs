//! Index files of what changed: a checkpoint writes in proportion to that, and the files of a shard
//! add up, over deletes, merges, failed checkpoints and crashes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use support::{
    GateDisk, contents, cut_to, delete, difference, fast_dir, index_files, put, put_durable, seed,
    small, verify, watchdog,
};
use vmemkv_engine::io::testing::{CrashDisk, Fault, FaultDisk, Operation as Io, PowerCut};
use vmemkv_engine::{Engine, Options, Sharding};

/// An engine whose disk can fail and lose power.
struct Bench {
    engine: Option<Engine>,
    options: Options,
    disk: Arc<FaultDisk>,
    crash: Arc<CrashDisk>,
    images: usize,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(options: Options) -> Self {
        let dir = fast_dir();
        let crash = CrashDisk::new(dir.path().join("data")).unwrap();
        let disk = FaultDisk::with_seed(crash.clone(), 1);
        let engine = Some(Engine::open_on(disk.clone(), options.clone()).unwrap());
        Self { engine, options, disk, crash, images: 0, dir }
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    fn files(&self) -> usize {
        index_files(vmemkv_engine::io::Disk::root(&*self.crash)).len()
    }

    /// What the worst power cut leaves is all that the engine shows, and whole.
    fn survives(&mut self, at: &str) {
        let expected = contents(self.engine());
        self.images += 1;
        let image = self.dir.path().join(self.images.to_string());
        let disk = cut_to(&self.crash, None, &image, &PowerCut::strict());
        let engine = Engine::open_on(disk, self.options.clone());
        let engine = engine.unwrap_or_else(|error| panic!("{at}: open: {error}"));
        let found = contents(&engine);
        assert!(found == expected, "{at}: {}", difference(&found, &expected));
        verify(&engine, at);
        drop(engine);
        std::fs::remove_dir_all(&image).unwrap();
    }

    fn reopen(&mut self) {
        drop(self.engine.take());
        self.engine = Some(Engine::open_on(self.disk.clone(), self.options.clone()).unwrap());
    }
}

fn key(n: usize) -> Vec<u8> {
    format!("key/{n:06}").into_bytes()
}

/// Puts the first `count` keys.
fn load(engine: &Engine, count: usize) {
    for n in 0..count {
        put(engine, &key(n), &[1; 40]);
    }
}

/// Some shards, of which a checkpoint writes one after the other.
fn shards() -> Options {
    let boundaries = [100, 200, 300].map(key).to_vec();
    Options { sharding: Sharding::Alone { boundaries }, ..small() }
}

#[test]
fn a_checkpoint_writes_what_changed() {
    let bench = Bench::new(Options { append_capacity: 1 << 15, ..small() });
    let engine = bench.engine();
    load(engine, 20_000);
    let first = engine.checkpoint().unwrap();
    assert!(first.index_bytes > 20_000 * 10, "{first:?}");
    for round in 1..6 {
        let before = engine.stats().wal.bytes;
        // One in a hundred, all over the shard.
        for n in (0..20_000).skip(round).step_by(100) {
            put(engine, &key(n), &[round as u8; 40]);
        }
        let report = engine.checkpoint().unwrap();
        let log_bytes = engine.stats().wal.bytes - before;
        assert!(report.index_bytes > 200 * 10 && report.index_bytes * 5 < first.index_bytes);
        assert!(report.index_bytes < log_bytes, "{report:?} of {log_bytes}");
        assert_eq!(bench.files(), 1 + round);
        assert_eq!(engine.stats().last_checkpoint.index_bytes, report.index_bytes);
    }
    let total = engine.stats().counters.checkpoint_index_bytes;
    assert!(total > first.index_bytes && total < first.index_bytes * 6 / 5);
}

/// A shard that nobody wrote to costs nothing.
#[test]
fn an_unchanged_shard_gets_no_file() {
    let mut bench = Bench::new(shards());
    let engine = bench.engine();
    load(engine, 400);
    engine.checkpoint().unwrap();
    assert_eq!(bench.files(), 4);
    put_durable(engine, &key(150), &[2; 40]);
    let report = engine.checkpoint().unwrap();
    assert_eq!(bench.files(), 5);
    assert!(report.index_bytes < 400, "{report:?}");
    assert_eq!(engine.checkpoint().unwrap().index_bytes, 0);
    bench.survives("one changed");
}

/// The old file has the key alive, so the delete must reach a file before it is forgotten.
#[test]
fn what_is_deleted_stays_deleted() {
    for merges in 0..3 {
        let mut bench = Bench::new(small());
        let at = format!("{merges} merges");
        load(bench.engine(), 100);
        put(bench.engine(), b"short", b"inline");
        bench.engine().checkpoint().unwrap();
        for round in 0..4 {
            let engine = bench.engine();
            // In its cell, and, from the second round on, after it was put again.
            delete(engine, &key(10 + round));
            delete(engine, b"short");
            delete(engine, &key(7));
            (0..merges).for_each(|_| engine.reorganize(None).unwrap());
            let report = engine.checkpoint().unwrap();
            assert!(report.index_bytes < 700, "{at}: a delta: {report:?}");
            assert_eq!(engine.get(&key(7)).unwrap(), None);
            bench.survives(&at);
            (0..merges).for_each(|_| bench.engine().reorganize(None).unwrap());
            bench.survives(&format!("{at}, merged after"));
            if round % 2 == 1 {
                bench.reopen();
            }
            let engine = bench.engine();
            assert_eq!(engine.get(b"short").unwrap(), None, "{at}");
            assert_eq!(contents(engine).len(), 100 - round - 2 + usize::from(round > 9));
            put(engine, b"short", b"again");
            put_durable(engine, &key(7), &[round as u8; 60]);
            engine.reorganize(None).unwrap();
            if merges == 2 {
                engine.checkpoint().unwrap();
            }
            bench.survives(&format!("{at}, put again"));
        }
    }
}

/// A checkpoint that fails at any step, in any shard, after others have been written: what it took
/// for written is not, also when the shard is merged before the next attempt.
#[test]
fn a_failed_checkpoint_forgets_nothing() {
    let steps = [
        (Io::Create, "t1/"),
        (Io::Write, "t1/"),
        (Io::Create, "MANIFEST"),
        (Io::Write, "MANIFEST"),
    ];
    watchdog("failed checkpoints", 120, || {
        for (operation, path) in steps {
            for skip in 0..4 {
                for merged in [false, true] {
                    let at = format!("{operation:?} of {path} after {skip}, merged: {merged}");
                    fails_once(operation, path, skip, merged, &at);
                }
            }
        }
    });
}

fn fails_once(operation: Io, path: &str, skip: u64, merged: bool, at: &str) {
    let mut bench = Bench::new(shards());
    load(bench.engine(), 400);
    bench.engine().checkpoint().unwrap();
    for round in 0..3u8 {
        let engine = bench.engine();
        for n in [5, 105, 205, 305] {
            // In the cell; as a tombstone; as a new key; and, with many deletes, in a shard whose
            // tombstones are dropped at once.
            put(engine, &key(n), &[10 + round; 50]);
            delete(engine, &key(n + 1 + usize::from(round)));
            put(engine, &[&key(n)[..], &[round]].concat(), b"new");
        }
        for n in 320..370 {
            delete(engine, &key(n));
        }
        let failed = bench.disk.failed();
        bench.disk.inject(Fault::new(&[operation], libc::ENOSPC).in_path(path).at(skip));
        let result = engine.checkpoint();
        bench.disk.heal();
        assert_eq!(result.is_err(), bench.disk.failed() > failed, "{at}");
        assert!(skip > 0 || result.is_err(), "{at}: the step was met");
        // What changes now must not hide what was taken.
        put_durable(engine, &key(205), &[20 + round; 50]);
        if merged {
            engine.reorganize(None).unwrap();
        }
        bench.survives(&format!("{at}: failed"));
        bench.engine().checkpoint().unwrap_or_else(|error| panic!("{at}: {error}"));
        bench.survives(&format!("{at}: done"));
        if round == 1 {
            bench.reopen();
        }
    }
}

/// Random changes with a checkpoint after every few: chains grow, are rewritten, and add up.
#[test]
fn long_chains_add_up() {
    let seed = seed("long chains");
    watchdog("long chains", 120, || {
        let mut random = StdRng::seed_from_u64(seed);
        let mut bench = Bench::new(shards());
        load(bench.engine(), 400);
        let (mut most, mut rewritten) = (0, 0);
        for round in 0..120 {
            let at = format!("seed {seed} round {round}");
            for _ in 0..random.random_range(1..8) {
                let engine = bench.engine();
                let n = random.random_range(0..420);
                match random.random_range(0..5) {
                    0 | 1 => drop(delete(engine, &key(n))),
                    2 => drop(put(engine, &key(n), &[random.random(); 5])),
                    _ => drop(put(engine, &key(n), &[random.random(); 70])),
                }
                if random.random_bool(0.1) {
                    engine.reorganize(None).unwrap();
                }
            }
            let before = bench.files();
            bench.engine().checkpoint().unwrap();
            most = most.max(bench.files());
            rewritten += usize::from(bench.files() < before);
            if round % 4 == 0 {
                bench.survives(&at);
            }
            if random.random_bool(0.1) {
                bench.reopen();
            }
        }
        bench.survives("at the end");
        assert!(most > 12 && rewritten > 3, "seed {seed}: {most} files, {rewritten} rewritten");
    });
}

/// The same when the merge comes before the failure: the region whose bits were cleared is gone, so
/// nobody knows what the files lack.
#[test]
fn a_merge_during_a_checkpoint_that_fails_later() {
    watchdog("merge during a failing checkpoint", 60, || {
        let dir = fast_dir();
        let crash = CrashDisk::new(dir.path().join("data")).unwrap();
        let faults = FaultDisk::with_seed(crash.clone(), 1);
        let gates = GateDisk::new(faults.clone());
        let engine = Engine::open_on(gates.clone(), shards()).unwrap();
        load(&engine, 400);
        engine.checkpoint().unwrap();
        for round in 0..3u8 {
            for n in [5, 105, 205] {
                put(&engine, &key(n), &[10 + round; 50]);
                put(&engine, &[&key(n)[..], &[round]].concat(), b"new");
                delete(&engine, &key(n + 1 + usize::from(round)));
            }
            let gate = gates.close(Io::SyncDir, "t1");
            std::thread::scope(|scope| {
                let checkpoint = scope.spawn(|| engine.checkpoint());
                gate.reached();
                put_durable(&engine, &key(205), &[20 + round; 50]);
                put_durable(&engine, b"key/000105/x", &[20 + round; 50]);
                engine.reorganize(None).unwrap();
                faults.inject(Fault::new(&[Io::Create], libc::ENOSPC).in_path("MANIFEST"));
                gate.open();
                checkpoint.join().unwrap().unwrap_err();
                faults.heal();
            });
            engine.checkpoint().unwrap();
            let expected = contents(&engine);
            let image = dir.path().join(round.to_string());
            let disk = cut_to(&crash, None, &image, &PowerCut::strict());
            let after = Engine::open_on(disk, shards()).unwrap();
            let found = contents(&after);
            assert!(found == expected, "round {round}: {}", difference(&found, &expected));
            verify(&after, "after");
        }
    });
}
