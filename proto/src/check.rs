//! Checks of what a caller sent, before anything is done with it.
//!
//! Invariants: a refusal names the field and its limit, and is marked `not_applied`: nothing has
//! been touched.

use crate::limits::{
    MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, MAX_BOUND_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES,
};
use crate::status::{ApiError, ErrorKind};
use crate::v1;

/// Refuses an empty key and one beyond [`MAX_KEY_BYTES`].
pub fn check_key(field: &str, key: &[u8]) -> Result<(), ApiError> {
    if key.is_empty() {
        return Err(invalid(field, "must not be empty"));
    }
    at_most(field, key.len(), MAX_KEY_BYTES, "bytes")
}

/// Refuses a bound of a range beyond [`MAX_BOUND_BYTES`]; empty is unbounded.
pub fn check_bound(field: &str, bound: &[u8]) -> Result<(), ApiError> {
    at_most(field, bound.len(), MAX_BOUND_BYTES, "bytes")
}

/// Refuses a value beyond [`MAX_VALUE_BYTES`].
pub fn check_value(field: &str, value: &[u8]) -> Result<(), ApiError> {
    at_most(field, value.len(), MAX_VALUE_BYTES, "bytes")
}

/// Refuses a frame with too many keys or too many bytes of them. A single bad key is not checked
/// here: it fails by itself.
pub fn check_batch_get(request: &v1::BatchGetRequest) -> Result<(), ApiError> {
    let bytes = request.keys.iter().map(bytes::Bytes::len).sum();
    check_batch("keys", request.keys.len(), bytes)
}

/// Refuses a frame with too many operations or too many bytes of keys and values. A single bad
/// operation is not checked here: it fails by itself.
pub fn check_batch_put(request: &v1::BatchPutRequest) -> Result<(), ApiError> {
    let bytes = request.operations.iter().map(operation_bytes).sum();
    check_batch("operations", request.operations.len(), bytes)
}

/// The bytes of key and value that count for [`MAX_BATCH_BYTES`].
pub fn operation_bytes(operation: &v1::BatchOperation) -> usize {
    use v1::batch_operation::Operation;
    match &operation.operation {
        Some(Operation::Put(put)) => {
            put.key.len() + put.value.len() + condition_bytes(put.condition.as_ref())
        }
        Some(Operation::Delete(delete)) => {
            delete.key.len() + condition_bytes(delete.condition.as_ref())
        }
        None => 0,
    }
}

/// A refusal: `field` is wrong, and how.
pub fn invalid(field: &str, how: &str) -> ApiError {
    ApiError::new(ErrorKind::InvalidArgument, format!("{field}: {how}")).with_not_applied()
}

/// A refusal: this release does not know `feature` (a field or a method).
pub fn unimplemented(feature: &str) -> ApiError {
    let message = format!("{feature} is not implemented in this release");
    ApiError::new(ErrorKind::Unimplemented, message).with_not_applied()
}

fn check_batch(field: &str, count: usize, bytes: usize) -> Result<(), ApiError> {
    at_most(field, count, MAX_BATCH_OPERATIONS, "in one frame")?;
    if count > 1 {
        let unit = "bytes in one frame of several";
        at_most(field, bytes, MAX_BATCH_BYTES, unit)?;
    }
    Ok(())
}

fn condition_bytes(condition: Option<&v1::Condition>) -> usize {
    match condition.and_then(|condition| condition.condition.as_ref()) {
        Some(v1::condition::Condition::IfValueEquals(value)) => value.len(),
        _ => 0,
    }
}

fn at_most(field: &str, found: usize, limit: usize, unit: &str) -> Result<(), ApiError> {
    if found > limit {
        let how = format!("{found} is above the limit of {limit} {unit}");
        return Err(invalid(field, &how));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn keys_have_a_length_from_1_to_the_limit() {
        assert!(check_key("key", b"a").is_ok());
        assert!(check_key("key", &[0; MAX_KEY_BYTES]).is_ok());
        let empty = check_key("key", b"").unwrap_err();
        assert_eq!(empty.kind, ErrorKind::InvalidArgument);
        assert_eq!(empty.message, "key: must not be empty");
        assert!(empty.not_applied);
        let long = check_key("keys", &[0; MAX_KEY_BYTES + 1]).unwrap_err();
        assert_eq!(long.message, "keys: 4097 is above the limit of 4096 bytes");
    }

    #[test]
    fn a_bound_may_be_the_successor_of_the_longest_key() {
        assert!(check_bound("start", b"").is_ok());
        assert!(check_bound("start", &[0; MAX_KEY_BYTES + 1]).is_ok());
        assert!(check_bound("start", &[0; MAX_KEY_BYTES + 2]).is_err());
    }

    #[test]
    fn values_may_be_empty_and_have_a_limit() {
        assert!(check_value("value", b"").is_ok());
        assert!(check_value("value", &vec![0; MAX_VALUE_BYTES]).is_ok());
        assert!(check_value("value", &vec![0; MAX_VALUE_BYTES + 1]).is_err());
    }

    #[test]
    fn a_frame_has_a_limit_of_keys() {
        let frame = |count| v1::BatchGetRequest {
            keys: vec![Bytes::from_static(b"k"); count],
            ..Default::default()
        };
        assert!(check_batch_get(&frame(0)).is_ok());
        assert!(check_batch_get(&frame(MAX_BATCH_OPERATIONS)).is_ok());
        let error = check_batch_get(&frame(MAX_BATCH_OPERATIONS + 1)).unwrap_err();
        assert!(error.message.starts_with("keys: 4097 "), "{error}");
    }

    #[test]
    fn one_large_operation_may_pass_the_limit_of_a_frame() {
        let operation = |bytes: usize| v1::BatchOperation {
            operation: Some(v1::batch_operation::Operation::Put(v1::PutOperation {
                key: Bytes::from_static(b"k"),
                value: vec![0; bytes].into(),
                ..Default::default()
            })),
        };
        let mut frame = v1::BatchPutRequest {
            operations: vec![operation(MAX_VALUE_BYTES)],
            ..Default::default()
        };
        assert!(check_batch_put(&frame).is_ok());
        frame.operations.push(operation(0));
        assert!(check_batch_put(&frame).is_err());
        frame.operations[0] = operation(MAX_BATCH_BYTES - 2);
        assert!(check_batch_put(&frame).is_ok());
    }

    #[test]
    fn what_is_not_built_is_refused() {
        let error = unimplemented("ttl_ms");
        assert_eq!(error.kind, ErrorKind::Unimplemented);
        assert!(error.message.contains("ttl_ms") && error.not_applied);
    }
}
