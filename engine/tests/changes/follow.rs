//! One who follows, while four write.
//!
//! Under test: every acknowledged write is seen exactly once, in order of the revisions, while
//! segments roll, checkpoints recycle them and the append region is merged; what is seen was
//! durable.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vmemkv_engine::{ChangeKind, KeyRange, Operation, Options, Revision};

use crate::support::{Bench, Model, StopOnDrop, contents, put, seed, small, watchdog};

const WRITERS: u64 = 4;
const WRITES: u64 = 3000;

/// `writer` and `number` of a write, from its value.
fn who(value: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().unwrap());
    (word(0), word(8))
}

fn write(bench: &Bench, writer: u64, number: u64) -> u64 {
    let mut value = [writer.to_le_bytes(), number.to_le_bytes()].concat();
    value.resize(16 + (number * 7 % 300) as usize, 0);
    let key = |part: u64| format!("{:03}", (writer * 31 + number * 17 + part * 13) % 200);
    let lsn = if number.is_multiple_of(5) {
        let put = |part| Operation::Put { key: key(part).into_bytes(), value: value.clone() };
        bench.engine.write_batch(&[put(0), put(1), put(2)]).unwrap()
    } else {
        put(&bench.engine, key(0).as_bytes(), &value)
    };
    if number.is_multiple_of(16) || number == WRITES {
        bench.engine.wait_durable(lsn).unwrap();
    }
    if number.is_multiple_of(5) { 3 } else { 1 }
}

fn follow(options: Options) {
    let bench = Bench::new(options);
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let working = AtomicU64::new(WRITERS);
    let (mut seen, mut model, mut last) = (BTreeMap::<u64, u64>::new(), Model::new(), 0);
    let mut count = 0;
    watchdog("follow", 180, || {
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            let (bench, stop, written, working) = (&bench, &stop, &written, &working);
            for writer in 0..WRITERS {
                scope.spawn(move || {
                    for number in 1..=WRITES {
                        written.fetch_add(write(bench, writer, number), Ordering::SeqCst);
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                    working.fetch_sub(1, Ordering::SeqCst);
                });
            }
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    bench.engine.checkpoint().unwrap();
                    bench.engine.reorganize(None).unwrap();
                }
            });
            let range = KeyRange::all();
            let mut after = Revision(0);
            loop {
                let done = working.load(Ordering::SeqCst) == 0;
                let changes = bench.engine.changes_since(&range, after, 10_000).unwrap();
                for change in &changes.records {
                    // One shard, and each change has its number: no gap, nothing twice.
                    last += 1;
                    assert_eq!(change.revision.0, last);
                    let ChangeKind::Put(value) = &change.kind else { panic!("{change:?}") };
                    let (writer, number) = who(value);
                    let before = seen.insert(writer, number).unwrap_or(0);
                    let in_order =
                        number == before + 1 || (number == before && number.is_multiple_of(5));
                    assert!(in_order, "writer {writer}: {number} after {before}");
                    model.insert(change.key.clone(), value.clone());
                    count += 1;
                }
                after = changes.next;
                if changes.caught_up {
                    if done {
                        break;
                    }
                    bench.engine.wait_changes(&range, after, Duration::from_millis(100)).unwrap();
                }
            }
        });
    });
    assert_eq!(count, written.into_inner());
    assert!(seen.values().all(|number| *number == WRITES), "{seen:?}");
    assert!(model == contents(&bench.engine));
}

#[test]
fn a_follower_sees_every_write_of_four_once_and_in_order() {
    let _ = seed("a_follower_sees_every_write_of_four_once_and_in_order");
    follow(Options { wal_keep_bytes: 8 << 20, ..small() });
}
