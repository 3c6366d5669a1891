//! The kinds of errors, and their gRPC codes.
//!
//! Invariants: kinds and codes map one to one, except that `Ok` and `Unknown`, which vmemkv never
//! sends, are read as `Internal`.

use std::fmt;

use tonic::Code;

/// What kind of error it is: it says what the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The caller or its connection gave up.
    Cancelled,
    /// The request is wrong, whatever the state: do not retry.
    InvalidArgument,
    /// The deadline has passed; the outcome of a write is unknown unless `not_applied`.
    DeadlineExceeded,
    /// A named thing does not exist; never used for a key.
    NotFound,
    /// A named thing exists already.
    AlreadyExists,
    /// The caller may not do this.
    PermissionDenied,
    /// Disk, memory or quota is used up: retry later.
    ResourceExhausted,
    /// The state does not allow it; with a routing detail: ask elsewhere.
    FailedPrecondition,
    /// Something else came between: retry from the beginning.
    Aborted,
    /// Beyond what is kept or accepted.
    OutOfRange,
    /// This release does not know it.
    Unimplemented,
    /// A defect of vmemkv.
    Internal,
    /// Not now: retry, with a backoff.
    Unavailable,
    /// Stored data is damaged.
    DataLoss,
    /// The caller has not said who it is.
    Unauthenticated,
}

impl ErrorKind {
    /// Every kind, in the order of the gRPC codes.
    pub const ALL: [Self; 15] = [
        Self::Cancelled,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The gRPC code of this kind.
    pub fn code(self) -> Code {
        match self {
            Self::Cancelled => Code::Cancelled,
            Self::InvalidArgument => Code::InvalidArgument,
            Self::DeadlineExceeded => Code::DeadlineExceeded,
            Self::NotFound => Code::NotFound,
            Self::AlreadyExists => Code::AlreadyExists,
            Self::PermissionDenied => Code::PermissionDenied,
            Self::ResourceExhausted => Code::ResourceExhausted,
            Self::FailedPrecondition => Code::FailedPrecondition,
            Self::Aborted => Code::Aborted,
            Self::OutOfRange => Code::OutOfRange,
            Self::Unimplemented => Code::Unimplemented,
            Self::Internal => Code::Internal,
            Self::Unavailable => Code::Unavailable,
            Self::DataLoss => Code::DataLoss,
            Self::Unauthenticated => Code::Unauthenticated,
        }
    }

    /// The name of the gRPC code, as in `google.rpc.Code`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "CANCELLED",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl From<ErrorKind> for Code {
    fn from(kind: ErrorKind) -> Self {
        kind.code()
    }
}

impl From<Code> for ErrorKind {
    fn from(code: Code) -> Self {
        Self::ALL.into_iter().find(|kind| kind.code() == code).unwrap_or(Self::Internal)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_codes_are_one_to_one() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from(kind.code()), kind);
        }
        for number in 1..=16 {
            let code = Code::from_i32(number);
            if code != Code::Unknown {
                assert_eq!(Code::from(ErrorKind::from(code)), code);
            }
        }
        assert_eq!(ErrorKind::from(Code::Unknown), ErrorKind::Internal);
        assert_eq!(ErrorKind::from(Code::Ok), ErrorKind::Internal);
    }
}
