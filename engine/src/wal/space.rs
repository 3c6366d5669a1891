//! Room in the ring: who wants to append waits here, before taking any lock.
//!
//! Invariants: `free + permits + published and not yet written <= ring bytes`, at all times;
//! first come, first served among those that wait, so that a large record is not starved.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex};

/// The free bytes of the ring.
pub(super) struct Space {
    /// All changes are read-modify-writes with `SeqCst`. The release in [`give`](Self::give) and
    /// the acquire in [`try_take`](Self::try_take) hand over the zeroed memory; the total order
    /// with `waiting` makes sure that a giver sees a waiter or the waiter sees the gift.
    free: CachePadded<AtomicU64>,
    /// Threads in the slow path. While there are any, nobody takes the fast path.
    waiting: CachePadded<AtomicUsize>,
    /// Nothing is taken any more. Set before `bell` rings, read under its lock.
    stopped: AtomicBool,
    /// Whose turn it is to wait at the bell.
    turn: Mutex<()>,
    bell: Mutex<()>,
    rung: Condvar,
    stalls: AtomicU64,
}

/// No room will be given any more: the log is closed or poisoned.
#[derive(Debug)]
pub(super) struct Stopped;

impl Space {
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            free: CachePadded::new(AtomicU64::new(bytes)),
            waiting: CachePadded::new(AtomicUsize::new(0)),
            stopped: AtomicBool::new(false),
            turn: Mutex::new(()),
            bell: Mutex::new(()),
            rung: Condvar::new(),
            stalls: AtomicU64::new(0),
        }
    }

    /// How often somebody had to wait.
    pub(super) fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, waiting for them if need be.
    pub(super) fn take(&self, bytes: u64) -> Result<(), Stopped> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(Stopped);
        }
        if self.waiting.load(Ordering::Relaxed) == 0 && self.try_take(bytes) {
            return Ok(());
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let taken = self.take_in_turn(bytes);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        taken
    }

    fn take_in_turn(&self, bytes: u64) -> Result<(), Stopped> {
        let _turn = self.turn.lock();
        let mut bell = self.bell.lock();
        let mut stalled = false;
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return Err(Stopped);
            }
            if self.try_take(bytes) {
                return Ok(());
            }
            if !stalled {
                stalled = true;
                self.stalls.fetch_add(1, Ordering::Relaxed);
            }
            self.rung.wait(&mut bell);
        }
    }

    fn try_take(&self, bytes: u64) -> bool {
        let less = |free: u64| free.checked_sub(bytes);
        self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    /// Returns `bytes`. Whoever returns written space has zeroed it before.
    pub(super) fn give(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.free.fetch_add(bytes, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // The lock orders this bell after the waiter's last look at `free`.
            drop(self.bell.lock());
            self.rung.notify_one();
        }
    }

    /// Refuses everybody from here on, those who wait included.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        drop(self.bell.lock());
        self.rung.notify_all();
    }
}
