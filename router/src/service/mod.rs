//! The gRPC services of a router, one per file.
//!
//! Invariants: a service checks what a caller sent before it does anything; what it decides goes
//! through a command of the state machine; errors are [`ApiError`]s.

pub(crate) mod admin;
pub(crate) mod control;
pub(crate) mod method_counts;
mod paging;
pub(crate) mod proxy;
pub(crate) mod raft;
pub(crate) mod router;
pub(crate) mod status;

use vmemkv_proto::{ApiError, ErrorKind};

use crate::state::{Outcome, Refusal};

/// What became of a command, or the error for the caller if it was refused.
pub(crate) fn outcome_or_error(outcome: Outcome) -> Result<Outcome, ApiError> {
    match outcome {
        Outcome::Refused(refusal) => Err(refused(&refusal)),
        outcome => Ok(outcome),
    }
}

/// A refused command as the caller sees it.
pub(crate) fn refused(refusal: &Refusal) -> ApiError {
    let kind = match refusal {
        Refusal::Invalid(_) => ErrorKind::InvalidArgument,
        Refusal::NotFound(_) => ErrorKind::NotFound,
        Refusal::ClusterExists(_) | Refusal::Precondition(_) => ErrorKind::FailedPrecondition,
        Refusal::NoCluster => ErrorKind::Unavailable,
        Refusal::Forgotten { .. } => ErrorKind::Aborted,
    };
    let error = ApiError::new(kind, refusal.to_string());
    // A forgotten answer may have been that the command was done.
    let unknown = matches!(refusal, Refusal::Forgotten { .. });
    if unknown { error } else { error.with_not_applied() }
}
