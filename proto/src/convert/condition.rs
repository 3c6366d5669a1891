//! What must hold for a mutation to be applied.
//!
//! Invariants: a condition that this release does not know is refused, never taken for none.

use bytes::Bytes;

use crate::check::{check_value, invalid};
use crate::status::ApiError;
use crate::v1;
use crate::v1::condition::Condition as Wire;

/// A checked [`v1::Condition`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing is asked.
    #[default]
    Always,
    /// The key must not exist.
    IfAbsent,
    /// The key must exist.
    IfPresent,
    /// The key must exist with this value.
    IfValueEquals(Bytes),
}

impl Condition {
    /// Whether it holds for a key's value; `None`: the key does not exist.
    pub fn holds(&self, current: Option<&[u8]>) -> bool {
        match self {
            Self::Always => true,
            Self::IfAbsent => current.is_none(),
            Self::IfPresent => current.is_some(),
            Self::IfValueEquals(value) => current == Some(value.as_ref()),
        }
    }

    /// The wire form; none for [`Condition::Always`].
    pub fn into_wire(self) -> Option<v1::Condition> {
        let condition = match self {
            Self::Always => return None,
            Self::IfAbsent => Wire::IfAbsent(true),
            Self::IfPresent => Wire::IfPresent(true),
            Self::IfValueEquals(value) => Wire::IfValueEquals(value),
        };
        Some(v1::Condition { condition: Some(condition) })
    }
}

impl TryFrom<Option<v1::Condition>> for Condition {
    type Error = ApiError;

    fn try_from(wire: Option<v1::Condition>) -> Result<Self, ApiError> {
        let Some(wire) = wire else {
            return Ok(Self::Always);
        };
        match wire.condition {
            Some(Wire::IfAbsent(true)) => Ok(Self::IfAbsent),
            Some(Wire::IfPresent(true)) => Ok(Self::IfPresent),
            Some(Wire::IfValueEquals(value)) => {
                check_value("condition.if_value_equals", &value)?;
                Ok(Self::IfValueEquals(value))
            }
            Some(Wire::IfAbsent(false)) => Err(invalid("condition.if_absent", "must be true")),
            Some(Wire::IfPresent(false)) => Err(invalid("condition.if_present", "must be true")),
            None => Err(invalid("condition", "holds none that is known here")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_VALUE_BYTES;

    fn wire(condition: Wire) -> Option<v1::Condition> {
        Some(v1::Condition { condition: Some(condition) })
    }

    #[test]
    fn conditions_survive_the_wire() {
        for condition in [
            Condition::Always,
            Condition::IfAbsent,
            Condition::IfPresent,
            Condition::IfValueEquals(Bytes::new()),
            Condition::IfValueEquals("v".into()),
        ] {
            let back = Condition::try_from(condition.clone().into_wire());
            assert_eq!(back, Ok(condition));
        }
    }

    #[test]
    fn what_says_nothing_is_refused() {
        let bad = [
            wire(Wire::IfAbsent(false)),
            wire(Wire::IfPresent(false)),
            wire(Wire::IfValueEquals(vec![0; MAX_VALUE_BYTES + 1].into())),
            Some(v1::Condition { condition: None }),
        ];
        for condition in bad {
            let error = Condition::try_from(condition).unwrap_err();
            assert!(error.message.starts_with("condition"), "{error}");
        }
    }

    #[test]
    fn an_empty_value_is_not_a_missing_key() {
        let empty = Condition::IfValueEquals(Bytes::new());
        assert!(empty.holds(Some(b"")) && !empty.holds(None) && !empty.holds(Some(b"a")));
        assert!(Condition::IfAbsent.holds(None) && !Condition::IfAbsent.holds(Some(b"")));
        assert!(Condition::IfPresent.holds(Some(b"")) && !Condition::IfPresent.holds(None));
        assert!(Condition::Always.holds(None) && Condition::Always.holds(Some(b"")));
    }
}
