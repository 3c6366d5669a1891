//! Who waits for a range to change: callbacks, called when a later change is durable.
//!
//! Invariants: at most [`MAX_WAITERS`]; each is called once, or cancelled and not called any more;
//! none is called under a lock. While there are any, one callback waits for the log: it looks at
//! every shard's last revision, which costs no I/O, so it may run on the flusher's thread. A
//! waiter may be called for nothing (its range may be a part of its shard), never missed: a
//! writer reserves its LSN, sets `last_change` and only then publishes what the flusher writes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
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
    core: Weak<Core>,
    number: u64,
}

impl Drop for ChangesWait {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            let cancelled = core.feed.waiters.lock().waiting.remove(&self.number);
            drop(cancelled);
        }
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
        Ok(ChangesWait { core: Arc::downgrade(self), number })
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
            due.into_iter().for_each(|done| done(Ok(())));
            if arm {
                self.arm_waiters(durable);
            }
            // Whoever armed it may have done so with what became durable meanwhile.
            if self.wal.durable_lsn() == durable {
                return;
            }
        }
    }

    fn arm_waiters(self: &Arc<Self>, durable: Lsn) {
        let core = Arc::downgrade(self);
        let served = move |outcome| {
            let Some(core) = core.upgrade() else { return };
            core.feed.waiters.lock().armed = false;
            match outcome {
                Ok(()) => core.serve_waiters(None),
                Err(error) => core.fail_waiters(&error),
            }
        };
        self.wal.on_durable_beyond(durable, Box::new(served));
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
        let all = self.feed.waiters.lock().take_due(None, |_| true);
        all.into_iter().for_each(|done| done(Err(error.clone())));
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
