//! [`Deadline`]: until when a call may take.
//!
//! Invariants: a deadline is a point in time, so that retries and calls further down share it.

use std::time::Duration;

use tokio::time::Instant;
use vmemkv_proto::ErrorKind;

use crate::error::{Error, Result};

/// Until when a call may take; or for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No deadline.
    pub fn none() -> Self {
        Self(None)
    }

    /// This long from now.
    pub fn within(time: Duration) -> Self {
        Self(Instant::now().checked_add(time))
    }

    /// The time that is left; none: no deadline.
    pub fn remaining(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// Ready once it has passed; never without one.
    pub async fn passed_by(self) {
        match self.0 {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Whether it comes within this time from now.
    pub(crate) fn comes_within(self, time: Duration) -> bool {
        self.remaining().is_some_and(|left| left <= time)
    }

    /// The earlier of the two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }

    /// Waits for `work` until the deadline; none: it has passed.
    pub(crate) async fn bound<T>(self, work: impl Future<Output = T>) -> Option<T> {
        if self.has_passed() {
            return None;
        }
        match self.0 {
            Some(at) => tokio::time::timeout_at(at, work).await.ok(),
            None => Some(work.await),
        }
    }

    /// As [`Deadline::bound`], for work that changes nothing.
    pub(crate) async fn read<T>(
        self,
        what: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.bound(work).await.unwrap_or_else(|| Err(Self::passed(what)))
    }

    /// The error of a call that ran out of time and has changed nothing.
    pub(crate) fn passed(what: &str) -> Error {
        Error::refused(ErrorKind::DeadlineExceeded, format!("{what}: the deadline has passed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_runs_out() {
        let deadline = Deadline::within(Duration::from_secs(1));
        assert!(!deadline.has_passed() && deadline.comes_within(Duration::from_secs(1)));
        assert_eq!(deadline.bound(async { 1 }).await, Some(1));
        assert_eq!(deadline.bound(std::future::pending::<()>()).await, None);
        assert!(deadline.has_passed());
        assert!(!Deadline::none().has_passed());
        assert_eq!(deadline.min(Deadline::none()), deadline);
    }
}
