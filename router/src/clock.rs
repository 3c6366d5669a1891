//! The clock of this process, as a value that tests replace.
//!
//! Invariants: it never goes back, and a change of the wall clock does not move it.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Time since some moment before the router started.
pub(crate) trait Clock: Debug + Send + Sync {
    /// Now.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock.
#[derive(Debug)]
pub(crate) struct SystemClock {
    start: Instant,
}

impl SystemClock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that moves when it is told to.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct ManualClock {
    now: parking_lot::Mutex<Duration>,
}

#[cfg(test)]
impl ManualClock {
    pub(crate) fn advance(&self, by: Duration) {
        *self.now.lock() += by;
    }
}

#[cfg(test)]
impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock()
    }
}
