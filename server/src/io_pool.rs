//! Work that may block: cold reads, writes that wait for space, scans, jobs.
//!
//! Invariants: no task of the async runtime ever blocks on the engine; each class of work has its
//! own bound, so that stalled writes cannot starve reads, nor long jobs either; a panic of the work
//! becomes INTERNAL.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;
use vmemkv_proto::ApiError;

/// Most long jobs (checksums, verifications, checkpoints) at a time.
const LONG_JOBS: usize = 4;

/// Most splits, or searches for their keys, at a time.
const STRUCTURE_JOBS: usize = 2;

/// Which bound work counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Cold reads and chunks of scans.
    Read,
    /// Writes.
    Write,
    /// Whatever takes long by nature.
    Long,
    /// Splits of shards, and the search for where: never behind long jobs.
    Structure,
    /// What keeps the lease: one at a time, never behind other work.
    Control,
}

/// Runs work that may block on threads for it, a bounded number at a time.
pub(crate) struct IoPool {
    read: Arc<Semaphore>,
    write: Arc<Semaphore>,
    long: Arc<Semaphore>,
    structure: Arc<Semaphore>,
    control: Arc<Semaphore>,
}

impl IoPool {
    /// A pool with at most `threads` for reads and as many for writes.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            read: Arc::new(Semaphore::new(threads)),
            write: Arc::new(Semaphore::new(threads)),
            long: Arc::new(Semaphore::new(LONG_JOBS)),
            structure: Arc::new(Semaphore::new(STRUCTURE_JOBS)),
            control: Arc::new(Semaphore::new(1)),
        }
    }

    /// Runs `work` once there is room. Work that has begun runs to its end, also if this future is
    /// dropped; work that has not is never run then.
    pub(crate) async fn run<T, F>(&self, class: Class, work: F) -> Result<T, ApiError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let semaphore = match class {
            Class::Read => &self.read,
            Class::Write => &self.write,
            Class::Long => &self.long,
            Class::Structure => &self.structure,
            Class::Control => &self.control,
        };
        let Ok(permit) = Arc::clone(semaphore).acquire_owned().await else {
            return Err(closing());
        };
        let work = move || {
            let result = work();
            drop(permit);
            result
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => Ok(result),
            Err(error) if error.is_panic() => {
                tracing::error!(?class, "a job panicked");
                Err(ApiError::internal("a job of the server failed; its log says more"))
            }
            Err(_) => Err(closing()),
        }
    }

    /// Refuses work from now on; what has begun goes on.
    pub(crate) fn close(&self) {
        self.read.close();
        self.write.close();
        self.long.close();
        self.structure.close();
        self.control.close();
    }
}

/// The refusal of a server that ends.
pub(crate) fn closing() -> ApiError {
    ApiError::unavailable("the server is shutting down", 500)
}

/// Tells work on another thread that nobody waits for it any more: once this is dropped.
#[derive(Debug, Default)]
pub(crate) struct CancelOnDrop(Arc<AtomicBool>);

impl CancelOnDrop {
    /// A flag that becomes true when the guard is dropped.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use vmemkv_proto::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn one_class_does_not_starve_another() {
        let pool = Arc::new(IoPool::new(1));
        let (release, blocked) = mpsc::channel::<()>();
        let writer = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.run(Class::Write, move || blocked.recv().is_ok()).await }
        });
        assert_eq!(pool.run(Class::Read, || 7).await, Ok(7));
        release.send(()).unwrap();
        assert_eq!(writer.await.unwrap(), Ok(true));
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_frees_its_place() {
        let pool = IoPool::new(1);
        let error = pool.run(Class::Read, || panic!("on purpose")).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        assert_eq!(pool.run(Class::Read, || 1).await, Ok(1));
    }

    #[tokio::test]
    async fn a_closed_pool_refuses() {
        let pool = IoPool::new(1);
        pool.close();
        let error = pool.run(Class::Write, || 1).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.not_applied);
    }

    #[test]
    fn dropping_the_guard_sets_the_flag() {
        let guard = CancelOnDrop::default();
        let flag = guard.flag();
        assert!(!flag.load(Ordering::Relaxed));
        drop(guard);
        assert!(flag.load(Ordering::Relaxed));
    }
}
