//! What a crash leaves and the next life makes of it: F10, F11, F12, F23, F24, F25.

use vmemkv_engine::io::testing::{Operation as Io, PowerCut};
use vmemkv_engine::{Engine, Options};

use crate::support::{
    Bench, contents, cut_to, delete, killed_to, put, put_durable, scribble, small, verify, watchdog,
};

/// F10: one flush writes several records, a power cut keeps any of them: 'invalid with valid newer
/// behind' would refuse a legal crash. F11: the log is cut there, a new write gets the LSN of a
/// lost one; the next replay must not run the old record behind it. Rules: damage needs the
/// evidence of a later `base`; every open starts a new segment, with its own salt.
#[test]
fn f10_f11_any_part_of_one_flush() {
    watchdog("F10 F11", 120, || {
        let bench = Bench::new(Options { write_once_bytes: usize::MAX, ..small() });
        let engine = &bench.engine;
        put_durable(engine, b"before", &[1; 100]);
        let gate = bench.disk.close(Io::Sync, "wal/");
        // The first one's flush stands before the gate while the others gather for the next.
        put(engine, b"k0", &[0; 600]);
        gate.reached();
        for i in 1..6 {
            put(engine, format!("k{i}").as_bytes(), &[i; 600]);
        }
        gate.let_one_pass();
        gate.reached();
        let mut lengths = [0; 8];
        for seed in 0..40 {
            let at = format!("cut {seed}");
            let image = bench.cut(&PowerCut::random(seed));
            let engine = Engine::open_on(image.clone(), small());
            let engine = engine.unwrap_or_else(|error| panic!("{at}: {error:?}"));
            let found = contents(&engine);
            let count = found.len();
            assert!(count >= 2, "{at}: acknowledged writes");
            let expected = (0..count - 1).map(|i| format!("k{i}").into_bytes());
            let is_prefix =
                expected.chain([b"before".to_vec()]).all(|key| found.contains_key(&key));
            assert!(is_prefix, "{at}: a prefix: {:?}", found.keys());
            lengths[count] += 1;
            // The same length as the lost ones, so that their places fall together.
            put_durable(&engine, b"x1", &[9; 600]);
            let expected = contents(&engine);
            let next = bench.fresh();
            let disk = cut_to(&image, None, &next, &PowerCut::strict());
            drop(engine);
            let engine = Engine::open_on(disk, small()).unwrap();
            assert!(contents(&engine) == expected, "{at}: after the second crash");
            verify(&engine, &at);
        }
        assert!(lengths.iter().filter(|count| **count > 0).count() > 1, "{lengths:?}");
        gate.open();
    });
}

/// F12 for the checkpoint: its renames are in the page cache when the process dies; the next life
/// serves, frees and logs on top of them; power cut. Rule: sync as found before serving.
#[test]
fn f12_a_checkpoint_in_the_page_cache_only() {
    watchdog("F12", 120, || {
        let steps =
            [(Io::SyncDir, ""), (Io::Sync, "MANIFEST"), (Io::SyncDir, "t1"), (Io::Sync, "t1/")];
        for (operation, path) in steps {
            let at = format!("killed before {operation:?} of {path:?}");
            let bench = Bench::new(small());
            let engine = &bench.engine;
            for i in 0..60u8 {
                put_durable(engine, &[b'k', i], &[i; 400]);
            }
            engine.checkpoint().unwrap();
            for i in 30..90u8 {
                put_durable(engine, &[b'k', i], &[i + 1; 400]);
            }
            delete(engine, b"k\x05");
            engine.wait_durable(delete(engine, b"k\x06")).unwrap();
            let expected = contents(engine);
            let gate = bench.disk.close(operation, path);
            let killed = std::thread::scope(|scope| {
                let checkpoint = scope.spawn(|| engine.checkpoint());
                gate.reached();
                let killed = killed_to(&bench.crash, &bench.fresh(), 1);
                gate.open();
                checkpoint.join().unwrap().unwrap();
                killed
            });
            let engine = Engine::open_on(killed.clone(), small()).unwrap();
            assert!(contents(&engine) == expected, "{at}");
            put_durable(&engine, b"next life", &[1; 100]);
            let expected = contents(&engine);
            for seed in 0..4 {
                let image = bench.fresh();
                let cut = if seed == 0 { PowerCut::strict() } else { PowerCut::random(seed) };
                let engine = Engine::open_on(cut_to(&killed, None, &image, &cut), small());
                let engine = engine.unwrap_or_else(|error| panic!("{at} {cut:?}: {error:?}"));
                assert!(contents(&engine) == expected, "{at} {cut:?}");
                verify(&engine, &at);
            }
        }
    });
}

/// F23: one base offset means nothing once segments are reused. Rule: a base length per segment.
/// Segments are filled, emptied, freed and filled again, with power cuts between.
#[test]
fn f23_segments_are_freed_and_used_again() {
    watchdog("F23", 120, || {
        let bench = Bench::new(small());
        let engine = &bench.engine;
        put_durable(engine, b"stays", &[42; 2000]);
        let mut most = 0;
        for round in 0..12u8 {
            for i in 0..10 {
                put(engine, format!("large{i}").as_bytes(), &vec![round; 1 << 20]);
            }
            put_durable(engine, b"round", &[round; 300]);
            if round % 3 != 2 {
                engine.checkpoint().unwrap();
            }
            if round % 4 == 1 || round > 9 {
                bench.survives(&format!("round {round}"));
            }
            let stats = engine.stats().value_log;
            most = most.max(stats.segments + stats.free_segments);
        }
        let stats = engine.stats();
        assert!(stats.counters.value_segments_freed > 3, "{stats:?}");
        assert!(most < 12, "{most} segments for 10 MiB that are written 12 times");
        let cut = PowerCut::random(3);
        assert_eq!(bench.after(&cut, "F23").get(b"stays").unwrap(), Some(vec![42; 2000]));
    });
}

/// F24: a large value that lives in the value log alone, above the base, is forgotten by the next
/// life, or its place is used again. Rule: the log names the place, and recovery finds all of those
/// before it allocates. Values of every size are acknowledged, all else that the value log holds above
/// its base is made nonsense, and the next lives, which allocate, still have them. (More in
/// `engine/tests/once.rs`.)
#[test]
fn f24_an_acknowledged_value_needs_nothing_that_the_log_does_not_name() {
    watchdog("F24", 60, || {
        for write_once_bytes in [600, usize::MAX] {
            let options = Options { write_once_bytes, ..small() };
            let bench = Bench::new(options.clone());
            let sizes = [9, 100, 5000, 64 << 10, 1 << 20, 8 << 20];
            put_durable(&bench.engine, b"base", &[1; 100]);
            bench.engine.checkpoint().unwrap();
            for (i, size) in sizes.into_iter().enumerate() {
                put_durable(&bench.engine, &[b'v', i as u8], &vec![i as u8 + 1; size]);
            }
            let once = bench.engine.stats().counters.puts_once;
            assert_eq!(once, if write_once_bytes == 600 { 4 } else { 0 });
            let expected = contents(&bench.engine);
            let image = bench.fresh();
            let mut disk = bench.crash.kill(&image).unwrap();
            let scribbled = scribble(&image, 1);
            assert!(scribbled > if once == 0 { (9 << 20) / 4096 } else { 0 }, "{scribbled}");
            for life in 0..4u8 {
                let engine = Engine::open_on(disk.clone(), options.clone()).unwrap();
                let mut found = contents(&engine);
                found.retain(|key, _| key[0] != b'w');
                assert!(found == expected, "life {life}");
                verify(&engine, "F24");
                put_durable(&engine, &[b'w', life], &vec![life; 3 << 20]);
                let cut = PowerCut::random(u64::from(life));
                disk = cut_to(&disk, None, &bench.fresh(), &cut);
            }
        }
    });
}

/// F25: base and tail share a page, so a write to the tail rewrites a page that is called durable.
/// Rule: the base length is rounded up to a page.
#[test]
fn f25_the_base_ends_with_a_page() {
    watchdog("F25", 60, || {
        let bench = Bench::new(small());
        let engine = &bench.engine;
        for round in 0..10u8 {
            put_durable(engine, &[b'a', round], &[round; 100]);
            engine.checkpoint().unwrap();
            assert_eq!(engine.stats().value_log.base_bytes % 4096, 0);
            put(engine, &[b'b', round], &[round; 100]);
            // Never in place: the record is base now.
            let in_place = engine.stats().counters.updates_in_place;
            put(engine, &[b'a', round], &[round + 1; 90]);
            assert_eq!(engine.stats().counters.updates_in_place, in_place);
            put(engine, &[b'a', round], &[round + 2; 90]);
            assert_eq!(engine.stats().counters.updates_in_place, in_place + 1);
            bench.after(&PowerCut::random(u64::from(round)), "F25");
        }
    });
}
