//! How a record is framed: its fixed header, its request id and its two checksums.
//!
//! Little-endian; every record starts at a multiple of 8 and `len` is one:
//!
//! | bytes | field | written by |
//! |---|---|---|
//! | 0..4 | `len` of the whole record, padding included | appender |
//! | 4 | kind: 1 write, 2 filler, 3 create shard, 4 write by reference, 16 to 19 `shard_records` | appender |
//! | 5 | flags (0) | appender |
//! | 6..8 | sections of a write | appender |
//! | 8..16 | the record's LSN: its start | appender |
//! | 16..24 | `base`: the durable LSN when it was written | flusher |
//! | 24..28 | crc32 of bytes `32..len` | appender |
//! | 28..32 | crc32 of the segment's salt (8 bytes) and bytes `0..28` | flusher |
//! | 32..56 | request id: session, serial, acknowledged below; all 0 = none | appender |
//! | 56..len | body, then zeros to a multiple of 8 | appender |
//!
//! Invariants: `56 <= len`, `len % 8 == 0`, `base <= lsn`. A record is valid where its LSN says it
//! lies, under its segment's salt, with both checksums right; nothing else is ever decoded.

/// Bytes of the fixed header.
pub(super) const HEADER_BYTES: usize = 32;
/// Bytes before the body: header and request id. The shortest record.
pub(super) const PREFIX_BYTES: usize = 56;
/// Records start at multiples of this.
pub(super) const ALIGN: usize = 8;
/// The longest record that is accepted, far above what the limits on keys, values and batches
/// allow: `len` has 32 bits.
pub(super) const MAX_RECORD_BYTES: usize = 1 << 30;

pub(super) const KIND_WRITE: u8 = 1;
pub(super) const KIND_FILLER: u8 = 2;
pub(super) const KIND_CREATE_SHARD: u8 = 3;
/// A write with at least one [`OpKind::PutAt`].
pub(super) const KIND_WRITE_AT: u8 = 4;
pub(super) const KIND_SPLIT: u8 = 16;
pub(super) const KIND_MERGE: u8 = 17;
pub(super) const KIND_REFUSE_OPERATION: u8 = 18;
pub(super) const KIND_FORGET_OPERATION: u8 = 19;

/// Bytes of a section's fixed part.
pub(super) const SECTION_BYTES: usize = 24;
/// Bytes of an operation's fixed part.
pub(super) const OP_BYTES: usize = 8;
/// An expiry time follows the operation's fixed part.
pub(super) const OP_FLAG_EXPIRY: u8 = 1;
/// Bytes of where a value is.
pub(super) const AT_BYTES: usize = 16;
/// Bytes of a create-shard body before its two keys.
pub(super) const CREATE_SHARD_BYTES: usize = 40;

const _: () = assert!(PREFIX_BYTES.is_multiple_of(ALIGN) && HEADER_BYTES.is_multiple_of(ALIGN));

/// Which request a record answers, so that a retry can be recognised; all 0 means none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RequestId {
    /// The client's session.
    pub(crate) session: u64,
    /// The request's number in the session.
    pub(crate) serial: u64,
    /// The client has the answers of all requests below.
    pub(crate) ack_below: u64,
}

/// What an operation of a write does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpKind {
    /// Sets the key.
    Put = 1,
    /// Removes the key.
    Delete = 2,
    /// Sets the key to a value that the log does not repeat: it is in the value log.
    PutAt = 3,
}

/// Rounds a length up to where the next record may start.
pub(super) fn padded(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

/// The first eight bytes of a record as a little-endian word; never 0.
pub(super) fn first_word(len: usize, kind: u8, sections: usize) -> u64 {
    debug_assert!(len <= MAX_RECORD_BYTES && sections <= usize::from(u16::MAX));
    len as u64 | u64::from(kind) << 32 | (sections as u64) << 48
}

/// The length in a record's first word.
pub(super) fn len_of_first_word(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// The fixed header, decoded but not judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) len: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) sections: u16,
    pub(super) lsn: u64,
    pub(super) base: u64,
    pub(super) body_crc: u32,
    pub(super) header_crc: u32,
}

impl Header {
    /// Decodes the first [`HEADER_BYTES`] of `bytes`; `None` if there are fewer.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(bytes);
        Some(Self {
            len: cursor.u32()?,
            kind: cursor.u8()?,
            flags: cursor.u8()?,
            sections: cursor.u16()?,
            lsn: cursor.u64()?,
            base: cursor.u64()?,
            body_crc: cursor.u32()?,
            header_crc: cursor.u32()?,
        })
    }

    /// Whether this header was written at `lsn` of a segment with this salt. Says nothing about
    /// the body. `bytes` is what it was decoded from.
    pub(super) fn is_valid_at(&self, lsn: u64, salt: u64, bytes: &[u8]) -> bool {
        self.lsn == lsn
            && self.base <= lsn
            && self.len as usize >= PREFIX_BYTES
            && (self.len as usize).is_multiple_of(ALIGN)
            && bytes.get(..28).is_some_and(|covered| header_crc(salt, covered) == self.header_crc)
    }

    /// Whether `record`, the whole record, has the right body.
    pub(super) fn covers(&self, record: &[u8]) -> bool {
        record.get(HEADER_BYTES..).is_some_and(|body| crc32fast::hash(body) == self.body_crc)
    }

    /// The 28 bytes that the header's checksum covers.
    pub(super) fn covered_bytes(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[0..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4] = self.kind;
        bytes[5] = self.flags;
        bytes[6..8].copy_from_slice(&self.sections.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.lsn.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.base.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.body_crc.to_le_bytes());
        bytes
    }

    /// The header as it lies on disk in a segment with this salt.
    pub(super) fn encode(&self, salt: u64) -> [u8; HEADER_BYTES] {
        let covered = self.covered_bytes();
        let mut bytes = [0; HEADER_BYTES];
        bytes[..28].copy_from_slice(&covered);
        bytes[28..].copy_from_slice(&header_crc(salt, &covered).to_le_bytes());
        bytes
    }
}

/// The checksum of a header's first 28 bytes under a segment's salt.
pub(super) fn header_crc(salt: u64, covered: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(covered);
    hasher.finalize()
}

/// Takes little-endian fields off the front of bytes; `None` when they run out.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
