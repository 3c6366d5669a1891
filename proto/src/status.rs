//! Errors at the border: [`ApiError`] and its forms on the wire.
//!
//! Invariants: an error survives the way through [`tonic::Status`] (and through a proxy) but for
//! what is cut to keep details small; an error without a vmemkv detail never claims `not_applied`.

mod detail;
mod kind;

use std::fmt;

use tonic::{Code, Status};

pub use self::detail::{ERROR_TYPE_URL, ErrorBudget};
pub use self::kind::ErrorKind;
use crate::limits::MAX_ERROR_TEXT_BYTES;
use crate::v1;

/// An error as vmemkv's services answer it and its clients see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// What kind of error it is.
    pub kind: ErrorKind,
    /// For people.
    pub message: String,
    /// Surely nothing has been changed.
    pub not_applied: bool,
    /// Wait this long before a retry.
    pub retry_after_ms: Option<u64>,
    /// Where the request belongs.
    pub routing: Option<v1::RoutingError>,
}

impl ApiError {
    /// An error that says nothing about retries.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            not_applied: false,
            retry_after_ms: None,
            routing: None,
        }
    }

    /// A defect of vmemkv.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// A refusal for now that has changed nothing, with a hint when to retry.
    pub fn unavailable(message: impl Into<String>, retry_after_ms: u64) -> Self {
        Self::new(ErrorKind::Unavailable, message)
            .with_not_applied()
            .with_retry_after_ms(retry_after_ms)
    }

    /// A refusal because the request came to the wrong place; it has changed nothing.
    /// `not_serving` is UNAVAILABLE, the other kinds are FAILED_PRECONDITION.
    pub fn misrouted(message: impl Into<String>, routing: v1::RoutingError) -> Self {
        let kind = match routing.kind() {
            v1::routing_error::Kind::NotServing => ErrorKind::Unavailable,
            _ => ErrorKind::FailedPrecondition,
        };
        Self::new(kind, message).with_not_applied().with_routing(routing)
    }

    /// Says that surely nothing has been changed.
    #[must_use]
    pub fn with_not_applied(mut self) -> Self {
        self.not_applied = true;
        self
    }

    /// Says when to retry; 0 is no hint.
    #[must_use]
    pub fn with_retry_after_ms(mut self, retry_after_ms: u64) -> Self {
        self.retry_after_ms = Some(retry_after_ms).filter(|ms| *ms > 0);
        self
    }

    /// Says where the request belongs.
    #[must_use]
    pub fn with_routing(mut self, routing: v1::RoutingError) -> Self {
        self.routing = Some(routing);
        self
    }

    /// The wire form for a single error; several in one answer share an [`ErrorBudget`].
    pub fn to_wire(&self) -> v1::Error {
        ErrorBudget::new().encode(self)
    }

    /// The gRPC status, with this error as its detail.
    pub fn to_status(&self) -> Status {
        let message = detail::cut(&self.message, MAX_ERROR_TEXT_BYTES);
        Status::with_details(self.kind.code(), message, detail::encode(self))
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for ApiError {}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        error.to_status()
    }
}

impl From<ApiError> for v1::Error {
    fn from(error: ApiError) -> Self {
        error.to_wire()
    }
}

impl From<v1::Error> for ApiError {
    fn from(wire: v1::Error) -> Self {
        Self {
            kind: Code::from_i32(wire.code).into(),
            message: wire.message,
            not_applied: wire.not_applied,
            retry_after_ms: Some(wire.retry_after_ms).filter(|ms| *ms > 0),
            routing: wire.routing,
        }
    }
}

impl From<&Status> for ApiError {
    fn from(status: &Status) -> Self {
        let mut error = match detail::decode(status.details()) {
            Some(wire) => Self::from(wire),
            None => Self::internal(""),
        };
        error.kind = kind_of(status);
        status.message().clone_into(&mut error.message);
        error
    }
}

impl From<Status> for ApiError {
    fn from(status: Status) -> Self {
        Self::from(&status)
    }
}

/// A broken connection comes as `Unknown` with a cause, and is `Unavailable` to us.
fn kind_of(status: &Status) -> ErrorKind {
    use std::error::Error as _;
    if status.code() == Code::Unknown && status.source().is_some() {
        return ErrorKind::Unavailable;
    }
    status.code().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(kind: ErrorKind) -> ApiError {
        ApiError::new(kind, "somewhere else")
            .with_not_applied()
            .with_retry_after_ms(250)
            .with_routing(v1::RoutingError {
                kind: v1::routing_error::Kind::WrongShard as i32,
                map_version: 12,
                shards: vec![v1::Shard {
                    shard_id: 3,
                    end: "m".into(),
                    epoch: 4,
                    node_id: 5,
                    address: "127.0.0.1:7410".to_owned(),
                    ..Default::default()
                }],
            })
    }

    #[test]
    fn every_kind_survives_a_status() {
        for kind in ErrorKind::ALL {
            for error in [full(kind), ApiError::new(kind, "plain")] {
                let status = Status::from(error.clone());
                assert_eq!(status.code(), kind.code());
                assert_eq!(ApiError::from(status), error);
            }
        }
    }

    #[test]
    fn every_kind_survives_a_batch_result() {
        for kind in ErrorKind::ALL {
            for error in [full(kind), ApiError::new(kind, "plain")] {
                assert_eq!(ApiError::from(v1::Error::from(error.clone())), error);
            }
        }
    }

    #[test]
    fn a_status_survives_http_headers() {
        let error = full(ErrorKind::FailedPrecondition);
        let response = error.to_status().into_http::<()>();
        let read = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(ApiError::from(read), error);
    }

    #[test]
    fn a_foreign_status_claims_nothing() {
        let error = ApiError::from(Status::unavailable("proxy"));
        assert_eq!(error, ApiError::new(ErrorKind::Unavailable, "proxy"));
        let broken = Status::from_error("reset".into());
        assert_eq!(ApiError::from(broken).kind, ErrorKind::Unavailable);
        let unknown = ApiError::from(Status::unknown("?"));
        assert_eq!(unknown.kind, ErrorKind::Internal);
    }

    #[test]
    fn long_texts_are_cut() {
        let error = ApiError::internal("x".repeat(10_000));
        let status = error.to_status();
        assert_eq!(status.message().len(), MAX_ERROR_TEXT_BYTES);
        assert!(status.details().len() < 4096);
    }

    #[test]
    fn misrouted_requests_have_the_code_of_their_kind() {
        let routing = |kind: v1::routing_error::Kind| v1::RoutingError {
            kind: kind as i32,
            ..Default::default()
        };
        let stale = ApiError::misrouted("", routing(v1::routing_error::Kind::StaleEpoch));
        assert_eq!(stale.kind, ErrorKind::FailedPrecondition);
        let lease = ApiError::misrouted("", routing(v1::routing_error::Kind::NotServing));
        assert_eq!(lease.kind, ErrorKind::Unavailable);
        assert!(stale.not_applied && lease.not_applied);
    }
}
