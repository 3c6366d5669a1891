//! Endless uniform overwrites: what they take of the disk, and what has to be copied for them, with
//! disk to spare and on one that is seven tenths full.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use support::{StopOnDrop, fast_dir, seed, verify, watchdog};
use vmemkv_engine::{Condition, Engine, Options, Stats};

const KEYS: u64 = 15_000;
const VALUE_BYTES: usize = 20_000;
/// Keys and values.
const LIVE_BYTES: u64 = KEYS * (VALUE_BYTES as u64 + 6);
const WRITERS: u64 = 4;
/// Overwrites, in times of the corpus.
const TIMES: u64 = 4;

fn options() -> Options {
    Options {
        value_segment_bytes: (8 << 20) + (64 << 10),
        wal_segment_bytes: 512 << 10,
        checkpoint_wal_bytes: 4 << 20,
        background: true,
        ..Options::for_tests()
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("k{number:05}").into_bytes()
}

/// Bytes that the file system has allocated for a directory. Files may go meanwhile.
fn used(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => used(&entry.path()),
        Ok(meta) => 512 * meta.blocks(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

/// What overwrites cost.
struct Cost {
    /// The most that the files took.
    most_bytes: u64,
    /// Of the second half of the overwrites: bytes copied over bytes written.
    copied: f64,
    stats: Stats,
}

/// Loads the corpus, then overwrites it from several threads. No put may be refused.
fn overwrite(options: Options, seed: u64) -> Cost {
    let dir = fast_dir();
    let data = dir.path().join("data");
    let engine = Engine::open(&data, options).unwrap();
    let value = vec![7; VALUE_BYTES];
    let put = |number: u64, wait: bool| {
        let written = engine.put(&key(number), &value, &Condition::None).unwrap();
        if wait {
            engine.wait_durable(written.lsn).unwrap();
        }
    };
    (0..KEYS).for_each(|number| put(number, number % 16 == 0));
    engine.checkpoint().unwrap();
    let copied = || engine.stats().counters.defragment_copied_bytes;
    let (stop, most_bytes, half) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let stop_all = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                most_bytes.fetch_max(used(&data), Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (put, half, copied) = (&put, &half, &copied);
                scope.spawn(move || {
                    let mut random = Random(seed.wrapping_mul(31).wrapping_add(writer));
                    let turns = TIMES * KEYS / WRITERS;
                    for turn in 0..turns {
                        if writer == 0 && turn == turns / 2 {
                            half.store(copied(), Ordering::Relaxed);
                        }
                        put(random.below(KEYS), turn % 4 == 0);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        drop(stop_all);
    });
    verify(&engine, "at the end");
    let copied = copied() - half.into_inner();
    let written = TIMES * LIVE_BYTES / 2;
    let most_bytes = most_bytes.into_inner().max(used(&data));
    Cost { most_bytes, copied: copied as f64 / written as f64, stats: engine.stats() }
}

/// With disk to spare the files stay below 1.6 times the live bytes at every moment, log and all,
/// however fast the writers are: they are slowed down when reclaiming does not keep up.
#[test]
fn with_disk_to_spare_files_never_outgrow_the_live_bytes() {
    watchdog("disk to spare", 300, || {
        let Cost { most_bytes, copied, stats } = overwrite(options(), seed("disk to spare"));
        let space = most_bytes as f64 / LIVE_BYTES as f64;
        println!("{space:.2} times the live bytes, {copied:.2} copied for a byte written");
        assert!(space <= 1.6, "{space:.3} {stats:?}");
        assert!(copied <= 2.5, "{copied:.2} {stats:?}");
        assert_eq!(stats.counters.refused_disk, 0);
    });
}

/// On a disk that is seven tenths full segments are emptied late, when most of them is dead, and
/// nothing is refused.
#[test]
fn on_a_disk_seven_tenths_full_copies_stay_few_and_nothing_is_refused() {
    watchdog("seven tenths", 300, || {
        let capacity = LIVE_BYTES * 10 / 7;
        let options = Options { capacity_bytes: Some(capacity), ..options() };
        let Cost { most_bytes, copied, stats } = overwrite(options, seed("seven tenths"));
        println!("{copied:.2} copied for a byte written, {:?}", stats.counters);
        assert!(most_bytes <= capacity, "{most_bytes}");
        assert!(copied <= 2.5, "{copied:.2} {stats:?}");
        assert_eq!(stats.counters.refused_disk, 0);
    });
}
