//! [`Failure`]: what an attempt that failed means for the next one.
//!
//! Invariants: only what is surely known makes a write retryable: it was refused (`not_applied`, a
//! routing error), or it was never sent. A broken connection is no refusal, whatever its code.

use std::error::Error as _;
use std::time::Duration;

use tonic::{ConnectError, Status, TimeoutExpired};
use vmemkv_proto::{ApiError, ErrorKind, v1};

use crate::error::{Error, Outcome};
use crate::retry::Cause;

/// An attempt that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    error: Error,
    /// Why another attempt may do better; none: it would not.
    cause: Option<Cause>,
}

impl Failure {
    /// Of a call, from its status.
    pub(crate) fn of_status(status: &Status, write: bool) -> Self {
        let mut api = ApiError::from(status);
        if status.source().is_none() {
            return Self::of_answer(api, write);
        }
        // Not what the server said, but what became of the connection.
        if found::<TimeoutExpired>(status) {
            api.kind = ErrorKind::DeadlineExceeded;
            return Self::of_answer(api, write);
        }
        api.kind = ErrorKind::Unavailable;
        if found::<ConnectError>(status) {
            return Self::not_sent(Error::new(api, Outcome::NotApplied));
        }
        let outcome = if write { Outcome::Unknown } else { Outcome::NotApplied };
        Self { error: Error::new(api, outcome), cause: Some(Cause::Transport) }
    }

    /// Of one operation, from a batch's results.
    pub(crate) fn of_wire(wire: &v1::Error, write: bool) -> Self {
        Self::of_answer(ApiError::from(wire.clone()), write)
    }

    /// Of a request that was never sent.
    pub(crate) fn not_sent(error: Error) -> Self {
        let cause = match error.kind() {
            ErrorKind::Unavailable => Some(Cause::Connect),
            _ => None,
        };
        Self { error: error.with_outcome(Outcome::NotApplied), cause }
    }

    /// Of a server that answered and did not do what it was asked for: it lags.
    pub(crate) fn of_lag(message: &str) -> Self {
        let error = Error::refused(ErrorKind::Unavailable, message);
        Self { error, cause: Some(Cause::Routing) }
    }

    /// The same for a request of which a part had been answered: the rest may have been begun.
    pub(crate) fn half_way(self, write: bool) -> Self {
        if write {
            return Self { error: self.error.with_outcome(Outcome::Unknown), ..self };
        }
        self
    }

    /// Of a call that ran out of time while its answer was awaited.
    pub(crate) fn timed_out(what: &str, write: bool) -> Self {
        let message = format!("{what}: no answer within the deadline");
        Self::of_answer(ApiError::new(ErrorKind::DeadlineExceeded, message), write)
    }

    /// What a server answered.
    fn of_answer(api: ApiError, write: bool) -> Self {
        let refused = api.not_applied || api.routing.is_some() || refuses(api.kind);
        let cause = match api.kind {
            _ if api.routing.is_some() => Some(Cause::Routing),
            ErrorKind::Unavailable => Some(Cause::Unavailable),
            ErrorKind::ResourceExhausted if api.retry_after_ms.is_some() => Some(Cause::Exhausted),
            _ => None,
        };
        let outcome = if write && !refused { Outcome::Unknown } else { Outcome::NotApplied };
        Self { error: Error::new(api, outcome), cause }
    }

    /// Why another attempt may do better.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Whether another attempt is allowed.
    pub(crate) fn may_retry(&self, write: bool) -> bool {
        self.cause.is_some() && !(write && self.error.is_unknown())
    }

    /// Whether the connection is of no use any more.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.cause, Some(Cause::Transport | Cause::Connect))
    }

    /// Where the request belongs, if the server said so.
    pub(crate) fn routing(&self) -> Option<&v1::RoutingError> {
        self.error.api().routing.as_ref()
    }

    /// How long the server asked to wait.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.error.retry_after()
    }

    pub(crate) fn error(&self) -> &Error {
        &self.error
    }

    pub(crate) fn into_error(self) -> Error {
        self.error
    }
}

/// Kinds that are refusals by what they mean, from whoever they come.
fn refuses(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidArgument
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::PermissionDenied
            | ErrorKind::FailedPrecondition
            | ErrorKind::OutOfRange
            | ErrorKind::Unimplemented
            | ErrorKind::Unauthenticated
    )
}

/// Whether a status has a cause of this type.
fn found<E: std::error::Error + 'static>(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<E>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(failure: &Failure) -> (bool, Outcome) {
        (failure.may_retry(true), failure.error().outcome())
    }

    #[test]
    fn only_sure_refusals_of_writes_are_retried() {
        let unavailable = ApiError::new(ErrorKind::Unavailable, "");
        let failure = Failure::of_status(&unavailable.to_status(), true);
        assert_eq!(outcome(&failure), (false, Outcome::Unknown));
        let failure = Failure::of_status(&unavailable.with_not_applied().to_status(), true);
        assert_eq!(outcome(&failure), (true, Outcome::NotApplied));
        let routing = v1::RoutingError::default();
        let failure = Failure::of_status(&ApiError::misrouted("", routing).to_status(), true);
        assert_eq!(outcome(&failure), (true, Outcome::NotApplied));
        let full = ApiError::new(ErrorKind::ResourceExhausted, "").with_not_applied();
        let failure = Failure::of_status(&full.clone().to_status(), true);
        assert_eq!(outcome(&failure), (false, Outcome::NotApplied));
        let failure = Failure::of_status(&full.with_retry_after_ms(5).to_status(), true);
        assert_eq!(outcome(&failure), (true, Outcome::NotApplied));
        let failure = Failure::of_status(&Status::invalid_argument("key"), true);
        assert_eq!(outcome(&failure), (false, Outcome::NotApplied));
        let failure = Failure::timed_out("put", true);
        assert_eq!(outcome(&failure), (false, Outcome::Unknown));
    }

    #[test]
    fn a_broken_connection_is_no_refusal() {
        let broken = Status::from_error("reset by peer".into());
        let failure = Failure::of_status(&broken, true);
        assert_eq!(outcome(&failure), (false, Outcome::Unknown));
        assert!(failure.is_broken());
        assert!(Failure::of_status(&broken, false).may_retry(false));
        let refused = Status::from_error(Box::new(ConnectError("refused".into())));
        assert_eq!(outcome(&Failure::of_status(&refused, true)), (true, Outcome::NotApplied));
    }

    #[test]
    fn reads_change_nothing() {
        let failure = Failure::of_status(&Status::unavailable(""), false);
        assert!(failure.may_retry(false));
        assert_eq!(failure.error().outcome(), Outcome::NotApplied);
        assert!(!Failure::of_status(&Status::data_loss(""), false).may_retry(false));
    }
}
