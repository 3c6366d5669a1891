//! Who waits for a range to change: callbacks, called when a later change is durable.
//!
//! Invariants: at most [`MAX_WAITERS`]; each is called once, or cancelled and not called any more;
//! none is called under a lock, and one that panics harms no other. While there are any, one callback waits for the log: it looks at
//! every shard's last revision, which costs no I/O, so it may run on the flusher's thread. A
//! waiter may be called for nothing (its range may be a part of its shard), never missed: a
//! writer reserves its LSN, sets `last_change` and only then publishes what the flusher writes.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::primitives::{Condvar, Mutex};
use crate::types::{KeyRange, Lsn, Revision};

/// Most waiters at once.
const MAX_WAITERS: usize = 1024;

/// Called once, when there may be something to read.
type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Those who wait.
#[derive(Default)]
pub(super) struct Waiters {
    waiting: BTreeMap<u64, Waiter>,
    next: u64,
    /// A callback waits for the log on their behalf.
    armed: bool,
}

struct Waiter {
    range: KeyRange,
    after: Revision,
    /// Once a later change was seen: durable up to here, it may be read.
    target: Option<Lsn>,
    done: Done,
}

/// A wait for a change; dropping it cancels it.
#[must_use = "dropping it cancels the wait"]
pub struct ChangesWait {
    // Not the engine: who drops a wait must never be the one who ends it.
    waiters: Arc<Mutex<Waiters>>,
    number: u64,
}

impl Drop for ChangesWait {
    fn drop(&mut self) {
        let cancelled = self.waiters.lock().waiting.remove(&self.number);
        drop(cancelled);
    }
}

impl Core {
    /// See [`Engine::on_changes`](crate::Engine::on_changes).
    pub(crate) fn on_changes(
        self: &Arc<Self>,
        range: &KeyRange,
        after: Revision,
        done: Done,
    ) -> Result<ChangesWait> {
        self.shard_of_range(range)?;
        let number = {
            let mut waiters = self.feed.waiters.lock();
            if waiters.waiting.len() >= MAX_WAITERS {
                let what = format!("{MAX_WAITERS} waits for changes are open; retry later");
                return Err(Error::new(ErrorKind::Unavailable, what));
            }
            let number = waiters.next;
            waiters.next += 1;
            let waiter = Waiter { range: range.clone(), after, target: None, done };
            waiters.waiting.insert(number, waiter);
            number
        };
        self.serve_waiters(Some(number));
        Ok(ChangesWait { waiters: Arc::clone(&self.feed.waiters), number })
    }

    /// See [`Engine::wait_changes`](crate::Engine::wait_changes).
    pub(crate) fn wait_changes(
        self: &Arc<Self>,
        range: &KeyRange,
        after: Revision,
        timeout: Duration,
    ) -> Result<bool> {
        let ended = Arc::new((Mutex::new(None), Condvar::new()));
        let of_waiter = Arc::clone(&ended);
        let done = Box::new(move |outcome| {
            *of_waiter.0.lock() = Some(outcome);
            of_waiter.1.notify_all();
        });
        // Cancelled at the end.
        let _wait = self.on_changes(range, after, done)?;
        // Beyond what a clock can show: without a limit.
        let until = Instant::now().checked_add(timeout);
        let mut outcome = ended.0.lock();
        while outcome.is_none() {
            match until {
                Some(until) if ended.1.wait_until(&mut outcome, until).timed_out() => break,
                Some(_) => {}
                None => ended.1.wait(&mut outcome),
            }
        }
        outcome.take().map_or(Ok(false), |outcome| outcome.map(|()| true))
    }

    /// Calls whom it is time for, and has the log call again if others are left. `new`: at first
    /// only this one need be looked at.
    fn serve_waiters(self: &Arc<Self>, mut new: Option<u64>) {
        loop {
            let durable = self.wal.durable_lsn();
            let (due, arm) = {
                let mut waiters = self.feed.waiters.lock();
                let due = waiters.take_due(new.take(), |waiter| self.is_due(waiter, durable));
                let arm = !waiters.armed && !waiters.waiting.is_empty();
                waiters.armed |= arm;
                (due, arm)
            };
            due.into_iter().for_each(|done| call(done, Ok(())));
            if arm {
                match self.arm_waiters(durable) {
                    None => return,
                    Some(Ok(())) => self.feed.waiters.lock().armed = false,
                    Some(Err(error)) => return self.fail_waiters(&error),
                }
            } else if self.wal.durable_lsn() == durable {
                // Whoever armed it may have done so with what became durable meanwhile.
                return;
            }
        }
    }

    /// Has the log call once more than this is durable; or the outcome, if it is known.
    fn arm_waiters(self: &Arc<Self>, durable: Lsn) -> Option<Result<()>> {
        let core = Arc::downgrade(self);
        let served = move |outcome| {
            let Some(core) = core.upgrade() else { return };
            match outcome {
                Ok(()) => {
                    core.feed.waiters.lock().armed = false;
                    core.serve_waiters(None);
                }
                Err(error) => core.fail_waiters(&error),
            }
        };
        self.wal.on_durable_beyond(durable, Box::new(served))
    }

    fn is_due(&self, waiter: &mut Waiter, durable: Lsn) -> bool {
        if waiter.target.is_none() {
            // A range that was cut in two: its reader must ask anew.
            let Ok(shard) = self.shard_of_range(&waiter.range) else { return true };
            // Acquire pairs with the release of `Core::log`: who sees the revision sees that its
            // LSN is reserved.
            if shard.last_change.load(Ordering::Acquire) > waiter.after.0 {
                waiter.target = Some(self.wal.appended_lsn());
            }
        }
        waiter.target.is_some_and(|target| target <= durable)
    }

    fn fail_waiters(&self, error: &Error) {
        let all = {
            let mut waiters = self.feed.waiters.lock();
            waiters.armed = false;
            waiters.take_due(None, |_| true)
        };
        all.into_iter().for_each(|done| call(done, Err(error.clone())));
    }
}

/// A callback that panics is its owner's affair: others wait to be called.
fn call(done: Done, outcome: Result<()>) {
    if catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err() {
        tracing::error!("a callback for changes panicked");
    }
}

impl Waiters {
    /// Takes those that are due, of all or of one.
    fn take_due(
        &mut self,
        only: Option<u64>,
        mut is_due: impl FnMut(&mut Waiter) -> bool,
    ) -> Vec<Done> {
        let numbers = only.map_or(0..u64::MAX, |number| number..number + 1);
        let due: Vec<u64> = self
            .waiting
            .range_mut(numbers)
            .filter_map(|(number, waiter)| is_due(waiter).then_some(*number))
            .collect();
        due.iter().filter_map(|number| self.waiting.remove(number)).map(|w| w.done).collect()
    }
}
