//! One write: a put or a delete, alone or as part of a batch.
//!
//! Invariants: key, value and condition keep to the limits. Expiry is carried on; who cannot honour
//! it refuses it.

use bytes::Bytes;

use crate::check::{check_key, check_value, invalid};
use crate::convert::Condition;
use crate::status::ApiError;
use crate::v1;
use crate::v1::batch_operation::Operation;

/// A checked put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// What must hold.
    pub condition: Condition,
    /// The key is gone this many milliseconds after the write; at least 1.
    pub ttl_ms: Option<u64>,
}

/// A checked delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete {
    /// The key.
    pub key: Bytes,
    /// What must hold.
    pub condition: Condition,
}

/// A checked operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Writes a key.
    Put(Put),
    /// Removes a key.
    Delete(Delete),
}

impl Write {
    /// The key that is written or removed.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put(put) => &put.key,
            Self::Delete(delete) => &delete.key,
        }
    }

    /// What must hold.
    pub fn condition(&self) -> &Condition {
        match self {
            Self::Put(put) => &put.condition,
            Self::Delete(delete) => &delete.condition,
        }
    }

    /// The wire form.
    pub fn into_wire(self) -> v1::BatchOperation {
        let operation = match self {
            Self::Put(put) => Operation::Put(put.into()),
            Self::Delete(delete) => Operation::Delete(delete.into()),
        };
        v1::BatchOperation { operation: Some(operation) }
    }
}

impl TryFrom<v1::PutOperation> for Put {
    type Error = ApiError;

    fn try_from(wire: v1::PutOperation) -> Result<Self, ApiError> {
        check_key("key", &wire.key)?;
        check_value("value", &wire.value)?;
        if wire.ttl_ms == Some(0) {
            return Err(invalid("ttl_ms", "must be at least 1"));
        }
        Ok(Self {
            key: wire.key,
            value: wire.value,
            condition: wire.condition.try_into()?,
            ttl_ms: wire.ttl_ms,
        })
    }
}

impl TryFrom<v1::DeleteOperation> for Delete {
    type Error = ApiError;

    fn try_from(wire: v1::DeleteOperation) -> Result<Self, ApiError> {
        check_key("key", &wire.key)?;
        Ok(Self { key: wire.key, condition: wire.condition.try_into()? })
    }
}

/// Request id and route are not part of it: take them before.
impl TryFrom<v1::PutRequest> for Put {
    type Error = ApiError;

    fn try_from(wire: v1::PutRequest) -> Result<Self, ApiError> {
        Self::try_from(v1::PutOperation {
            key: wire.key,
            value: wire.value,
            condition: wire.condition,
            ttl_ms: wire.ttl_ms,
        })
    }
}

/// Request id and route are not part of it: take them before.
impl TryFrom<v1::DeleteRequest> for Delete {
    type Error = ApiError;

    fn try_from(wire: v1::DeleteRequest) -> Result<Self, ApiError> {
        Self::try_from(v1::DeleteOperation { key: wire.key, condition: wire.condition })
    }
}

impl TryFrom<v1::BatchOperation> for Write {
    type Error = ApiError;

    fn try_from(wire: v1::BatchOperation) -> Result<Self, ApiError> {
        match wire.operation {
            Some(Operation::Put(put)) => put.try_into().map(Self::Put),
            Some(Operation::Delete(delete)) => delete.try_into().map(Self::Delete),
            None => Err(invalid("operation", "is neither a put nor a delete")),
        }
    }
}

impl From<Put> for v1::PutOperation {
    fn from(put: Put) -> Self {
        Self {
            key: put.key,
            value: put.value,
            condition: put.condition.into_wire(),
            ttl_ms: put.ttl_ms,
        }
    }
}

impl From<Delete> for v1::DeleteOperation {
    fn from(delete: Delete) -> Self {
        Self { key: delete.key, condition: delete.condition.into_wire() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

    #[test]
    fn writes_survive_the_wire() {
        let put = Put {
            key: "k".into(),
            value: Bytes::new(),
            condition: Condition::IfAbsent,
            ttl_ms: Some(1),
        };
        let delete = Delete { key: "k".into(), condition: Condition::Always };
        for write in [Write::Put(put), Write::Delete(delete)] {
            assert_eq!(Write::try_from(write.clone().into_wire()), Ok(write));
        }
    }

    #[test]
    fn a_refusal_names_the_field() {
        let put = |key: usize, value: usize, ttl_ms| {
            let wire = v1::PutRequest {
                key: vec![0; key].into(),
                value: vec![0; value].into(),
                ttl_ms,
                ..Default::default()
            };
            Put::try_from(wire).unwrap_err().message
        };
        assert!(put(0, 0, None).starts_with("key: "));
        assert!(put(MAX_KEY_BYTES + 1, 0, None).starts_with("key: "));
        assert!(put(1, MAX_VALUE_BYTES + 1, None).starts_with("value: "));
        assert!(put(1, 0, Some(0)).starts_with("ttl_ms: "));
        let delete = Delete::try_from(v1::DeleteRequest::default()).unwrap_err();
        assert!(delete.message.starts_with("key: "));
        let none = Write::try_from(v1::BatchOperation::default()).unwrap_err();
        assert!(none.message.starts_with("operation: "));
    }
}
