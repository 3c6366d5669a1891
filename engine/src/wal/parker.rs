//! How the flusher sleeps without polling and without missing a wake-up.
//!
//! Invariant: whoever makes work (publishes, closes, poisons) stores it before [`Parker::wake`];
//! the flusher says that it will sleep before it looks for work once more. The two fences order
//! each store before the other side's load, so at least one of them sees the other.

use crate::sync::primitives::atomic::{AtomicBool, Ordering, fence};
use crate::sync::primitives::thread::{self, Thread};
use std::sync::OnceLock;

/// The flusher's bed.
#[derive(Default)]
pub(super) struct Parker {
    /// The flusher sleeps or is about to.
    parked: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Parker {
    /// Whom to wake; until it is set nobody is woken, so set it before anybody makes work.
    pub(super) fn set_thread(&self, thread: Thread) {
        // Only the log's constructor calls it, once.
        let _ = self.thread.set(thread);
    }

    /// Wakes the flusher if it sleeps.
    pub(super) fn wake(&self) {
        // Pairs with the fence in `sleep_unless`.
        fence(Ordering::SeqCst);
        let parked = self.parked.load(Ordering::Relaxed);
        if parked
            && self.parked.swap(false, Ordering::Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Sleeps until somebody calls [`wake`](Self::wake), unless there is work. May return early.
    pub(super) fn sleep_unless(&self, work: impl FnOnce() -> bool) {
        self.parked.store(true, Ordering::Relaxed);
        // Pairs with the fence in `wake`: either `work` sees the work or `wake` sees `parked`.
        fence(Ordering::SeqCst);
        if !work() {
            thread::park();
        }
        self.parked.store(false, Ordering::Relaxed);
    }
}
