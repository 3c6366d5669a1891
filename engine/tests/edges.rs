//! Keys and values at their edges: order, identity and lengths, over every kind of region and over
//! restarts, and without a cliff in speed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use vmemkv_engine::{
    Condition, Engine, ErrorKind, KeyRange, MAX_KEY_BYTES, MAX_VALUE_BYTES, Options, ScanOptions,
    Sharding,
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// The kinds of engine: default, baseline, many shards that cut through the awkward keys.
fn kinds() -> Vec<(&'static str, Options)> {
    let small = Options::for_tests();
    let mut boundaries = vec![
        b"\x00".to_vec(),
        b"\x00\x00".to_vec(),
        b"a".to_vec(),
        b"a\x00".to_vec(),
        b"tenant/table/".to_vec(),
        [&[b'p'; 200][..], b"5"].concat(),
        b"\xff".to_vec(),
    ];
    boundaries.sort();
    vec![
        ("default", small.clone()),
        ("baseline", Options { bloom: false, inline: false, ..small.clone() }),
        ("many shards", Options { sharding: Sharding::Alone { boundaries }, ..small }),
    ]
}

/// Keys that have broken indexes before: prefixes of each other, zeros, ones, long common parts.
fn awkward_keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    // Every prefix of a few long keys.
    for byte in [0x00, b'a', 0x7f, 0x80, 0xff] {
        keys.extend(
            [1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 256].map(|len| vec![byte; len]),
        );
    }
    for text in ["a", "a\0", "a\0\0", "a\0b", "a\u{1}", "ab", "b"] {
        keys.push(text.as_bytes().to_vec());
    }
    // Differ only behind byte 200, and by a byte more.
    let long = [b'p'; 200];
    for tail in 0..=255u8 {
        keys.push([&long[..], &[tail]].concat());
        keys.push([&long[..], &[tail, 0]].concat());
    }
    keys.push(long.to_vec());
    // A tree of names.
    for tenant in 0..3 {
        for row in 0..60 {
            keys.push(format!("tenant/table/{tenant:04}/row/{row:08}").into_bytes());
        }
        keys.push(format!("tenant/table/{tenant:04}").into_bytes());
    }
    // Every pair of extreme bytes.
    let extremes = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
    keys.extend(extremes.iter().flat_map(|a| extremes.map(|b| vec![*a, b])));
    // The longest, equal up to their last byte.
    for last in [0, 1, 255] {
        let mut key = vec![b'm'; MAX_KEY_BYTES];
        key[MAX_KEY_BYTES - 1] = last;
        keys.push(key);
    }
    keys.sort();
    keys.dedup();
    keys
}

fn value_of(key: &[u8], salt: usize) -> Vec<u8> {
    let len = [0, 1, 7, 8, 9, 40, 300][(key.len() + usize::from(key[key.len() - 1]) + salt) % 7];
    // All ones too: no value is special.
    if len <= 9 { vec![0xff; len] } else { vec![(salt % 251) as u8; len] }
}

fn scan_all(
    engine: &Engine,
    range: &KeyRange,
    reverse: bool,
    max_bytes: usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut options =
        ScanOptions { range: range.clone(), reverse, max_bytes, ..ScanOptions::default() };
    let mut all = Vec::new();
    loop {
        let chunk = engine.scan(&options).unwrap();
        all.extend(chunk.entries);
        if chunk.done {
            return all;
        }
        if reverse {
            options.range.end = chunk.covered_to;
        } else {
            options.range.start = chunk.covered_to;
        }
    }
}

/// Everything that can be asked agrees with the model.
fn check(engine: &Engine, model: &Model, keys: &[Vec<u8>], at: &str) {
    for key in keys {
        assert_eq!(
            engine.get(key).unwrap().as_ref(),
            model.get(key),
            "{at}: {}",
            key.escape_ascii()
        );
    }
    let mut expected: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    for max_bytes in [1, 1000, 0] {
        assert!(scan_all(engine, &KeyRange::all(), false, max_bytes) == expected, "{at}: forward");
    }
    expected.reverse();
    for max_bytes in [1, 1000, 0] {
        assert!(scan_all(engine, &KeyRange::all(), true, max_bytes) == expected, "{at}: reverse");
    }
    // Ranges that begin and end at keys, between them, and at their prefixes.
    for (start, end) in keys.iter().step_by(37).zip(keys.iter().skip(11).step_by(41)) {
        let range = KeyRange::new(start.clone(), end.clone());
        if range.is_empty() {
            continue;
        }
        let inside = model.range(start.clone()..end.clone());
        let inside: Vec<_> = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
        assert!(scan_all(engine, &range, false, 0) == inside, "{at}: {range:?}");
    }
}

#[test]
fn awkward_keys_agree_with_a_map_over_every_region_and_restart() {
    let keys = awkward_keys();
    for (kind, options) in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let mut engine = Engine::open(&data, options.clone()).unwrap();
        let mut model = Model::new();
        let mut last = vmemkv_engine::Lsn(0);
        // In an order that is not theirs.
        for round in 0..2 {
            for at in 0..keys.len() {
                let key = &keys[at * 7919 % keys.len()];
                if (at + round) % 3 == 0 && model.remove(key).is_some() {
                    last = engine.delete(key, &Condition::IfPresent).unwrap().lsn;
                    continue;
                }
                let value = value_of(key, at + round);
                let written = engine.put(key, &value, &Condition::None).unwrap();
                assert_eq!(written.existed, model.insert(key.clone(), value).is_some());
                last = written.lsn;
            }
            engine.wait_durable(last).unwrap();
            check(&engine, &model, &keys, &format!("{kind}, append"));
            // Half in the sorted, half in the append region.
            engine.reorganize(None).unwrap();
            check(&engine, &model, &keys, &format!("{kind}, sorted"));
            for key in keys.iter().step_by(2) {
                let value = value_of(key, round + 3);
                last = engine.put(key, &value, &Condition::None).unwrap().lsn;
                model.insert(key.clone(), value);
            }
            engine.wait_durable(last).unwrap();
            check(&engine, &model, &keys, &format!("{kind}, both"));
            drop(engine);
            engine = Engine::open(&data, options.clone()).unwrap();
            check(&engine, &model, &keys, &format!("{kind}, replayed"));
            engine.checkpoint().unwrap();
            check(&engine, &model, &keys, &format!("{kind}, checkpoint"));
            engine.close().unwrap();
            engine = Engine::open(&data, options.clone()).unwrap();
            check(&engine, &model, &keys, &format!("{kind}, loaded"));
        }
        assert_eq!(engine.verify(&|| false).unwrap().problems, Vec::<String>::new());
    }
}

/// Every step from one length to another around the inline limit, in every region.
#[test]
fn values_cross_the_inline_limit_both_ways() {
    for (kind, options) in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let mut engine = Engine::open(&data, options.clone()).unwrap();
        let mut model = Model::new();
        let value = |len: usize, fill: u8| vec![fill; len];
        let mut round = 0u8;
        for to_sorted in [false, true] {
            for from in 0..=10usize {
                for to in 0..=10usize {
                    let key = vec![b'v', from as u8, to as u8];
                    engine.put(&key, &value(from, 0xff), &Condition::None).unwrap();
                    model.insert(key, value(from, 0xff));
                }
            }
            if to_sorted {
                engine.checkpoint().unwrap();
            }
            for from in 0..=10usize {
                for to in 0..=10usize {
                    let key = vec![b'v', from as u8, to as u8];
                    round = round.wrapping_add(1);
                    let old = Condition::IfValueEquals(model[&key].clone());
                    let written = engine.put(&key, &value(to, round), &old).unwrap();
                    assert!(written.applied && written.existed, "{kind} {from} {to}");
                    model.insert(key, value(to, round));
                }
            }
            let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
            assert_eq!(scan_all(&engine, &KeyRange::all(), false, 0).len(), 121, "one entry each");
            engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
            check(&engine, &model, &keys, kind);
            engine.reorganize(None).unwrap();
            check(&engine, &model, &keys, kind);
            drop(engine);
            engine = Engine::open(&data, options.clone()).unwrap();
            check(&engine, &model, &keys, kind);
        }
    }
}

#[test]
fn the_largest_values_and_keys_and_nothing_above() {
    for (kind, options) in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let engine = Engine::open(&data, options.clone()).unwrap();
        let long = vec![0xff; MAX_KEY_BYTES];
        let large: Vec<u8> = (0..MAX_VALUE_BYTES).map(|at| (at % 253) as u8).collect();
        for (key, value) in [(&long[..], &large[..]), (b"a", &large), (&long, b""), (&long, &large)]
        {
            engine.put(key, value, &Condition::None).unwrap();
        }
        for (key, len) in
            [(vec![1; MAX_KEY_BYTES + 1], 1), (vec![1], MAX_VALUE_BYTES + 1), (vec![], 1)]
        {
            let error = engine.put(&key, &vec![0; len], &Condition::None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{kind}");
        }
        let check = |engine: &Engine| {
            assert!(engine.get(&long).unwrap().unwrap() == large, "{kind}");
            assert!(engine.get(b"a").unwrap().unwrap() == large, "{kind}");
            assert_eq!(scan_all(engine, &KeyRange::all(), true, 1)[0].0, long);
        };
        engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
        check(&engine);
        engine.reorganize(None).unwrap();
        check(&engine);
        drop(engine);
        let engine = Engine::open(&data, options.clone()).unwrap();
        check(&engine);
        engine.close().unwrap();
        check(&Engine::open(&data, options).unwrap());
    }
}

/// The median time of some rounds of gets of all keys, present and missing.
fn gets(engine: &Engine, keys: &[Vec<u8>], missing: &[Vec<u8>]) -> Duration {
    let mut times: Vec<Duration> = (0..9)
        .map(|_| {
            let started = Instant::now();
            for (key, missing) in keys.iter().zip(missing) {
                assert!(engine.get(key).unwrap().is_some());
                assert!(engine.get(missing).unwrap().is_none());
            }
            started.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

fn filled(data: &Path, keys: &[Vec<u8>], merged: bool) -> Engine {
    let engine = Engine::open(data, Options { append_capacity: 1 << 15, ..Options::for_tests() });
    let engine = engine.unwrap();
    for key in keys {
        engine.put(key, b"value", &Condition::None).unwrap();
    }
    engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
    if merged {
        engine.reorganize(None).unwrap();
    }
    engine
}

/// Keys with a common prefix of 200 bytes cost what keys of that length cost that differ at their
/// front, and a bounded factor of short ones: they are not compared from the front at every step.
#[test]
fn long_common_prefixes_are_no_cliff() {
    const KEYS: u32 = 4000;
    const FACTOR: u32 = 5;
    let common = "x".repeat(200);
    let numbers = || 0..KEYS;
    let short: Vec<Vec<u8>> = numbers().map(|n| format!("{n:08}").into_bytes()).collect();
    let prefixed: Vec<Vec<u8>> =
        numbers().map(|n| format!("{common}{n:08}").into_bytes()).collect();
    let distinct: Vec<Vec<u8>> =
        numbers().map(|n| format!("{n:08}{common}").into_bytes()).collect();
    // Without optimisation the hash of 200 bytes alone costs more than a whole look-up.
    let reference = if cfg!(debug_assertions) { &distinct } else { &short };
    let missing = |keys: &[Vec<u8>]| -> Vec<Vec<u8>> {
        keys.iter().map(|key| [&key[..], b"+"].concat()).collect()
    };
    for merged in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let expected = filled(&dir.path().join("reference"), reference, merged);
        let measured = filled(&dir.path().join("prefixed"), &prefixed, merged);
        // Another process may take the machine in the middle of one: the best of a few.
        let (mut expected_time, mut time) = (Duration::MAX, Duration::MAX);
        for _ in 0..5 {
            expected_time = expected_time.min(gets(&expected, reference, &missing(reference)));
            time = time.min(gets(&measured, &prefixed, &missing(&prefixed)));
            if time < expected_time * FACTOR {
                break;
            }
        }
        assert!(
            time < expected_time * FACTOR,
            "merged {merged}: {time:?} with a long common prefix, {expected_time:?} without"
        );
    }
}
