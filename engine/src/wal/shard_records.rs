//! The bodies of the records that change shards, and of those that decide about such changes.
//!
//! Little-endian, all numbers u64 unless said otherwise:
//!
//! - split (16): operation, parent and its instance, left and its instance, right and its instance,
//!   epoch, revision, key_len u16, reserved u16 and u32, key;
//! - merge (17): operation, left and its instance, right and its instance, merged and its instance,
//!   epoch, revision, seam_len u16, reserved u16 and u32, seam;
//! - refuse operation (18): operation, reason_len u16, reserved u16 and u32, reason (UTF-8);
//! - forget operation (19): operation.
//!
//! Invariant: what `encode` writes has the length that `encoded_len` gave, and `take` reads it back.

use super::encode::Sink;
use super::record::Cursor;
use crate::types::{InstanceId, Revision, ShardId};

/// A shard and its copy on this node.
pub(crate) type Copied = (ShardId, InstanceId);

/// A shard was cut in two. Its record comes after those of all writes that the parent has taken,
/// and perhaps after some of the children's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Split<'a> {
    /// Who asked; 0 = nobody who will ask again.
    pub(crate) operation: u64,
    /// What was cut.
    pub(crate) parent: Copied,
    /// The part before the key.
    pub(crate) left: Copied,
    /// The part from the key on.
    pub(crate) right: Copied,
    /// The epoch of both parts.
    pub(crate) epoch: u64,
    /// Every change of the three before this record has this revision or a lower one, every change
    /// of the parts behind it a higher one.
    pub(crate) revision: Revision,
    /// The first key of the right part.
    pub(crate) key: &'a [u8],
}

/// Two neighbours became one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Merge<'a> {
    /// Who asked; 0 = nobody who will ask again.
    pub(crate) operation: u64,
    /// The one with the lesser keys.
    pub(crate) left: Copied,
    /// The other.
    pub(crate) right: Copied,
    /// What they became.
    pub(crate) merged: Copied,
    /// Its epoch.
    pub(crate) epoch: u64,
    /// As in [`Split::revision`].
    pub(crate) revision: Revision,
    /// The first key of `right`, for readers of changes: their positions are of one of the two.
    pub(crate) seam: &'a [u8],
}

const NUMBER: usize = 8;

fn put(sink: &mut impl Sink, numbers: &[u64]) {
    numbers.iter().for_each(|number| sink.put(&number.to_le_bytes()));
}

fn take_copied(cursor: &mut Cursor<'_>) -> Option<Copied> {
    Some((ShardId(cursor.u64()?), InstanceId(cursor.u64()?)))
}

/// A length in front of bytes, in eight bytes.
fn take_bytes<'a>(cursor: &mut Cursor<'a>) -> Option<&'a [u8]> {
    let len = cursor.u16()?;
    cursor.u16()?;
    cursor.u32()?;
    cursor.take(len.into())
}

impl<'a> Split<'a> {
    pub(super) fn encoded_len(&self) -> usize {
        10 * NUMBER + self.key.len()
    }

    pub(super) fn encode(&self, sink: &mut impl Sink) {
        debug_assert!(u16::try_from(self.key.len()).is_ok());
        let Self { operation, parent, left, right, epoch, revision, key } = self;
        put(sink, &[*operation, parent.0.0, parent.1.0, left.0.0, left.1.0, right.0.0, right.1.0]);
        put(sink, &[*epoch, revision.0, key.len() as u64]);
        sink.put(key);
    }

    pub(super) fn take(cursor: &mut Cursor<'a>) -> Option<Self> {
        Some(Self {
            operation: cursor.u64()?,
            parent: take_copied(cursor)?,
            left: take_copied(cursor)?,
            right: take_copied(cursor)?,
            epoch: cursor.u64()?,
            revision: Revision(cursor.u64()?),
            key: take_bytes(cursor)?,
        })
    }
}

impl<'a> Merge<'a> {
    pub(super) fn encoded_len(&self) -> usize {
        10 * NUMBER + self.seam.len()
    }

    pub(super) fn encode(&self, sink: &mut impl Sink) {
        debug_assert!(u16::try_from(self.seam.len()).is_ok());
        let Self { operation, left, right, merged, epoch, revision, seam } = self;
        put(sink, &[*operation, left.0.0, left.1.0, right.0.0, right.1.0, merged.0.0, merged.1.0]);
        put(sink, &[*epoch, revision.0, seam.len() as u64]);
        sink.put(seam);
    }

    pub(super) fn take(cursor: &mut Cursor<'a>) -> Option<Self> {
        Some(Self {
            operation: cursor.u64()?,
            left: take_copied(cursor)?,
            right: take_copied(cursor)?,
            merged: take_copied(cursor)?,
            epoch: cursor.u64()?,
            revision: Revision(cursor.u64()?),
            seam: take_bytes(cursor)?,
        })
    }
}

/// Bytes of a refusal.
pub(super) fn refusal_len(reason: &str) -> usize {
    2 * NUMBER + reason.len()
}

pub(super) fn encode_refusal(operation: u64, reason: &str, sink: &mut impl Sink) {
    debug_assert!(u16::try_from(reason.len()).is_ok());
    put(sink, &[operation, reason.len() as u64]);
    sink.put(reason.as_bytes());
}

pub(super) fn take_refusal<'a>(cursor: &mut Cursor<'a>) -> Option<(u64, &'a str)> {
    Some((cursor.u64()?, std::str::from_utf8(take_bytes(cursor)?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_come_back_as_they_were() {
        let copied = |n| (ShardId(n), InstanceId(n + 100));
        for key in [&b"k"[..], &[0xff; 4096]] {
            let split = Split {
                operation: u64::MAX,
                parent: copied(1),
                left: copied(2),
                right: copied(3),
                epoch: 4,
                revision: Revision(5),
                key,
            };
            let mut bytes = Vec::new();
            split.encode(&mut bytes);
            assert_eq!(bytes.len(), split.encoded_len());
            assert_eq!(Split::take(&mut Cursor(&bytes)), Some(split));
            for len in 0..bytes.len() {
                assert_eq!(Split::take(&mut Cursor(&bytes[..len])), None);
            }
        }
        let merge = Merge {
            operation: 0,
            left: copied(1),
            right: copied(2),
            merged: copied(3),
            epoch: 4,
            revision: Revision(5),
            seam: b"seam",
        };
        let mut bytes = Vec::new();
        merge.encode(&mut bytes);
        assert_eq!(bytes.len(), merge.encoded_len());
        assert_eq!(Merge::take(&mut Cursor(&bytes)), Some(merge));
        let mut bytes = Vec::new();
        encode_refusal(7, "no \u{e9}", &mut bytes);
        assert_eq!(bytes.len(), refusal_len("no \u{e9}"));
        assert_eq!(take_refusal(&mut Cursor(&bytes)), Some((7, "no \u{e9}")));
        *bytes.last_mut().unwrap() = 0xff;
        assert_eq!(take_refusal(&mut Cursor(&bytes)), None, "not UTF-8");
    }
}
