//! Defragment finds what is live by reading segments: stale bytes in their gaps may look like records,
//! and may hide live ones.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::cell::Cell;
use std::os::unix::fs::FileExt as _;

use support::{Bench, contents, delete, difference, put, small, verify, watchdog};
use vmemkv_engine::{Continue, DefragmentOptions, DefragmentReport, DefragmentStep, Options};

const ANY: DefragmentOptions = DefragmentOptions { min_dead_ratio: 0.001, max_bytes: 0 };
/// Where records begin in a segment, and the length of a record's header.
const FIRST: usize = 4096;
const HEADER: usize = 32;

fn key(number: usize) -> Vec<u8> {
    format!("k{number:04}").into_bytes()
}

/// Several segments of 100 KB values, a third of them dead; in the first one a gap behind its first
/// record, up to the next page.
fn with_gap() -> Bench {
    let bench = Bench::new(Options {
        wal_segment_bytes: 1 << 20,
        checkpoint_wal_bytes: 64 << 20,
        ..small()
    });
    let engine = &bench.engine;
    put(engine, b"first", &[1; 1000]);
    engine.checkpoint().unwrap();
    for number in 0..300 {
        put(engine, &key(number), &vec![number as u8; 100_000]);
    }
    for number in (0..300).filter(|number| number % 3 == 2) {
        delete(engine, &key(number));
    }
    engine.wait_durable(engine.stats().wal.appended_lsn).unwrap();
    engine.checkpoint().unwrap();
    bench
}

/// A whole record, checksum and all, that says it has been allocated with so many bytes.
fn record(key: &[u8], value: &[u8], allocated: u32) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes[8..12].copy_from_slice(&(value.len() as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&allocated.to_le_bytes());
    bytes[16..18].copy_from_slice(&(key.len() as u16).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    let crc = crc32fast::hash(&bytes[8..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Writes into the gap, as if it had been there since the segment was used before.
fn fill_gap(bench: &Bench, stale: &[u8]) {
    let offset = (FIRST + HEADER + b"first".len() + 1000).next_multiple_of(16);
    assert!(offset + stale.len() <= 2 * FIRST);
    let path = bench.crash_root().join("t2/0.t2");
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut there = vec![0; HEADER];
    file.read_exact_at(&mut there, (FIRST) as u64).unwrap();
    assert_eq!(u16::from_le_bytes([there[16], there[17]]), 5, "the first record");
    file.write_all_at(stale, offset as u64).unwrap();
}

/// Empties everything; the answer, and how often the index was walked for it.
fn empty(bench: &Bench, at: &str) -> (DefragmentReport, usize) {
    let expected = contents(&bench.engine);
    let walks = Cell::new(0);
    let report = bench.engine.defragment(&ANY, &|progress| {
        let is_walk = progress.step == DefragmentStep::Walk && progress.step_bytes > 0;
        walks.set(walks.get() + usize::from(is_walk));
        Continue::Yes
    });
    let report = report.unwrap();
    assert_eq!(report.problems, Vec::<String>::new(), "{at}");
    assert_eq!(report.records_skipped, 0, "{at}: {report:?}");
    let found = contents(&bench.engine);
    assert!(found == expected, "{at}: {}", difference(&found, &expected));
    assert_eq!(bench.engine.recount_live(), Vec::<String>::new(), "{at}");
    bench.engine.checkpoint().unwrap();
    verify(&bench.engine, at);
    bench.survives(at);
    (report, walks.get())
}

/// What stale bytes look like, whether segments are emptied without a walk over the index, and that
/// each segment that is not open is emptied.
#[test]
fn stale_records_are_not_taken_and_hide_nothing_for_good() {
    watchdog("survey", 120, || {
        let mut emptied = Vec::new();
        let len = |key: &[u8], value: &[u8]| (HEADER + key.len() + value.len()) as u32;
        let whole =
            |key: &[u8], value: &[u8]| record(key, value, len(key, value).next_multiple_of(16));
        let cases: [(&str, Vec<u8>, bool); 5] = [
            ("an empty gap", vec![], false),
            ("bytes that mean nothing", vec![0xff; 1000], false),
            // The newest of its key lies elsewhere.
            ("an old record of a live key", whole(&key(1), &[7; 500]), false),
            ("a record of a key that is gone", whole(b"gone", &[7; 500]), false),
            // It was changed in place, from a long value to a short one: its checksum covers no more.
            ("a record that hides others", record(b"gone", &[7; 10], 250_000), true),
        ];
        for (name, stale, hides) in cases {
            let bench = with_gap();
            fill_gap(&bench, &stale);
            let (report, walks) = empty(&bench, name);
            assert_eq!(walks > 0, hides, "{name}: {walks} walks");
            emptied.push((name, report.segments));
        }
        let most = emptied.iter().map(|(_, segments)| *segments).max();
        assert!(emptied.iter().all(|(_, segments)| Some(*segments) == most), "{emptied:?}");
        assert!(most >= Some(3), "{emptied:?}");
    });
}
