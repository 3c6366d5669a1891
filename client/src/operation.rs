//! Writes as callers describe them: [`PutOptions`], [`DeleteOptions`], [`Operation`], and what comes
//! back, [`Written`].
//!
//! Invariants: a condition that does not hold is an answer (`applied` is false), never an error.

use std::time::Duration;

use bytes::Bytes;
pub use vmemkv_proto::convert::Condition;
use vmemkv_proto::v1;

/// How to write a key.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PutOptions {
    /// What must hold for the value to be written.
    pub condition: Condition,
    /// The key is gone this long after the write. Servers refuse it as long as they cannot.
    pub ttl: Option<Duration>,
    /// How long the call may take; none: the client's default. Has no meaning within a batch.
    pub deadline: Option<Duration>,
}

impl PutOptions {
    /// Writes whatever is there.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes only if the condition holds.
    #[must_use]
    pub fn condition(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// Writes only if the key does not exist.
    #[must_use]
    pub fn if_absent(self) -> Self {
        self.condition(Condition::IfAbsent)
    }

    /// Writes only if the key exists.
    #[must_use]
    pub fn if_present(self) -> Self {
        self.condition(Condition::IfPresent)
    }

    /// Writes only if the key has this value.
    #[must_use]
    pub fn if_value(self, value: impl Into<Bytes>) -> Self {
        self.condition(Condition::IfValueEquals(value.into()))
    }

    /// The key is gone this long after the write.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long the call may take, retries included.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Whole milliseconds, rounded up: a time that was asked for never becomes none.
    pub(crate) fn ttl_ms(&self) -> Option<u64> {
        let ttl = self.ttl?;
        let ms = ttl.as_nanos().div_ceil(1_000_000);
        Some(u64::try_from(ms).unwrap_or(u64::MAX))
    }
}

/// How to remove a key.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DeleteOptions {
    /// What must hold for the key to be removed.
    pub condition: Condition,
    /// How long the call may take; none: the client's default.
    pub deadline: Option<Duration>,
}

impl DeleteOptions {
    /// Removes the key whatever it holds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes only if the condition holds.
    #[must_use]
    pub fn condition(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// Removes only a key that exists; `applied` then says whether it did.
    #[must_use]
    pub fn if_present(self) -> Self {
        self.condition(Condition::IfPresent)
    }

    /// Removes only a key that has this value.
    #[must_use]
    pub fn if_value(self, value: impl Into<Bytes>) -> Self {
        self.condition(Condition::IfValueEquals(value.into()))
    }

    /// How long the call may take, retries included.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

/// What a write did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// The condition held (there may be none), and the change is durable as the cluster promises it.
    pub applied: bool,
    /// A delete removed a key; false for a put.
    pub existed: bool,
    /// The value that the condition met, if it did not hold and the key exists.
    pub current: Option<Bytes>,
}

/// One write of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation(v1::BatchOperation);

impl Operation {
    /// Writes a key.
    pub fn put(key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Self {
        Self::put_with(key, value, &PutOptions::default())
    }

    /// Writes a key with options; a deadline among them is that of the batch and ignored here.
    pub fn put_with(key: impl AsRef<[u8]>, value: impl Into<Bytes>, options: &PutOptions) -> Self {
        let put = v1::PutOperation {
            key: Bytes::copy_from_slice(key.as_ref()),
            value: value.into(),
            condition: options.condition.clone().into_wire(),
            ttl_ms: options.ttl_ms(),
        };
        Self::from_wire(v1::batch_operation::Operation::Put(put))
    }

    /// Writes a key if it does not exist.
    pub fn put_if_absent(key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Self {
        Self::put_with(key, value, &PutOptions::new().if_absent())
    }

    /// Removes a key.
    pub fn delete(key: impl AsRef<[u8]>) -> Self {
        Self::delete_with(key, &DeleteOptions::default())
    }

    /// Removes a key with options; a deadline among them is that of the batch and ignored here.
    pub fn delete_with(key: impl AsRef<[u8]>, options: &DeleteOptions) -> Self {
        let delete = v1::DeleteOperation {
            key: Bytes::copy_from_slice(key.as_ref()),
            condition: options.condition.clone().into_wire(),
        };
        Self::from_wire(v1::batch_operation::Operation::Delete(delete))
    }

    /// The key that is written or removed.
    pub fn key(&self) -> &[u8] {
        match &self.0.operation {
            Some(v1::batch_operation::Operation::Put(put)) => &put.key,
            Some(v1::batch_operation::Operation::Delete(delete)) => &delete.key,
            None => &[],
        }
    }

    /// The wire form.
    pub fn into_wire(self) -> v1::BatchOperation {
        self.0
    }

    fn from_wire(operation: v1::batch_operation::Operation) -> Self {
        Self(v1::BatchOperation { operation: Some(operation) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_never_rounds_to_none() {
        let ttl = |ttl| PutOptions::new().ttl(ttl).ttl_ms();
        assert_eq!(PutOptions::new().ttl_ms(), None);
        assert_eq!(ttl(Duration::from_nanos(1)), Some(1));
        assert_eq!(ttl(Duration::from_millis(7)), Some(7));
        assert_eq!(ttl(Duration::MAX), Some(u64::MAX));
    }

    #[test]
    fn operations_name_their_key() {
        assert_eq!(Operation::put("k", "v").key(), b"k");
        assert_eq!(Operation::delete(vec![1u8]).key(), [1]);
        let wire = Operation::put_if_absent("k", "v").into_wire();
        let Some(v1::batch_operation::Operation::Put(put)) = wire.operation else { panic!() };
        assert_eq!(Condition::try_from(put.condition), Ok(Condition::IfAbsent));
    }
}
