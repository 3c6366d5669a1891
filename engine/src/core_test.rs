//! F22 from the inside: a write that stops between applying and logging.
//!
//! Rule: it poisons the log; nobody hangs, nobody is shown the value, and the next life does not
//! know it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::api::{Condition, ScanOptions, TryGet};
use crate::core::Core;
use crate::error::ErrorKind;
use crate::io::testing::CrashDisk;
use crate::options::Options;
use crate::recovery;
use crate::store::Planned;
use crate::sync::WordIndex;
use crate::types::{KeyRange, Lsn};

fn put(core: &Core, key: &[u8], value: &[u8]) -> Lsn {
    let lsn = core.put(key, value, &Condition::None).unwrap().lsn;
    core.wal.wait(lsn).unwrap();
    lsn
}

#[test]
fn f22_a_panic_between_applying_and_logging_poisons() {
    let dir = tempfile::tempdir().unwrap();
    let disk = CrashDisk::new(dir.path()).unwrap();
    let core = Arc::new(recovery::open(disk.clone(), Options::for_tests()).unwrap());
    put(&core, b"k", &[1; 100]);
    let last = put(&core, b"other", b"1");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let held = core.stripes.lock([WordIndex::of(b"k")]);
        let Ok(Planned::Ready(plan)) = core.store.plan(b"k", Some(&[2; 100])) else {
            panic!("no plan")
        };
        let in_flight = core.in_flight(held);
        in_flight.apply(plan);
        assert!(last > Lsn(u64::MAX / 2), "on purpose");
        in_flight.commit(last);
    }));
    assert!(panicked.is_err());
    let kind = |result: crate::error::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(core.get(b"k").map(drop)), ErrorKind::ReadOnly);
    assert_eq!(kind(core.try_get(b"k").map(drop)), ErrorKind::ReadOnly);
    let all = ScanOptions { range: KeyRange::all(), ..ScanOptions::default() };
    assert_eq!(kind(core.scan(&all).map(drop)), ErrorKind::ReadOnly);
    assert_eq!(kind(core.put(b"x", b"y", &Condition::None).map(drop)), ErrorKind::ReadOnly);
    assert_eq!(kind(core.put(b"k", b"y", &Condition::IfAbsent).map(drop)), ErrorKind::ReadOnly);
    assert_eq!(kind(core.checkpoint().map(drop)), ErrorKind::ReadOnly);
    assert_eq!(kind(core.reorganize(None)), ErrorKind::ReadOnly);
    // What is durable is still read.
    assert_eq!(core.get(b"other").unwrap(), Some(b"1".to_vec()));
    assert_eq!(core.try_get(b"other").unwrap(), TryGet::Ready(Some(b"1".to_vec())));
    drop(core);
    let core = recovery::open(disk, Options::for_tests()).unwrap();
    assert_eq!(core.get(b"k").unwrap(), Some(vec![1; 100]));
    put(&core, b"k", &[3; 100]);
}

#[test]
fn an_lsn_that_nobody_has_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let core = recovery::open(CrashDisk::new(dir.path()).unwrap(), Options::for_tests()).unwrap();
    let lsn = put(&core, b"k", b"v");
    let beyond = Lsn(lsn.0 + 8);
    assert_eq!(core.wal.wait(beyond).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let (sender, answer) = std::sync::mpsc::channel();
    core.wal.on_durable(beyond, Box::new(move |result| sender.send(result).unwrap()));
    assert_eq!(answer.recv().unwrap().unwrap_err().kind(), ErrorKind::InvalidArgument);
    core.wal.wait(lsn).unwrap();
}
