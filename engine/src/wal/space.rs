//! Room in the ring: who wants to append waits here, before taking any lock.
//!
//! Invariants: `free + permits + published and not yet written <= limit <= ring bytes`, at all
//! times; the limit is less than the ring when the disk has less (see `room`), and then nobody
//! waits: what is written does not come back as room on the disk; first come, first served among
//! those that wait, so that a large record is not starved.

use crate::sync::primitives::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::sync::primitives::{Condvar, Mutex};
use crossbeam_utils::CachePadded;

/// The free bytes of the ring.
pub(super) struct Space {
    ring_bytes: u64,
    /// All changes are read-modify-writes with `SeqCst`. The release in [`give`](Self::give) and
    /// the acquire in [`try_take`](Self::try_take) hand over the zeroed memory; the total order
    /// with `waiting` makes sure that a giver sees a waiter or the waiter sees the gift.
    free: CachePadded<AtomicU64>,
    /// What `free` was made from. Stored `SeqCst` before the bell rings, loaded `SeqCst` under the
    /// bell's lock: who waits for the ring hears when it is the disk that is short.
    limit: AtomicU64,
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

/// Why nothing was taken.
#[derive(Debug)]
pub(super) enum NotTaken {
    /// No room will be given any more: the log is closed or poisoned.
    Stopped,
    /// The disk is short of room, not the ring: waiting does not help.
    NoRoom,
}

impl Space {
    pub(super) fn new(ring_bytes: u64, limit: u64) -> Self {
        Self {
            ring_bytes,
            free: CachePadded::new(AtomicU64::new(limit)),
            limit: AtomicU64::new(limit),
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

    /// Bytes that may be taken now.
    pub(super) fn free(&self) -> u64 {
        self.free.load(Ordering::SeqCst)
    }

    /// Takes `bytes`, waiting for the ring if need be.
    pub(super) fn take(&self, bytes: u64) -> Result<(), NotTaken> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(NotTaken::Stopped);
        }
        if self.waiting.load(Ordering::Relaxed) == 0 && self.try_take(bytes) {
            return Ok(());
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let taken = self.take_in_turn(bytes);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        taken
    }

    fn take_in_turn(&self, bytes: u64) -> Result<(), NotTaken> {
        let _turn = self.turn.lock();
        let mut bell = self.bell.lock();
        let mut stalled = false;
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return Err(NotTaken::Stopped);
            }
            if self.try_take(bytes) {
                return Ok(());
            }
            if self.limit.load(Ordering::SeqCst) < self.ring_bytes {
                return Err(NotTaken::NoRoom);
            }
            if !stalled {
                stalled = true;
                self.stalls.fetch_add(1, Ordering::Relaxed);
            }
            self.rung.wait(&mut bell);
        }
    }

    /// Takes `limit` bytes, all that may be taken, if nobody has any and nobody waits. The caller
    /// keeps the limit from changing until it [gives](Self::give) them back.
    pub(super) fn try_take_all(&self, limit: u64) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0 && self.try_take(limit)
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
        self.ring_bell();
    }

    /// Returns `bytes` that were written, and changes the limit, which shrinks by no more than
    /// them. One step for both, so that nobody takes by an old limit. One caller at a time.
    pub(super) fn adjust(&self, bytes: u64, limit: u64) {
        let old = self.limit.swap(limit, Ordering::SeqCst);
        debug_assert!(bytes + limit >= old, "{bytes} + {limit} < {old}");
        self.free.fetch_add((bytes + limit).saturating_sub(old), Ordering::SeqCst);
        self.ring_bell();
    }

    fn ring_bell(&self) {
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
