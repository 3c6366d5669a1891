//! The numbers and ranges that every layer shares, each with a type of its own.
//!
//! Invariants: a [`Lsn`] counts bytes of the log since it was made and never goes back, not even
//! over a restart; [`ShardId`]s and [`InstanceId`]s are never used twice.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A position in the write-ahead log, in bytes since the log was made. A write's LSN is the
    /// *end* of its record: the write is durable once `durable_lsn >= lsn`.
    Lsn
}
number! {
    /// One key range for ever; a split or merge makes new ids. Given by the router, or by the
    /// engine when it runs alone.
    ShardId
}
number! {
    /// One copy of a shard's data on this node, numbered locally. The same shard may come back to
    /// a node: as another instance.
    InstanceId
}
number! {
    /// Counts the changes of one shard, in log order; goes on over splits and moves.
    Revision
}
number! {
    /// Numbers the attempts to make a checkpoint; never reused, failed attempts included.
    CheckpointId
}

/// A range of keys `[start, end)` in byte order; an empty `end` means no upper bound.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct KeyRange {
    /// The first key that may be in the range.
    pub start: Vec<u8>,
    /// The first key beyond the range; empty = unbounded.
    pub end: Vec<u8>,
}

impl KeyRange {
    /// The range `[start, end)`.
    pub fn new(start: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Self {
        Self { start: start.into(), end: end.into() }
    }

    /// Every key.
    pub fn all() -> Self {
        Self::default()
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && self.is_before_end(key)
    }

    /// Whether `key` lies below the upper bound.
    pub fn is_before_end(&self, key: &[u8]) -> bool {
        self.end.is_empty() || key < self.end.as_slice()
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        !self.end.is_empty() && self.start >= self.end
    }

    /// The keys that are in both ranges. May be [empty](Self::is_empty).
    pub fn intersect(&self, other: &KeyRange) -> KeyRange {
        let start = self.start.clone().max(other.start.clone());
        let end = match (self.end.is_empty(), other.end.is_empty()) {
            (true, _) => other.end.clone(),
            (_, true) => self.end.clone(),
            _ => self.end.clone().min(other.end.clone()),
        };
        KeyRange { start, end }
    }
}

impl fmt::Debug for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, ", self.start.escape_ascii())?;
        if self.end.is_empty() {
            write!(f, "..)")
        } else {
            write!(f, "{})", self.end.escape_ascii())
        }
    }
}

/// Where the value of a put is that was written to the value log only: the log refers to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueAt {
    /// The location of its record, as the index has it.
    pub(crate) location: u64,
    /// The checksum of that record.
    pub(crate) crc: u32,
}
