//! What a read, or a write that changes nothing, may say before the log is durable: F7, F8, F9.

use std::sync::mpsc::channel;

use vmemkv_engine::io::testing::{Operation as Io, PowerCut};
use vmemkv_engine::{Condition, Engine, KeyRange, Lsn, Operation, TryGet};

use crate::support::{Bench, a_moment, contents, delete, put, put_durable, small, watchdog};

/// A delete that is not durable, then a merge that would drop its tombstone.
fn merge_after_a_delete(name: &str, merge: impl Fn(&Engine) + Sync) {
    watchdog(name, 60, || {
        for value in [&b"inline"[..], &[7; 300]] {
            let bench = Bench::new(small());
            let engine = &bench.engine;
            put_durable(engine, b"k", value);
            engine.reorganize(None).unwrap();
            // Something to merge.
            put_durable(engine, b"recent", &[1; 20]);
            let gate = bench.disk.close(Io::Sync, "wal/");
            let deleted = delete(engine, b"k");
            gate.reached();
            std::thread::scope(|scope| {
                let (merged, end_of_merge) = channel();
                let merge = &merge;
                scope.spawn(move || {
                    merge(engine);
                    merged.send(engine.durable_lsn()).unwrap();
                });
                let early = a_moment(&end_of_merge);
                let (read, answers) = channel();
                for reader in [0, 1] {
                    let read = read.clone();
                    scope.spawn(move || {
                        let found = match reader {
                            0 => contents(engine).contains_key(&b"k"[..]),
                            _ => engine.get(b"k").unwrap().is_some(),
                        };
                        read.send((found, engine.durable_lsn())).unwrap();
                    });
                }
                drop(read);
                let early_answer = a_moment(&answers);
                // The delete is in no durable place: the key is back.
                let after = bench.after(&PowerCut::strict(), name);
                assert_eq!(after.get(b"k").unwrap().as_deref(), Some(value), "{name}");
                gate.open();
                let end = early.unwrap_or_else(|| end_of_merge.recv().unwrap());
                assert!(end >= deleted, "{name}: merged before the delete was durable");
                for (found, durable) in early_answer.into_iter().chain(answers) {
                    assert!(!found && durable >= deleted, "{name}: hidden by {durable}: {found}");
                }
            });
            bench.survives(name);
        }
    });
}

/// F7: put acknowledged; delete logged, not synced; reorganize drops the tombstone; a scan finds
/// no entry, so no word to wait for; crash: the key is back. Rule: a merge is published only after
/// `freeze_lsn` is durable.
#[test]
fn f07_reorganize_waits_for_the_freeze() {
    merge_after_a_delete("F7 reorganize", |engine| engine.reorganize(None).unwrap());
}

/// F7 in a checkpoint, whose merge drops tombstones too; and its manifest would prove a log
/// durable that is not. Rule: step 4 waits before anything is published.
#[test]
fn f07_checkpoint_waits_for_the_freeze() {
    merge_after_a_delete("F7 checkpoint", |engine| engine.checkpoint().map(drop).unwrap());
}

/// F8: insert-if-absent answers 'exists' because of a write that a crash takes back; likewise
/// 'delete: not found'. Rule: a write that changes nothing has the stripe's LSN as its ticket.
#[test]
fn f08_a_write_that_changes_nothing_waits_for_what_it_saw() {
    watchdog("F8", 60, || {
        let bench = Bench::new(small());
        let engine = &bench.engine;
        put_durable(engine, b"gone", &[1; 100]);
        let gate = bench.disk.close(Io::Sync, "wal/");
        let inserted = put(engine, b"k", &[2; 100]);
        let deleted = delete(engine, b"gone");
        gate.reached();
        let refused = |key: &[u8], condition: Condition, value: Option<&[u8]>| {
            let written = match value {
                Some(value) => engine.put(key, value, &condition),
                None => engine.delete(key, &condition),
            };
            let written = written.unwrap();
            assert!(!written.applied, "{condition:?}");
            written.lsn
        };
        let other = Condition::IfValueEquals(b"other".to_vec());
        assert!(refused(b"k", Condition::IfAbsent, Some(b"x")) >= inserted);
        assert!(refused(b"k", Condition::IfAbsent, None) >= inserted);
        assert!(refused(b"k", other.clone(), Some(b"x")) >= inserted);
        assert!(refused(b"k", other.clone(), None) >= inserted);
        assert!(refused(b"gone", Condition::IfPresent, Some(b"x")) >= deleted);
        assert!(refused(b"gone", Condition::IfPresent, None) >= deleted);
        assert!(refused(b"gone", other, Some(b"x")) >= deleted);
        let nothing = engine.delete(b"gone", &Condition::None).unwrap();
        assert!(!nothing.existed && nothing.lsn >= deleted);
        let batch = [Operation::Delete { key: b"gone".to_vec() }];
        assert!(engine.write_batch(&batch).unwrap() >= deleted);
        let range = engine.delete_range(&KeyRange::new("g", "h"), 10).unwrap();
        assert!(range.deleted == 0 && range.lsn >= deleted, "{range:?}");
        // And the tickets are real: none is durable before the sync.
        assert!(engine.durable_lsn() < inserted);
        assert!(bench.after(&PowerCut::strict(), "F8").get(b"k").unwrap().is_none());
        gate.open();
        engine.wait_durable(deleted).unwrap();
    });
}

/// F9, after the fact: what is applied and not durable is shown by no read, whatever the write
/// was. Rule: a reader copies, then waits for the word.
#[test]
fn f09_no_read_shows_what_is_not_durable() {
    watchdog("F9", 60, || {
        let bench = Bench::new(small());
        let engine = &bench.engine;
        for key in ["in place", "inline", "grows", "deleted", "ranged", "batched"] {
            put_durable(engine, key.as_bytes(), &[1; 50]);
        }
        put_durable(engine, b"inline", b"1");
        let gate = bench.disk.close(Io::Sync, "wal/");
        let put_op = |value: &[u8]| Operation::Put { key: b"batched".into(), value: value.into() };
        let writes: Vec<(&[u8], Lsn)> = vec![
            (b"in place", put(engine, b"in place", &[2; 50])),
            (b"inline", put(engine, b"inline", b"2")),
            (b"grows", put(engine, b"grows", &[2; 5000])),
            (b"new", put(engine, b"new", &[2; 50])),
            (b"deleted", delete(engine, b"deleted")),
            (b"ranged", engine.delete_range(&KeyRange::new("r", "s"), 9).unwrap().lsn),
            (b"batched", engine.write_batch(&[put_op(&[2; 40])]).unwrap()),
        ];
        gate.reached();
        let (answered, answers) = channel();
        std::thread::scope(|scope| {
            for (key, lsn) in &writes {
                assert_eq!(engine.try_get(key).unwrap(), TryGet::Pending(*lsn));
                for reader in 0..3 {
                    let answered = answered.clone();
                    scope.spawn(move || {
                        let range = KeyRange::new(*key, [key, &b"\0"[..]].concat());
                        match reader {
                            0 => drop(engine.get(key).unwrap()),
                            1 => drop(engine.checksum(&range, &|| false).unwrap()),
                            _ => {
                                let scan =
                                    vmemkv_engine::ScanOptions { range, ..Default::default() };
                                engine.scan(&scan).unwrap();
                            }
                        }
                        answered.send((key, lsn, engine.durable_lsn())).unwrap();
                    });
                }
            }
            drop(answered);
            let early = a_moment(&answers);
            gate.open();
            for (key, lsn, durable) in early.into_iter().chain(answers) {
                assert!(durable >= *lsn, "{} was shown early", key.escape_ascii());
            }
        });
        assert_eq!(engine.get(b"in place").unwrap(), Some(vec![2; 50]));
        assert_eq!(engine.get(b"deleted").unwrap(), None);
        assert!(engine.stats().counters.reads_waited > 0);
    });
}
