//! Errors of the engine as callers see them.
//!
//! Invariants: `not_applied` is said only if surely nothing was changed; names of files go to the
//! log, never to a client.

use vmemkv_engine::{Error, ErrorKind};
use vmemkv_proto::{ApiError, ErrorKind as ApiKind};

use crate::ownership::ShardTable;

/// How long to wait for space.
const FULL_RETRY_MS: u64 = 1000;
/// How long to wait for an engine that takes no writes, or is closing.
const UNAVAILABLE_RETRY_MS: u64 = 2000;

/// What the operation that failed may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: it reads, or its condition did not hold.
    None,
    /// Something, for all we know.
    Unknown,
}

/// The error for a client; what it must not see is logged.
pub(crate) fn to_api(error: &Error, effect: Effect, table: &ShardTable) -> ApiError {
    let surely_nothing = effect == Effect::None;
    let mark = |mut error: ApiError| {
        error.not_applied |= surely_nothing;
        error
    };
    let full = || {
        ApiError::new(ApiKind::ResourceExhausted, error.message())
            .with_not_applied()
            .with_retry_after_ms(FULL_RETRY_MS)
    };
    match error.kind() {
        ErrorKind::InvalidArgument => {
            ApiError::new(ApiKind::InvalidArgument, error.message()).with_not_applied()
        }
        ErrorKind::Refused | ErrorKind::AlreadyDone => {
            ApiError::new(ApiKind::FailedPrecondition, error.message()).with_not_applied()
        }
        ErrorKind::NotServed => table.refuse_unserved(),
        ErrorKind::DiskFull => {
            tracing::warn!(%error, "a write was refused: the disk is full");
            ApiError { message: "the disk of this server is full".to_owned(), ..full() }
        }
        ErrorKind::MemoryFull => full(),
        ErrorKind::ReadOnly | ErrorKind::Unavailable => {
            tracing::warn!(%error, kind = ?error.kind(), "the engine refuses");
            let message = match error.kind() {
                ErrorKind::ReadOnly => {
                    "the engine of this server takes no writes; its log says why"
                }
                _ => "the engine of this server is closing, or the work was cancelled",
            };
            mark(
                ApiError::new(ApiKind::Unavailable, message)
                    .with_retry_after_ms(UNAVAILABLE_RETRY_MS),
            )
        }
        ErrorKind::Corrupt => {
            tracing::error!(%error, "stored data is damaged");
            let of = error.key().map(key_text).unwrap_or_default();
            let message =
                format!("stored data{of} is damaged; the log of this server names the file");
            mark(ApiError::new(ApiKind::DataLoss, message))
        }
        kind => {
            tracing::error!(%error, ?kind, "the engine failed");
            let of = error.key().map(key_text).unwrap_or_default();
            mark(ApiError::internal(format!(
                "the engine of this server failed{of}; its log says how"
            )))
        }
    }
}

/// The entry that an error is about: its caller may go on behind it.
fn key_text(key: &[u8]) -> String {
    const SHOWN: usize = 256;
    let cut = if key.len() > SHOWN { ".." } else { "" };
    format!(" at key \"{}\"{cut}", key[..key.len().min(SHOWN)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(kind: ErrorKind, effect: Effect) -> ApiError {
        to_api(&Error::new(kind, "/data/t2/1.t2 at 7"), effect, &ShardTable::default())
    }

    #[test]
    fn kinds_map_to_codes() {
        for (kind, expected, not_applied) in [
            (ErrorKind::InvalidArgument, ApiKind::InvalidArgument, true),
            (ErrorKind::NotServed, ApiKind::FailedPrecondition, true),
            (ErrorKind::DiskFull, ApiKind::ResourceExhausted, true),
            (ErrorKind::MemoryFull, ApiKind::ResourceExhausted, true),
            (ErrorKind::ReadOnly, ApiKind::Unavailable, false),
            (ErrorKind::Unavailable, ApiKind::Unavailable, false),
            (ErrorKind::Corrupt, ApiKind::DataLoss, false),
            (ErrorKind::Io, ApiKind::Internal, false),
        ] {
            let error = map(kind, Effect::Unknown);
            assert_eq!((error.kind, error.not_applied), (expected, not_applied), "{kind:?}");
            assert!(map(kind, Effect::None).not_applied, "{kind:?}");
        }
    }

    #[test]
    fn files_are_not_shown_to_clients() {
        for kind in [ErrorKind::Corrupt, ErrorKind::Io, ErrorKind::DiskFull, ErrorKind::ReadOnly] {
            let error = map(kind, Effect::Unknown);
            assert!(!error.message.contains("t2"), "{error}");
        }
    }

    #[test]
    fn full_and_unavailable_say_when_to_retry() {
        for kind in [ErrorKind::DiskFull, ErrorKind::MemoryFull, ErrorKind::ReadOnly] {
            assert!(map(kind, Effect::Unknown).retry_after_ms.is_some());
        }
    }
}
