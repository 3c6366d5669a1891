//! Records on their way out of the log, without copying.
//!
//! Invariants: [`RecordView::parse`] checks every length, kind and flag of the whole body, so the
//! iterators behind it neither fail nor panic; on bytes that were not checked they end early.

use super::record::{
    Cursor, Header, KIND_CREATE_SHARD, KIND_FILLER, KIND_FORGET_OPERATION, KIND_MERGE,
    KIND_REFUSE_OPERATION, KIND_SPLIT, KIND_WRITE, KIND_WRITE_AT, OP_FLAG_EXPIRY, OpKind,
    PREFIX_BYTES, RequestId,
};
use super::shard_records::{Merge, Split, take_refusal};
use crate::types::{InstanceId, Lsn, Revision, ShardId, ValueAt};

/// Why a record with valid checksums cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadRecord {
    /// A newer release wrote it.
    Newer(&'static str),
    /// Its lengths do not fit together.
    Malformed(&'static str),
}

/// A record of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordView<'a> {
    lsn: u64,
    #[cfg_attr(not(test), expect(dead_code, reason = "replay has used it before this view"))]
    base: u64,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the results of retried requests"))]
    request: RequestId,
    body: BodyView<'a>,
}

/// What a record says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyView<'a> {
    /// Operations on keys.
    Write(Sections<'a>),
    /// Nothing.
    Filler,
    /// A shard exists from here on.
    CreateShard(CreateShardView<'a>),
    /// A shard was cut in two.
    Split(Split<'a>),
    /// Two shards became one.
    Merge(Merge<'a>),
    /// An operation on shards will never be executed here.
    RefuseOperation {
        /// The operation.
        operation: u64,
        /// Why.
        reason: &'a str,
    },
    /// Nobody will ask for this operation again.
    ForgetOperation {
        /// The operation.
        operation: u64,
    },
}

/// The body of a create-shard record; see [`Body::CreateShard`](super::Body::CreateShard).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreateShardView<'a> {
    /// The shard.
    pub(crate) shard: ShardId,
    /// Its copy on this node.
    pub(crate) instance: InstanceId,
    /// Its epoch.
    pub(crate) epoch: u64,
    /// Its revision before its first change.
    pub(crate) revision: Revision,
    /// The first key of its range.
    pub(crate) start: &'a [u8],
    /// The first key beyond its range; empty = unbounded.
    pub(crate) end: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// Decodes a whole record (padding included) whose checksums are right.
    pub(super) fn parse(record: &'a [u8]) -> Result<Self, BadRecord> {
        let header = Header::decode(record).ok_or(BadRecord::Malformed("no room for a header"))?;
        let mut cursor = Cursor(record);
        let id = cursor.take(PREFIX_BYTES).map(|prefix| Cursor(&prefix[32..]));
        let request = id.and_then(|mut id| {
            Some(RequestId { session: id.u64()?, serial: id.u64()?, ack_below: id.u64()? })
        });
        let request = request.ok_or(BadRecord::Malformed("no room for a request id"))?;
        if header.flags != 0 {
            return Err(BadRecord::Newer("flags of a record"));
        }
        let body = match header.kind {
            KIND_WRITE | KIND_WRITE_AT => {
                let sections = Sections { rest: cursor, left: header.sections };
                BodyView::Write(sections.check()?)
            }
            KIND_FILLER => BodyView::Filler,
            KIND_CREATE_SHARD => BodyView::CreateShard(
                CreateShardView::take(&mut cursor)
                    .ok_or(BadRecord::Malformed("a create-shard record is too short"))?,
            ),
            KIND_SPLIT => BodyView::Split(
                Split::take(&mut cursor).ok_or(BadRecord::Malformed("a split is too short"))?,
            ),
            KIND_MERGE => BodyView::Merge(
                Merge::take(&mut cursor).ok_or(BadRecord::Malformed("a merge is too short"))?,
            ),
            KIND_REFUSE_OPERATION => {
                let (operation, reason) = take_refusal(&mut cursor)
                    .ok_or(BadRecord::Malformed("a refusal is too short, or no UTF-8"))?;
                BodyView::RefuseOperation { operation, reason }
            }
            KIND_FORGET_OPERATION => BodyView::ForgetOperation {
                operation: cursor
                    .u64()
                    .ok_or(BadRecord::Malformed("a forgotten operation is too short"))?,
            },
            _ => return Err(BadRecord::Newer("a kind of record")),
        };
        Ok(Self { lsn: header.lsn, base: header.base, request, body })
    }

    /// Whether a record of this kind can be read at all.
    pub(super) fn knows_kind(kind: u8) -> bool {
        matches!(
            kind,
            KIND_WRITE
                | KIND_WRITE_AT
                | KIND_FILLER
                | KIND_CREATE_SHARD
                | KIND_SPLIT
                | KIND_MERGE
                | KIND_REFUSE_OPERATION
                | KIND_FORGET_OPERATION
        )
    }

    /// Where the record starts.
    pub(crate) fn start_lsn(&self) -> Lsn {
        Lsn(self.lsn)
    }

    /// What was durable when it was written.
    #[cfg(test)]
    pub(crate) fn base(&self) -> Lsn {
        Lsn(self.base)
    }

    /// Which request it answers.
    #[cfg(test)]
    pub(crate) fn request(&self) -> RequestId {
        self.request
    }

    /// What it says.
    pub(crate) fn body(&self) -> BodyView<'a> {
        self.body
    }
}

impl<'a> CreateShardView<'a> {
    fn take(cursor: &mut Cursor<'a>) -> Option<Self> {
        let shard = ShardId(cursor.u64()?);
        let instance = InstanceId(cursor.u64()?);
        let epoch = cursor.u64()?;
        let revision = Revision(cursor.u64()?);
        let (start_len, end_len) = (cursor.u16()?, cursor.u16()?);
        cursor.u32()?;
        let start = cursor.take(start_len.into())?;
        let end = cursor.take(end_len.into())?;
        Some(Self { shard, instance, epoch, revision, start, end })
    }
}

/// The sections of a write.
#[derive(Clone, Copy)]
pub(crate) struct Sections<'a> {
    rest: Cursor<'a>,
    left: u16,
}

impl<'a> Sections<'a> {
    /// Checks every length of every section and operation, and that nothing but padding follows.
    fn check(self) -> Result<Self, BadRecord> {
        let mut cursor = self.rest;
        for _ in 0..self.left {
            let section = SectionView::take_head(&mut cursor)
                .ok_or(BadRecord::Malformed("a section is too short"))?;
            for _ in 0..section.ops.left {
                OpView::take(&mut cursor)?;
            }
        }
        if cursor.0.len() >= 8 {
            return Err(BadRecord::Malformed("bytes behind the last section"));
        }
        Ok(self)
    }
}

impl<'a> Iterator for Sections<'a> {
    type Item = SectionView<'a>;

    fn next(&mut self) -> Option<SectionView<'a>> {
        self.left = self.left.checked_sub(1)?;
        let section = SectionView::take_head(&mut self.rest)?;
        let mut ops = section.ops;
        ops.by_ref().for_each(drop);
        self.rest = ops.rest;
        Some(section)
    }
}

impl std::fmt::Debug for Sections<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// The operations of a write on one shard instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SectionView<'a> {
    /// Which copy of which shard.
    pub(crate) instance: InstanceId,
    /// The revision of the first operation; operation `i` has `first_revision + i`.
    pub(crate) first_revision: Revision,
    ops: Ops<'a>,
}

impl<'a> SectionView<'a> {
    fn take_head(cursor: &mut Cursor<'a>) -> Option<Self> {
        let instance = InstanceId(cursor.u64()?);
        let first_revision = Revision(cursor.u64()?);
        let left = cursor.u32()?;
        cursor.u32()?;
        Some(Self { instance, first_revision, ops: Ops { rest: *cursor, left } })
    }

    /// How many operations.
    pub(crate) fn count(&self) -> u64 {
        self.ops.left.into()
    }

    /// The operations, in order.
    pub(crate) fn ops(&self) -> Ops<'a> {
        self.ops
    }
}

/// Iterates the operations of a section.
#[derive(Clone, Copy)]
pub(crate) struct Ops<'a> {
    rest: Cursor<'a>,
    left: u32,
}

impl<'a> Iterator for Ops<'a> {
    type Item = OpView<'a>;

    fn next(&mut self) -> Option<OpView<'a>> {
        self.left = self.left.checked_sub(1)?;
        OpView::take(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize))
    }
}

impl std::fmt::Debug for Ops<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// One operation of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpView<'a> {
    /// What it does.
    pub(crate) kind: OpKind,
    /// The key.
    pub(crate) key: &'a [u8],
    /// The value; empty for a delete, and when it is elsewhere.
    pub(crate) value: &'a [u8],
    /// Where the value is, when it is not here.
    pub(crate) at: Option<ValueAt>,
    /// Its length, wherever it is.
    pub(crate) value_len: usize,
    /// When the value expires, in milliseconds since 1970.
    pub(crate) expiry_ms: Option<u64>,
}

impl<'a> OpView<'a> {
    fn take(cursor: &mut Cursor<'a>) -> Result<Self, BadRecord> {
        Self::take_lengths(cursor).ok_or(BadRecord::Malformed("an operation is too short"))?
    }

    fn take_lengths(cursor: &mut Cursor<'a>) -> Option<Result<Self, BadRecord>> {
        let kind = match cursor.u8()? {
            1 => OpKind::Put,
            2 => OpKind::Delete,
            3 => OpKind::PutAt,
            _ => return Some(Err(BadRecord::Newer("a kind of operation"))),
        };
        let flags = cursor.u8()?;
        if flags & !OP_FLAG_EXPIRY != 0 {
            return Some(Err(BadRecord::Newer("flags of an operation")));
        }
        let key_len = usize::from(cursor.u16()?);
        let value_len = cursor.u32()? as usize;
        let expiry_ms = if flags & OP_FLAG_EXPIRY == 0 { None } else { Some(cursor.u64()?) };
        let at = match kind {
            OpKind::PutAt => {
                let (location, crc) = (cursor.u64()?, cursor.u32()?);
                if cursor.u32()? != 0 {
                    return Some(Err(BadRecord::Newer("where a value is")));
                }
                Some(ValueAt { location, crc })
            }
            OpKind::Put | OpKind::Delete => None,
        };
        let key = cursor.take(key_len)?;
        let value = cursor.take(if at.is_some() { 0 } else { value_len })?;
        Some(Ok(Self { kind, key, value, at, value_len, expiry_ms }))
    }
}
