//! Records on their way into the log, built from borrowed slices.
//!
//! A write's body is its sections, one for each shard instance that it touches, nothing between:
//!
//! - section: instance u64, first_revision u64, ops u32, reserved u32, then its operations;
//! - operation: kind u8, flags u8 (bit 0: expiry follows), key_len u16, value_len u32,
//!   \[expiry_ms u64\], key, value; operation `i` has revision `first_revision + i`. In a put by
//!   reference, before the key and instead of the value: location u64, checksum u32, reserved u32.
//!
//! A create-shard body: shard u64, instance u64, epoch u64, revision u64, start_len u16, end_len
//! u16, reserved u32, start, end. The other bodies: `shard_records`.
//!
//! Invariant: what [`Record::encode_body`] writes has the length that [`Record::encoded_len`]
//! gave, whatever the revisions are: they are assigned in between.

use super::record::{
    AT_BYTES, CREATE_SHARD_BYTES, KIND_CREATE_SHARD, KIND_FILLER, KIND_FORGET_OPERATION,
    KIND_MERGE, KIND_REFUSE_OPERATION, KIND_SPLIT, KIND_WRITE, KIND_WRITE_AT, OP_BYTES,
    OP_FLAG_EXPIRY, OpKind, PREFIX_BYTES, RequestId, SECTION_BYTES, first_word, padded,
};
use super::shard_records::{Merge, Split, encode_refusal, refusal_len};
use crate::types::{InstanceId, Revision, ShardId, ValueAt};

/// One operation of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op<'a> {
    /// What it does.
    pub(crate) kind: OpKind,
    /// The key; at most 65,535 bytes.
    pub(crate) key: &'a [u8],
    /// The value; empty for a delete.
    pub(crate) value: &'a [u8],
    /// When the value expires, in milliseconds since 1970. Reserved.
    pub(crate) expiry_ms: Option<u64>,
    /// Where the value is, for [`OpKind::PutAt`] and for that only.
    pub(crate) at: Option<ValueAt>,
}

impl<'a> Op<'a> {
    /// Sets `key` to `value`.
    pub(crate) fn put(key: &'a [u8], value: &'a [u8]) -> Self {
        Self { kind: OpKind::Put, key, value, expiry_ms: None, at: None }
    }

    /// Removes `key`.
    pub(crate) fn delete(key: &'a [u8]) -> Self {
        Self { kind: OpKind::Delete, key, value: &[], expiry_ms: None, at: None }
    }

    fn encoded_len(&self) -> usize {
        let expiry = if self.expiry_ms.is_some() { 8 } else { 0 };
        let value = if self.at.is_some() { AT_BYTES } else { self.value.len() };
        OP_BYTES + expiry + self.key.len() + value
    }

    /// The same, but the value is in the value log.
    pub(crate) fn refer(self, at: ValueAt) -> Self {
        Self { kind: OpKind::PutAt, at: Some(at), ..self }
    }
}

/// The operations of a write on one shard instance, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section<'a> {
    /// Which copy of which shard.
    pub(crate) instance: InstanceId,
    /// The revision of the first operation.
    pub(crate) first_revision: Revision,
    /// The operations.
    pub(crate) ops: &'a [Op<'a>],
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    /// Operations on keys; at most 65,535 sections.
    Write(&'a [Section<'a>]),
    /// Nothing. The log writes fillers by itself, as bare words.
    #[cfg_attr(not(test), expect(dead_code, reason = "to test that replay passes it over"))]
    Filler,
    /// A shard exists from here on.
    CreateShard {
        /// The shard.
        shard: ShardId,
        /// Its copy on this node.
        instance: InstanceId,
        /// Its epoch.
        epoch: u64,
        /// Its revision before its first change.
        revision: Revision,
        /// The first key of its range.
        start: &'a [u8],
        /// The first key beyond its range; empty = unbounded.
        end: &'a [u8],
    },
    /// A shard was cut in two.
    Split(Split<'a>),
    /// Two shards became one.
    Merge(Merge<'a>),
    /// An operation on shards will never be executed here.
    RefuseOperation {
        /// The operation.
        operation: u64,
        /// Why; at most 65,535 bytes.
        reason: &'a str,
    },
    /// Nobody will ask for this operation again.
    ForgetOperation {
        /// The operation.
        operation: u64,
    },
}

/// A record to append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// What it says.
    pub(crate) body: Body<'a>,
    /// Which request it answers.
    pub(crate) request: RequestId,
}

/// Takes the bytes of a record one after the other.
pub(super) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Record<'_> {
    /// Bytes that the record takes in the log, padding included.
    pub(crate) fn encoded_len(&self) -> usize {
        let body = match self.body {
            Body::Write(sections) => sections
                .iter()
                .map(|s| SECTION_BYTES + s.ops.iter().map(Op::encoded_len).sum::<usize>())
                .sum(),
            Body::Filler => 0,
            Body::CreateShard { start, end, .. } => CREATE_SHARD_BYTES + start.len() + end.len(),
            Body::Split(split) => split.encoded_len(),
            Body::Merge(merge) => merge.encoded_len(),
            Body::RefuseOperation { reason, .. } => refusal_len(reason),
            Body::ForgetOperation { .. } => 8,
        };
        padded(PREFIX_BYTES + body)
    }

    /// The record's first eight bytes as a little-endian word.
    pub(super) fn first_word(&self, len: usize) -> u64 {
        match self.body {
            Body::Write(sections) => {
                let mut ops = sections.iter().flat_map(|section| section.ops);
                let refers = ops.any(|op| op.at.is_some());
                let kind = if refers { KIND_WRITE_AT } else { KIND_WRITE };
                first_word(len, kind, sections.len())
            }
            Body::Filler => first_word(len, KIND_FILLER, 0),
            Body::CreateShard { .. } => first_word(len, KIND_CREATE_SHARD, 0),
            Body::Split(_) => first_word(len, KIND_SPLIT, 0),
            Body::Merge(_) => first_word(len, KIND_MERGE, 0),
            Body::RefuseOperation { .. } => first_word(len, KIND_REFUSE_OPERATION, 0),
            Body::ForgetOperation { .. } => first_word(len, KIND_FORGET_OPERATION, 0),
        }
    }

    /// Writes everything behind the header except the padding.
    pub(super) fn encode_body(&self, sink: &mut impl Sink) {
        let RequestId { session, serial, ack_below } = self.request;
        put_words(sink, &[session, serial, ack_below]);
        match self.body {
            Body::Write(sections) => {
                for section in sections {
                    let ops = section.ops.len() as u64 & 0xffff_ffff;
                    put_words(sink, &[section.instance.0, section.first_revision.0, ops]);
                    for op in section.ops {
                        encode_op(op, sink);
                    }
                }
            }
            Body::Filler => {}
            Body::CreateShard { shard, instance, epoch, revision, start, end } => {
                debug_assert!(start.len() <= usize::from(u16::MAX));
                debug_assert!(end.len() <= usize::from(u16::MAX));
                let lengths = start.len() as u64 | (end.len() as u64) << 16;
                put_words(sink, &[shard.0, instance.0, epoch, revision.0, lengths]);
                sink.put(start);
                sink.put(end);
            }
            Body::Split(split) => split.encode(sink),
            Body::Merge(merge) => merge.encode(sink),
            Body::RefuseOperation { operation, reason } => encode_refusal(operation, reason, sink),
            Body::ForgetOperation { operation } => put_words(sink, &[operation]),
        }
    }
}

fn encode_op(op: &Op<'_>, sink: &mut impl Sink) {
    debug_assert!(op.key.len() <= usize::from(u16::MAX));
    debug_assert!(u32::try_from(op.value.len()).is_ok());
    let flags = if op.expiry_ms.is_some() { OP_FLAG_EXPIRY } else { 0 };
    let fixed = op.kind as u64
        | u64::from(flags) << 8
        | (op.key.len() as u64) << 16
        | (op.value.len() as u64) << 32;
    sink.put(&fixed.to_le_bytes());
    if let Some(expiry_ms) = op.expiry_ms {
        sink.put(&expiry_ms.to_le_bytes());
    }
    match op.at {
        None => {
            sink.put(op.key);
            sink.put(op.value);
        }
        Some(at) => {
            put_words(sink, &[at.location, at.crc.into()]);
            sink.put(op.key);
        }
    }
}

fn put_words(sink: &mut impl Sink, values: &[u64]) {
    for value in values {
        sink.put(&value.to_le_bytes());
    }
}
