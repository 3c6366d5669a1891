//! What a call can fail with: [`Error`], its [`ErrorKind`], and for writes its [`Outcome`].
//!
//! Invariants: `Outcome::NotApplied` is only said if surely nothing has been changed; everything
//! else, a broken connection above all, is `Outcome::Unknown`. What a server said (code, text, retry
//! hint, routing) is kept whatever happens on the way.

use std::fmt;
use std::time::Duration;

use tonic::Status;
use vmemkv_proto::v1;
use vmemkv_proto::{ApiError, ErrorKind};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What has become of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Surely nothing has been changed; always so for reads. The call may be repeated.
    NotApplied,
    /// A write may have been applied, or may be applied later. Read before you repeat it: another
    /// write may have come between.
    Unknown,
}

/// Why a call failed.
///
/// [`Error::kind`] says what to do about it, [`Error::outcome`] whether a write may have happened.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    api: ApiError,
    outcome: Outcome,
}

impl Error {
    /// An error as the API has it, of a call with this outcome; who gets it from us is told so.
    pub fn new(api: ApiError, outcome: Outcome) -> Self {
        let not_applied = outcome == Outcome::NotApplied;
        Self(Box::new(Inner { api: ApiError { not_applied, ..api }, outcome }))
    }

    /// A refusal that has changed nothing.
    pub(crate) fn refused(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::from(ApiError::new(kind, message).with_not_applied())
    }

    /// What kind of error it is: it says what the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.0.api.kind
    }

    /// What has become of the call.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// Whether a write may have happened in spite of this error.
    pub fn is_unknown(&self) -> bool {
        self.0.outcome == Outcome::Unknown
    }

    /// What happened, for people.
    pub fn message(&self) -> &str {
        &self.0.api.message
    }

    /// How long a caller should wait before it tries again, if somebody said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.api.retry_after_ms.map(Duration::from_millis)
    }

    /// The error as the API has it.
    pub fn api(&self) -> &ApiError {
        &self.0.api
    }

    /// The gRPC status for a caller further up, with all details.
    pub fn to_status(&self) -> Status {
        self.0.api.to_status()
    }

    /// The form within the results of a batch.
    pub fn to_wire(&self) -> v1::Error {
        self.0.api.to_wire()
    }

    /// The same error with another outcome.
    #[must_use]
    pub(crate) fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.0.outcome = outcome;
        self.0.api.not_applied = outcome == Outcome::NotApplied;
        self
    }

    /// The same error with words in front of its message.
    #[must_use]
    pub(crate) fn context(mut self, words: &str) -> Self {
        self.0.api.message = format!("{words}: {}", self.0.api.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.api)?;
        if self.is_unknown() {
            f.write_str(" (the outcome is unknown: it may have been applied)")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// The outcome is as the error says it: unknown unless it is marked `not_applied`.
impl From<ApiError> for Error {
    fn from(api: ApiError) -> Self {
        let outcome = if api.not_applied { Outcome::NotApplied } else { Outcome::Unknown };
        Self::new(api, outcome)
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        error.to_status()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_outcome_is_visible() {
        let error = Error::from(ApiError::new(ErrorKind::Unavailable, "gone"));
        assert!(error.is_unknown());
        assert!(error.to_string().contains("outcome is unknown"), "{error}");
        let error = Error::from(ApiError::unavailable("later", 20));
        assert_eq!(error.outcome(), Outcome::NotApplied);
        assert_eq!(error.retry_after(), Some(Duration::from_millis(20)));
        assert_eq!(error.to_string(), "UNAVAILABLE: later");
    }

    #[test]
    fn details_survive() {
        let api = ApiError::misrouted("elsewhere", v1::RoutingError::default());
        let error = Error::from(api.clone()).context("get");
        let back = ApiError::from(error.to_status());
        assert_eq!(back.message, "get: elsewhere");
        assert_eq!(back.routing, api.routing);
    }
}
