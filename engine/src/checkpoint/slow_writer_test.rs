//! F1 from the inside: writers that dawdle between their look at the tail and their last byte,
//! which no test from outside can make them do.
//!
//! Rule: the base rises only after every writer that may have looked before has let go of its
//! stripe. So whoever holds a stripe never finds its place below the base.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::io::testing::CrashDisk;
use crate::options::Options;
use crate::recovery;
use crate::sync::WordIndex;
use crate::value_log::ValueLog;

#[test]
fn the_base_waits_for_whoever_holds_a_stripe() {
    let dir = tempfile::tempdir().unwrap();
    let disk = CrashDisk::new(dir.path()).unwrap();
    let core = Arc::new(recovery::open(disk, Options::for_tests()).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let (core, stop) = (&core, &stop);
            scope.spawn(move || {
                let key = [b'w', thread];
                let log = &core.store.value_log;
                let mut last = None;
                while !stop.load(Ordering::Relaxed) {
                    let held = core.stripes.lock([WordIndex::of(&key)]);
                    let in_place =
                        last.filter(|at| log.is_tail(*at) && ValueLog::fits(*at, 2, 100));
                    let allocation = log.allocate(2, 100).unwrap();
                    for _ in 0..20 {
                        std::thread::yield_now();
                    }
                    let new = log.write(allocation, &key, &[thread; 100], 0);
                    assert!(log.is_above_base(new), "the base passed an allocation");
                    if let Some(at) = in_place {
                        assert!(log.is_above_base(at), "the base passed an update in place");
                        log.overwrite(at, &key, &[thread; 90], 0);
                    }
                    drop(held);
                    if let Some(old) = last.replace(new) {
                        log.sub_live(old);
                    }
                }
                last.iter().for_each(|at| log.sub_live(*at));
            });
        }
        for _ in 0..60 {
            core.checkpoint().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}
