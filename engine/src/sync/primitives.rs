//! Atomics, locks and threads as the engine's concurrent parts use them: the real ones, or, with
//! `--cfg shuttle`, ones that hand every step to an explorer of thread schedules.
//!
//! Invariants: a normal build gets plain re-exports and pays nothing; whatever a thread may wait
//! for, or be interrupted at while others look, comes from here (`cargo xtask tidy` sees to it),
//! so that the explorer runs the code that ships and not a copy of it.
//!
//! Not from here: counters for statistics, and `crossbeam_epoch`, which works under the explorer as
//! it is (all its threads are one thread of the system, so a pin of any of them is a pin of all).

#[cfg(not(shuttle))]
mod chosen {
    pub(crate) use std::sync::atomic;
    pub(crate) use std::thread;

    pub(crate) use arc_swap::ArcSwap;
    pub(crate) use crossbeam_utils::Backoff;
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

    /// In a loop that waits for a moment.
    #[inline(always)]
    pub(crate) fn spin_loop() {
        std::hint::spin_loop();
    }
}

#[cfg(shuttle)]
use super::explored as chosen;

pub(crate) use chosen::*;
/// Never explored: for replay, which works on one thread there.
pub(crate) use crossbeam_channel as channel;
/// Never explored: for what `crossbeam_epoch` runs when it collects, at any moment. Nothing from
/// this module may be used while it is held.
pub(crate) use parking_lot::Mutex as PlainMutex;
