//! The T1 file: one shard's sorted region as of a checkpoint, or what changed in it since the file
//! before (a *delta*: new entries and tombstones). A whole file and the deltas after it, each
//! naming the one before it, are the shard's *chain*. All numbers little-endian.
//!
//! ```text
//! header  magic "VMKVT1\0\0", version u32 = 1, length of the header u32 (with its crc)
//!         shard u64, instance u64, epoch u64, checkpoint u64, previous u64 (the attempt of the
//!         file that this one is a delta to; 0 = a whole file), entries u64
//!         length of range start u32, of range end u32, start, end, crc32
//! blocks  each: length of the body u32 (never 0), crc32
//!         body: entries u16, prefix length u16, tags u8 * n, payloads u64 * n
//!              , suffix ends u16 * n, prefix, suffixes
//! end     u32 = 0
//! filter  length u64 (0 = none), crc32, lines of 64 bytes
//! footer  magic "VMKVT1END" padded to 16, blocks u64, entries u64, length of the file u64
//!        , crc32
//! ```
//!
//! Invariants: every crc32 behind the header begins with the header's crc32 and a running number,
//! so that parts of another file, or in another order, do not fit; keys ascend strictly and lie in
//! the range; an unknown version is [`Foreign`](crate::ErrorKind::Foreign), damage is
//! [`Corrupt`](crate::ErrorKind::Corrupt) with file and offset; no input makes the decoder panic
//! or allocate more than a small multiple of its length.

mod decode;
mod encode;

#[cfg(test)]
mod index_file_test;

pub(crate) use decode::decode;
pub(crate) use encode::{encode, encode_changes};

use crate::types::{CheckpointId, InstanceId, KeyRange, ShardId};

/// What a T1 file says about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Meta {
    /// The shard.
    pub(crate) shard: ShardId,
    /// The local copy.
    pub(crate) instance: InstanceId,
    /// The shard's epoch.
    pub(crate) epoch: u64,
    /// The attempt that wrote the file.
    pub(crate) checkpoint: CheckpointId,
    /// The attempt that wrote the file before it in the chain; 0: this is a whole file.
    pub(crate) previous: CheckpointId,
    /// The shard's keys.
    pub(crate) range: KeyRange,
}

/// First bytes of the file.
const MAGIC: &[u8; 8] = b"VMKVT1\0\0";
/// First bytes of the footer.
const FOOTER_MAGIC: &[u8; 16] = b"VMKVT1END\0\0\0\0\0\0\0";
/// The format version that this release writes and reads.
const VERSION: u32 = 1;
/// Bytes of the header before the range: magic to the range's lengths.
const HEADER_FIXED: usize = 8 + 4 + 4 + 8 * 6 + 4 + 4;
/// Bytes of the footer.
const FOOTER_LEN: usize = 16 + 8 * 3 + 4;
/// Bytes of a block's body before its tags.
const BLOCK_FIXED: usize = 4;

/// The checksum of part number `part` of the file whose header has `header_crc`.
fn part_crc(header_crc: u32, part: u64, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header_crc.to_le_bytes());
    crc.update(&part.to_le_bytes());
    crc.update(bytes);
    crc.finalize()
}
