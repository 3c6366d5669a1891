//! Ring, group commit and waiters under the explorer of thread schedules: what is acknowledged is
//! synced, nobody waits for ever, and what comes back is what was written.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::reference::no_values;
use super::testing::{append, contents};
use super::{Replay, Wal};
use crate::error::ErrorKind;
use crate::io::Disk;
use crate::io::testing::{CrashDisk, PowerCut};
use crate::options::Options;
use crate::sync::explore::explore;
use crate::sync::primitives::thread;
use crate::types::Lsn;

const APPENDERS: u8 = 3;
const EACH: u8 = 3;

/// Three records of 40 bytes fill the ring.
fn options() -> Options {
    Options { wal_segment_bytes: 16 << 10, wal_ring_bytes: 512, ..Options::for_tests() }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn replay(disk: Arc<dyn Disk>) -> Replay {
    Replay::open(disk, &options(), Lsn(0), Lsn(0)).unwrap()
}

fn record(appender: u8, n: u8) -> Vec<u8> {
    vec![appender * 16 + n; 20 + 30 * n as usize]
}

/// What a power cut of the worst kind leaves now.
fn after_a_cut(disk: &CrashDisk, image: &Path) -> Vec<(u64, Vec<u8>)> {
    disk.materialise(None, image, &PowerCut::strict()).unwrap();
    let found = contents(&replay(CrashDisk::new(image).unwrap()));
    std::fs::remove_dir_all(image).unwrap();
    found
}

#[test]
fn explore_what_is_acknowledged_is_synced() {
    explore("log", 300, || {
        let dir = folder();
        let disk = CrashDisk::new(dir.path().join("log")).unwrap();
        let wal: Arc<Wal> = Arc::new(replay(disk.clone()).start(&options(), no_values()).unwrap());
        let called = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..APPENDERS)
            .map(|appender| {
                let (wal, disk, called) = (Arc::clone(&wal), disk.clone(), Arc::clone(&called));
                let image = dir.path().join(appender.to_string());
                thread::spawn(move || {
                    let mut last = Lsn(0);
                    for n in 0..EACH {
                        let value = record(appender, n);
                        let lsn = append(&wal, &value).unwrap();
                        assert!(lsn > last, "{lsn} after {last}");
                        last = lsn;
                        if n == 0 {
                            let called = Arc::clone(&called);
                            let count = move |outcome: crate::error::Result<()>| {
                                outcome.unwrap();
                                called.fetch_add(1, Ordering::Relaxed);
                            };
                            wal.on_durable(lsn, Box::new(count));
                            continue;
                        }
                        wal.wait(lsn).unwrap();
                        assert!(wal.durable_lsn() >= lsn);
                        let found = after_a_cut(&disk, &image);
                        assert!(found.contains(&(lsn.0, value)), "acknowledged, not synced");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(called.load(Ordering::Relaxed), usize::from(APPENDERS));
        let end = wal.appended_lsn();
        wal.close().unwrap();
        let found = contents(&replay(disk));
        assert_eq!(found.last().map(|(end, _)| *end), Some(end.0));
        for appender in 0..APPENDERS {
            let own: Vec<_> = found.iter().filter(|(_, value)| value[0] / 16 == appender).collect();
            assert_eq!(own.len(), usize::from(EACH));
            for (n, (_, value)) in own.into_iter().enumerate() {
                assert!(*value == record(appender, n as u8), "changed, or out of order");
            }
        }
    });
}

/// Somebody poisons the log, or closes it, while others append and wait: every wait ends, and an
/// acknowledgement is still the truth.
#[test]
fn explore_poison_and_close_leave_nobody_waiting() {
    explore("poison", 300, || {
        let dir = folder();
        let disk = CrashDisk::new(dir.path().join("log")).unwrap();
        let wal: Arc<Wal> = Arc::new(replay(disk.clone()).start(&options(), no_values()).unwrap());
        let mut threads: Vec<_> = (0..2u8)
            .map(|appender| {
                let wal = Arc::clone(&wal);
                thread::spawn(move || {
                    let mut acknowledged = Vec::new();
                    for n in 0..EACH {
                        let value = record(appender, n);
                        let outcome = append(&wal, &value).and_then(|lsn| {
                            wal.wait(lsn)?;
                            Ok(lsn)
                        });
                        match outcome {
                            Ok(lsn) => acknowledged.push((lsn.0, value)),
                            Err(error) => {
                                let kinds = [ErrorKind::ReadOnly, ErrorKind::Unavailable];
                                assert!(kinds.contains(&error.kind()), "{error}");
                                break;
                            }
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        let other = Arc::clone(&wal);
        threads.push(thread::spawn(move || {
            // A writer that reserves and stops.
            if let Ok(permit) = other.acquire(100) {
                drop(other.reserve(permit));
                assert!(other.poisoned().is_some());
            }
            Vec::new()
        }));
        let acknowledged: Vec<_> =
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert!(wal.close().is_err());
        let found = after_a_cut(&disk, &dir.path().join("image"));
        for record in acknowledged {
            assert!(found.contains(&record), "acknowledged, not synced");
        }
    });
}
