//! Ending an engine whose last handle is dropped in a callback of its own log.
//!
//! Invariants: the log's thread never waits for a job, which may wait for the log; the directory is
//! let go only after the log's thread has ended, or never.

use std::sync::Arc;

use super::Scheduler;
use crate::core::Core;
use crate::sync::primitives::{Mutex, thread};

/// Ends jobs and log on a thread of its own: it waits for the log's end, and so for the callback's,
/// before it lets go of the last of the engine. Without such a thread nobody waits.
pub(crate) fn close_elsewhere(core: &Arc<Core>, scheduler: Scheduler, builder: thread::Builder) {
    // Not in the closure alone: one that cannot be started is dropped here, and joins the jobs.
    let scheduler = Arc::new(Mutex::new(Some(scheduler)));
    let (taken, closed) = (Arc::clone(&scheduler), Arc::clone(core));
    let closing = builder.spawn(move || {
        let scheduler = taken.lock().take();
        drop(scheduler);
        let _ = closed.wal.close();
    });
    let Err(error) = closing else { return };
    tracing::error!(%error, "no thread to close the engine: its directory stays locked");
    let left = scheduler.lock().take();
    left.into_iter().for_each(Scheduler::detach);
    // Whoever waits for the log hears of the end; this is the log's thread, so it is not waited for.
    let _ = core.wal.close();
    // The lock must not go while the log's thread still writes.
    std::mem::forget(Arc::clone(core));
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::api::Condition;
    use crate::error::ErrorKind;
    use crate::io::testing::CrashDisk;
    use crate::options::Options;
    use crate::recovery;

    /// Ends an engine in a callback while a job waits for the log. None: the callback was called
    /// by who asked for it, as it was late. Else how the next open of the directory ends.
    fn close_in_callback(builder: thread::Builder) -> Option<Result<(), ErrorKind>> {
        let dir = tempfile::tempdir().unwrap();
        let disk = CrashDisk::new(dir.path().join("data")).unwrap();
        let options = Options { background: true, job_threads: 1, ..Options::for_tests() };
        let core = Arc::new(recovery::open(disk.clone(), options.clone()).unwrap());
        let scheduler = Scheduler::start(&core).unwrap();
        let lsn = core.put(b"a", b"1", &Condition::None).unwrap().lsn;
        let (done, ended) = std::sync::mpsc::channel();
        let within = Arc::clone(&core);
        let callback = move |durable: crate::Result<()>| {
            durable.unwrap();
            let is_late = !within.wal.is_flusher();
            if !is_late {
                within.put(b"b", b"2", &Condition::None).unwrap();
                within.requests.checkpoint();
                // Long enough for the job to be at it.
                thread::sleep(Duration::from_millis(300));
                close_elsewhere(&within, scheduler, builder);
            }
            drop(within);
            done.send(is_late).unwrap();
        };
        core.wal.on_durable(lsn, Box::new(callback));
        drop(core);
        if ended.recv_timeout(Duration::from_secs(20)).expect("the callback hangs") {
            return None;
        }
        // The lock goes a moment after the callback.
        let open = || recovery::open(disk.clone(), options.clone()).map(drop);
        let mut opened = open();
        for _ in 0..100 {
            if opened.is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
            opened = open();
        }
        Some(opened.map_err(|error| error.kind()))
    }

    fn closed(builder: impl Fn() -> thread::Builder) -> Result<(), ErrorKind> {
        (0..200).find_map(|_| close_in_callback(builder())).expect("a callback in time")
    }

    #[test]
    fn the_directory_is_free_after_the_callback() {
        assert_eq!(closed(thread::Builder::new), Ok(()));
    }

    #[test]
    fn without_a_thread_nothing_hangs_and_the_directory_stays_locked() {
        // More than the address space has.
        let too_large = || thread::Builder::new().stack_size(1 << 47);
        assert!(too_large().spawn(|| {}).is_err());
        assert_eq!(closed(too_large), Err(ErrorKind::InUse));
    }
}
