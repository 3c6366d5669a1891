//! Who waits for the log, and until when: the durable LSN, waiting threads, callbacks, poison.
//!
//! Invariants: `durable` only rises, and not at all once poisoned; every wait and callback ends:
//! by the LSN it is for, by poison, or by the flusher's end, whichever comes first. One lock and
//! one condition for all, woken once per flush: a wake-up per record costs more than the sync.

use crate::sync::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sync::primitives::{Condvar, Mutex};

use super::{closed, read_only};
use crate::error::{Error, Result};

/// Called once with the outcome of a wait.
pub(crate) type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// The durable end of the log and everybody who waits for it.
pub(super) struct Commit {
    /// Release when it rises, acquire by readers: who sees an LSN as durable sees the sync.
    durable: AtomicU64,
    /// Mirror of `state.poison`, for the flusher. Set under the lock with release.
    is_poisoned: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    poison: Option<String>,
    /// The flusher has ended.
    ended: bool,
    callbacks: BinaryHeap<Pending>,
}

struct Pending {
    lsn: u64,
    callback: Callback,
}

impl Ord for Pending {
    /// The lowest LSN is the greatest, so that the heap gives it first.
    fn cmp(&self, other: &Self) -> Order {
        other.lsn.cmp(&self.lsn)
    }
}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.lsn == other.lsn
    }
}

impl Eq for Pending {}

impl State {
    /// Why a wait that is not satisfied will never be.
    fn failure(&self) -> Option<Error> {
        match &self.poison {
            Some(reason) => Some(read_only(reason)),
            None => self.ended.then(closed),
        }
    }
}

impl Commit {
    pub(super) fn new(durable: u64) -> Self {
        Self {
            durable: AtomicU64::new(durable),
            is_poisoned: AtomicBool::new(false),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        }
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.is_poisoned.load(Ordering::Acquire)
    }

    pub(super) fn poisoned(&self) -> Option<String> {
        if !self.is_poisoned() {
            return None;
        }
        self.state.lock().poison.clone()
    }

    pub(super) fn wait(&self, lsn: u64) -> Result<()> {
        if self.durable() >= lsn {
            return Ok(());
        }
        let mut state = self.state.lock();
        loop {
            if self.durable() >= lsn {
                return Ok(());
            }
            if let Some(error) = state.failure() {
                return Err(error);
            }
            self.changed.wait(&mut state);
        }
    }

    pub(super) fn on_durable(&self, lsn: u64, callback: Callback) {
        if let Err((outcome, callback)) = self.register(lsn, callback) {
            callback(outcome);
        }
    }

    /// Has the flusher call `callback`; or gives it back, not called, with the outcome if that is
    /// known.
    pub(super) fn register(
        &self,
        lsn: u64,
        callback: Callback,
    ) -> std::result::Result<(), (Result<()>, Callback)> {
        let mut state = self.state.lock();
        if self.durable() >= lsn {
            return Err((Ok(()), callback));
        }
        if let Some(error) = state.failure() {
            return Err((Err(error), callback));
        }
        state.callbacks.push(Pending { lsn, callback });
        Ok(())
    }

    /// Everything below `lsn` is durable. `false`, and nothing changes, if the log was poisoned.
    /// Only the flusher calls it.
    pub(super) fn advance(&self, lsn: u64) -> bool {
        let mut ready = Vec::new();
        {
            let mut state = self.state.lock();
            if state.poison.is_some() {
                return false;
            }
            self.durable.store(lsn, Ordering::Release);
            while state.callbacks.peek().is_some_and(|pending| pending.lsn <= lsn) {
                ready.extend(state.callbacks.pop());
            }
        }
        self.changed.notify_all();
        for pending in ready {
            call(pending.callback, Ok(()));
        }
        true
    }

    /// The first reason stays. Callbacks are left to the flusher, who calls [`end`](Self::end).
    pub(super) fn poison(&self, reason: &str) {
        {
            let mut state = self.state.lock();
            if state.poison.is_none() {
                tracing::error!(reason, "the log takes no more writes");
                state.poison = Some(reason.to_owned());
                self.is_poisoned.store(true, Ordering::Release);
            }
        }
        self.changed.notify_all();
    }

    /// The flusher has ended: nothing becomes durable any more.
    pub(super) fn end(&self) {
        let (error, callbacks) = {
            let mut state = self.state.lock();
            state.ended = true;
            (state.failure().unwrap_or_else(closed), std::mem::take(&mut state.callbacks))
        };
        self.changed.notify_all();
        for pending in callbacks.into_sorted_vec().into_iter().rev() {
            call(pending.callback, Err(error.clone()));
        }
    }
}

/// A callback that panics must not end the flusher: others wait for it.
fn call(callback: Callback, outcome: Result<()>) {
    if catch_unwind(AssertUnwindSafe(|| callback(outcome))).is_err() {
        tracing::error!("a durability callback panicked");
    }
}
