//! Errors on the wire: [`v1::Error`], and its place in the details of a gRPC status.
//!
//! Invariants: what one answer says about errors stays within [`MAX_DETAIL_BYTES`] (a batch: that
//! much text and shards, however many keys fail); code, `not_applied`, retry hint and the kind of a
//! routing error are never cut, texts and shards are.

use bytes::Bytes;
use prost::Message as _;
use prost_types::Any;

use super::ApiError;
use crate::limits::{MAX_DETAIL_BYTES, MAX_ERROR_TEXT_BYTES};
use crate::v1;

/// The type of [`v1::Error`] in a `google.protobuf.Any`.
pub const ERROR_TYPE_URL: &str = "type.googleapis.com/vmemkv.v1.Error";

/// Room for tags and lengths around a shard.
const SHARD_OVERHEAD_BYTES: usize = 8;

/// Turns the errors of one batch answer into their wire form; the first errors say all, later ones
/// only what a client acts on.
#[derive(Debug)]
pub struct ErrorBudget {
    left: usize,
}

impl ErrorBudget {
    /// A full budget, for one answer.
    pub fn new() -> Self {
        Self { left: MAX_DETAIL_BYTES }
    }

    /// The wire form of `error`, with as much text and as many shards as the budget still allows.
    pub fn encode(&mut self, error: &ApiError) -> v1::Error {
        let mut message = cut(&error.message, MAX_ERROR_TEXT_BYTES);
        if message.len() > self.left {
            message = "";
        }
        self.left -= message.len();
        v1::Error {
            code: error.kind.code() as i32,
            message: message.to_owned(),
            not_applied: error.not_applied,
            retry_after_ms: error.retry_after_ms.unwrap_or(0),
            routing: error.routing.as_ref().map(|routing| v1::RoutingError {
                kind: routing.kind,
                map_version: routing.map_version,
                shards: self.take_shards(&routing.shards),
            }),
        }
    }

    fn take_shards(&mut self, shards: &[v1::Shard]) -> Vec<v1::Shard> {
        let mut taken = Vec::new();
        for shard in shards {
            let cost = shard.encoded_len() + SHARD_OVERHEAD_BYTES;
            if cost > self.left {
                break;
            }
            self.left -= cost;
            taken.push(shard.clone());
        }
        taken
    }
}

impl Default for ErrorBudget {
    fn default() -> Self {
        Self::new()
    }
}

/// The encoded `google.rpc.Status` for `grpc-status-details-bin`.
pub(super) fn encode(error: &ApiError) -> Bytes {
    let message = cut(&error.message, MAX_ERROR_TEXT_BYTES);
    // The text is there twice, and the fields that are never cut need room.
    let fixed = 200;
    let mut budget = ErrorBudget { left: MAX_DETAIL_BYTES - fixed - message.len() };
    let wire = budget.encode(error);
    let status = tonic_types::Status {
        code: wire.code,
        message: message.to_owned(),
        details: vec![Any { type_url: ERROR_TYPE_URL.to_owned(), value: wire.encode_to_vec() }],
    };
    status.encode_to_vec().into()
}

/// The [`v1::Error`] within an encoded `google.rpc.Status`, if there is one.
pub(super) fn decode(details: &[u8]) -> Option<v1::Error> {
    let status = tonic_types::Status::decode(details).ok()?;
    let detail = status.details.iter().find(|detail| detail.type_url == ERROR_TYPE_URL)?;
    v1::Error::decode(detail.value.as_slice()).ok()
}

/// The longest beginning of `text` that has at most `limit` bytes.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::ErrorKind;

    fn shard(id: u64, bytes: usize) -> v1::Shard {
        v1::Shard {
            shard_id: id,
            start: vec![7; bytes].into(),
            end: vec![8; bytes].into(),
            epoch: u64::MAX,
            node_id: u64::MAX,
            address: "node-1.example:7410".to_owned(),
        }
    }

    fn routing_error(shards: Vec<v1::Shard>) -> ApiError {
        ApiError::new(ErrorKind::FailedPrecondition, "\u{e9}".repeat(1000))
            .with_not_applied()
            .with_retry_after_ms(u64::MAX)
            .with_routing(v1::RoutingError {
                kind: v1::routing_error::Kind::StaleEpoch as i32,
                map_version: u64::MAX,
                shards,
            })
    }

    #[test]
    fn details_are_bounded_whatever_the_shards() {
        for bytes in [0, 1, 30, 100, 500, 1200, 4096] {
            let shards: Vec<_> = (0..500).map(|id| shard(id, bytes)).collect();
            let encoded = encode(&routing_error(shards));
            assert!(encoded.len() <= MAX_DETAIL_BYTES, "{}", encoded.len());
            let wire = decode(&encoded).unwrap();
            assert!(wire.not_applied && wire.retry_after_ms == u64::MAX);
            let routing = wire.routing.unwrap();
            assert_eq!(routing.kind(), v1::routing_error::Kind::StaleEpoch);
            assert_eq!(routing.shards.is_empty(), bytes > 1000);
            assert!(routing.shards.len() < 500);
        }
    }

    #[test]
    fn a_batch_of_failures_stays_within_one_budget() {
        let error = routing_error(vec![shard(1, 10)]);
        let mut budget = ErrorBudget::new();
        let all: Vec<_> = (0..4096).map(|_| budget.encode(&error)).collect();
        let text: usize = all.iter().map(|wire| wire.message.len()).sum();
        assert!(text <= MAX_DETAIL_BYTES);
        assert_eq!(all[0].routing.as_ref().unwrap().shards.len(), 1);
        let last = all.last().unwrap();
        assert!(last.message.is_empty() && last.not_applied);
        assert_eq!(last.code, ErrorKind::FailedPrecondition.code() as i32);
        let routing = last.routing.as_ref().unwrap();
        assert_eq!(routing.map_version, u64::MAX);
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(cut("a\u{e9}b", 2), "a");
        assert_eq!(cut("a\u{e9}b", 3), "a\u{e9}");
        assert_eq!(cut("a\u{e9}b", 9), "a\u{e9}b");
        assert_eq!(cut("", 0), "");
    }

    #[test]
    fn foreign_details_are_ignored() {
        assert_eq!(decode(b""), None);
        assert_eq!(decode(b"\xff\xff\xff"), None);
        let status = tonic_types::Status {
            code: 9,
            message: String::new(),
            details: vec![Any {
                type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
                value: Vec::new(),
            }],
        };
        assert_eq!(decode(&status.encode_to_vec()), None);
    }
}
