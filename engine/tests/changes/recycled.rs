//! The log is recycled, kept, lost and damaged under readers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use vmemkv_engine::io::testing::{Fault, FaultDisk, Operation as DiskOperation};
use vmemkv_engine::io::{Disk, OsDisk};
use vmemkv_engine::{Engine, ErrorKind, KeyRange, Options, Revision};

use crate::support::{Bench, StopOnDrop, fast_dir, put, put_durable, seed, small, watchdog};
use crate::{read_all, value};

/// Enough to fill a few segments. Values say their revision.
fn fill(engine: &Engine, count: u64) {
    let before = engine.shards()[0].revision.0;
    for revision in before + 1..=before + count {
        let lsn = put(engine, format!("{}", revision % 50).as_bytes(), &numbered(revision));
        // Or a writer that outruns the log would make one long segment.
        if revision % 8 == 0 {
            engine.wait_durable(lsn).unwrap();
        }
    }
    engine.wait_durable(put(engine, b"last", &numbered(before + count + 1))).unwrap();
}

fn numbered(revision: u64) -> Vec<u8> {
    revision.to_le_bytes().repeat(1 + revision as usize % 100)
}

fn too_old(engine: &Engine, after: u64) -> Option<Revision> {
    let error = engine.changes_since(&KeyRange::all(), Revision(after), 0).err()?;
    assert!(error.message().contains("too old"), "{error}");
    let ErrorKind::TooOld { oldest } = error.kind() else { panic!("{error:?}") };
    assert!(error.message().contains(&format!("served is {oldest}")), "{error}");
    Some(oldest)
}

#[test]
fn a_position_whose_log_is_gone_is_too_old_and_the_oldest_is_named() {
    let bench = Bench::new(Options { wal_keep_bytes: 64 << 10, ..small() });
    let engine = &bench.engine;
    fill(engine, 600);
    assert_eq!(too_old(engine, 0), None, "no checkpoint yet");
    engine.checkpoint().unwrap();
    let oldest = too_old(engine, 0).unwrap();
    assert!(oldest > Revision(1) && oldest < Revision(601), "{oldest}");
    assert_eq!(too_old(engine, oldest.0 - 1), Some(oldest));
    let (found, next) = read_all(engine, &KeyRange::all(), oldest);
    assert_eq!(found.first().unwrap().revision.0, oldest.0 + 1);
    assert_eq!((found.len() as u64, next.0), (601 - oldest.0, 601));
    // The same after a restart, clean or not: what was kept is kept.
    for clean in [true, false] {
        let disk = bench.crash.clone();
        let copy = disk.kill(&bench.fresh()).unwrap();
        for _ in 0..2 {
            let engine = Engine::open_on(copy.clone(), bench.options.clone()).unwrap();
            // Each open begins a segment, so the oldest may go.
            let position = too_old(&engine, oldest.0).unwrap_or(oldest);
            let rest = read_all(&engine, &KeyRange::all(), position).0;
            assert_eq!(rest, found[(position.0 - oldest.0) as usize..]);
            assert!(rest.len() * 3 > found.len(), "{} of {}", rest.len(), found.len());
            assert_eq!(too_old(&engine, position.0 - 1), Some(position));
            if clean { engine.close().unwrap() } else { drop(engine) }
        }
    }
}

/// A shard that nobody writes to is not too old, however much the others write.
#[test]
fn an_idle_shard_stays_readable() {
    let sharding = vmemkv_engine::Sharding::Alone { boundaries: vec![b"x".to_vec()] };
    let options = Options { sharding, wal_keep_bytes: 32 << 10, ..small() };
    let bench = Bench::new(options);
    let idle = KeyRange::new(*b"x", Vec::new());
    put_durable(&bench.engine, b"x", b"1");
    put_durable(&bench.engine, b"x", b"2");
    for round in 0..5 {
        fill(&bench.engine, 400);
        bench.engine.checkpoint().unwrap();
        let (found, next) = read_all(&bench.engine, &idle, Revision(2));
        assert_eq!((found.len(), next.0), (0, 2), "round {round}");
        let error = bench.engine.changes_since(&idle, Revision(1), 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooOld { oldest: Revision(2) });
    }
    put_durable(&bench.engine, b"x", b"3");
    let copy = bench.crash.kill(&bench.fresh()).unwrap();
    let engine = Engine::open_on(copy, bench.options.clone()).unwrap();
    for engine in [&bench.engine, &engine] {
        let (found, next) = read_all(engine, &idle, Revision(2));
        assert_eq!((found.len(), next.0), (1, 3));
    }
}

/// Readers at random positions, while one writes and checkpoints recycle what they read: each
/// answer is right and without a gap, or too old.
#[test]
fn recycling_under_readers_never_shows_a_gap() {
    let seed = seed("recycling_under_readers_never_shows_a_gap");
    let bench = Bench::new(Options { wal_keep_bytes: 32 << 10, ..small() });
    let engine = &bench.engine;
    let stop = AtomicBool::new(false);
    let (answers, refusals) = (AtomicU64::new(0), AtomicU64::new(0));
    watchdog("recycling_under_readers_never_shows_a_gap", 120, || {
        std::thread::scope(|scope| {
            let (stop, answers, refusals) = (&stop, &answers, &refusals);
            let _stop = StopOnDrop(stop);
            for reader in 0..3 {
                scope.spawn(move || {
                    let _stop = StopOnDrop(stop);
                    let mut random = StdRng::seed_from_u64(seed + reader);
                    let mut after = Revision(0);
                    while !stop.load(Ordering::Relaxed) {
                        let max = random.random_range(1..40_000);
                        match engine.changes_since(&KeyRange::all(), after, max) {
                            Ok(changes) => {
                                for (number, change) in (after.0 + 1..).zip(&changes.records) {
                                    assert_eq!(change.revision.0, number, "seed {seed}: a gap");
                                    assert_eq!(value(change), numbered(number), "seed {seed}");
                                }
                                answers.fetch_add(changes.records.len() as u64, Ordering::Relaxed);
                                after = changes.next;
                                // Back, to where the log may be going.
                                let back = random.random_range(0..400);
                                after.0 = after.0.saturating_sub(back);
                            }
                            Err(error) => {
                                let ErrorKind::TooOld { oldest } = error.kind() else {
                                    panic!("seed {seed}: {error:?}");
                                };
                                assert!(oldest > after);
                                refusals.fetch_add(1, Ordering::Relaxed);
                                after = oldest;
                            }
                        }
                    }
                });
            }
            for _ in 0..120 {
                fill(engine, 150);
                engine.checkpoint().unwrap();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
    });
    let (answers, refusals) = (answers.into_inner(), refusals.into_inner());
    println!("{answers} changes, {refusals} times too old");
    assert!(answers > 1000 && refusals > 10, "seed {seed}: {answers} and {refusals}");
}

/// The same, forced: the segment goes between the look at the index and the look at the log.
#[test]
fn a_segment_that_goes_under_a_reader_is_too_old() {
    let bench = Bench::new(Options { wal_keep_bytes: 64 << 10, ..small() });
    let engine = &bench.engine;
    fill(engine, 600);
    engine.checkpoint().unwrap();
    let oldest = too_old(engine, 0).unwrap();
    let found = vmemkv_engine::offline::inspect(bench.crash.kill(&bench.fresh()).unwrap().root());
    let found = found.unwrap();
    let kept: Vec<_> = found.wal_segments.iter().filter(|s| s.end < found.checkpoint_lsn).collect();
    // Free files are older still.
    let names = kept.iter().map(|segment| format!("wal/{}", segment.file));
    let gates: Vec<_> = names.map(|name| bench.disk.close(DiskOperation::Open, &name)).collect();
    watchdog("a_segment_that_goes_under_a_reader_is_too_old", 60, || {
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| too_old(engine, oldest.0));
            // One of them is what the reader opens first.
            let first = &gates[gates.len() - engine.stats().wal.kept_segments as usize];
            first.reached();
            for _ in 0..3 {
                fill(engine, 200);
                engine.checkpoint().unwrap();
            }
            drop(gates);
            let now = reader.join().unwrap().unwrap();
            assert!(now > Revision(601), "{now}");
        });
    });
}

/// A kept segment is nothing that recovery needs: damage in it costs readers their position, and
/// nobody anything else.
#[test]
fn damage_in_kept_log_is_too_old_not_a_gap() {
    let dir = fast_dir();
    let root = dir.path().join("data");
    let options = Options { wal_keep_bytes: 1 << 20, ..small() };
    let engine = Engine::open(&root, options.clone()).unwrap();
    fill(&engine, 600);
    engine.close().unwrap();
    for damage in ["flip", "remove"] {
        // In the middle of what no recovery needs.
        let found = vmemkv_engine::offline::inspect(&root).unwrap();
        let kept: Vec<_> =
            found.wal_segments.iter().filter(|s| s.end <= found.checkpoint_lsn).collect();
        let victim = kept[kept.len() / 2];
        let path = root.join("wal").join(&victim.file);
        if damage == "flip" {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[4096 + (victim.end.0 - victim.start.0) as usize / 2] ^= 1;
            std::fs::write(path, bytes).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
        let engine = Engine::open(&root, options.clone()).unwrap();
        let oldest = too_old(&engine, 0).unwrap();
        assert!(oldest < Revision(601), "{damage}: {oldest}");
        let (found, _) = read_all(&engine, &KeyRange::all(), oldest);
        assert_eq!(found.len() as u64, 601 - oldest.0, "{damage}");
        assert!(found.iter().all(|change| value(change) == numbered(change.revision.0)));
        engine.close().unwrap();
    }
}

/// What is kept for readers gives way to writers when the disk is full.
#[test]
fn kept_log_gives_way_on_a_full_disk() {
    let dir = fast_dir();
    let disk = std::sync::Arc::new(OsDisk::new(dir.path().join("data")));
    let faults = FaultDisk::new(disk);
    let options = Options { wal_keep_bytes: 256 << 10, ..small() };
    let engine = Engine::open_on(faults.clone(), options).unwrap();
    fill(&engine, 1000);
    engine.checkpoint().unwrap();
    let kept = engine.stats().wal.kept_segments;
    assert!(kept >= 14, "{kept}");
    let space = [DiskOperation::Create, DiskOperation::Allocate];
    faults.inject(Fault::new(&space, libc::ENOSPC).in_path("wal/").forever());
    let error = (0..10_000).find_map(|number: u64| {
        let key = number.to_le_bytes();
        let written = engine.put(&key, &[7; 400], &vmemkv_engine::Condition::None);
        written.and_then(|written| engine.wait_durable(written.lsn)).err()
    });
    assert_eq!(error.unwrap().kind(), ErrorKind::DiskFull);
    assert_eq!(engine.stats().wal.kept_segments, 0, "refused before all was given up");
    assert!(too_old(&engine, 0).is_some());
    engine.checkpoint().unwrap();
    let names = faults.list(std::path::Path::new("wal")).unwrap();
    let stats = engine.stats().wal;
    let counted = stats.segments + stats.kept_segments + stats.recycled_segments;
    assert_eq!(names.len() as u64, counted, "{stats:?}");
}
