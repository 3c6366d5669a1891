//! Reads the T1 file, trusting nothing.
//!
//! Invariant: a region is answered only when every byte of the file was accounted for by a
//! checksum, every entry is one that this version writes, and the keys ascend strictly within the
//! range.

use std::path::Path;
use std::sync::Arc;

use super::{BLOCK_FIXED, FOOTER_LEN, FOOTER_MAGIC, HEADER_FIXED, MAGIC, Meta, VERSION, part_crc};
use crate::error::{Error, Result};
use crate::index::entry::Entry;
use crate::index::filter::Filter;
use crate::index::sorted_region::{BLOCK_ENTRIES, BLOCK_SUFFIX_BYTES, Block};
use crate::index::sorted_region::{SortedBuilder, SortedRegion};
use crate::options::MAX_KEY_BYTES;
use crate::types::{CheckpointId, InstanceId, KeyRange, ShardId};

/// Longest body of a block.
const MAX_BODY: usize =
    BLOCK_FIXED + BLOCK_ENTRIES * (1 + 8 + 2) + MAX_KEY_BYTES + BLOCK_SUFFIX_BYTES;

/// The file's description of itself, and its region. `file` is for messages.
pub(crate) fn decode(file: &Path, bytes: &[u8]) -> Result<(Meta, SortedRegion)> {
    let mut input = Input { file, bytes, at: 0 };
    let (meta, entries, header_crc) = header(&mut input)?;

    let blocks_at = input.at;
    let mut blocks = Vec::new();
    let mut check = KeyCheck { range: &meta.range, last: Vec::new(), key: Vec::new(), count: 0 };
    loop {
        let start = input.at;
        let len = input.u32("block length")? as usize;
        if len == 0 {
            break;
        }
        if len > MAX_BODY {
            return Err(input.damage(start, format!("a block of {len} bytes")));
        }
        let crc = input.u32("block checksum")?;
        let body = input.take(len, "block")?;
        if part_crc(header_crc, blocks.len() as u64, body) != crc {
            return Err(input.damage(start, "block checksum does not match"));
        }
        let Some(block) = block(body) else {
            return Err(input.damage(start, "malformed block"));
        };
        check.block(&block).map_err(|what| input.damage(start, what))?;
        blocks.push(Arc::new(block));
    }
    if check.count != entries {
        return Err(input.damage(
            blocks_at,
            format!("{} entries where the header says {entries}", check.count),
        ));
    }

    let filter_at = input.at;
    let len = input.u64("filter length")?;
    let crc = input.u32("filter checksum")?;
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let stored = input.take(len, "filter")?;
    if part_crc(header_crc, blocks.len() as u64, stored) != crc {
        return Err(input.damage(filter_at, "filter checksum does not match"));
    }
    let filter = match len {
        0 => None,
        _ => match Filter::read(stored, check.count as usize) {
            Some(filter) => Some(filter),
            None => return Err(input.damage(filter_at, "malformed filter")),
        },
    };
    footer(&mut input, header_crc, blocks.len() as u64, entries)?;

    let mut builder = SortedBuilder::with_filter(filter);
    for block in &blocks {
        // Never refused: no single entries were pushed.
        builder.push_block(block);
    }
    Ok((meta, builder.finish()))
}

/// Reads the header: description, entries, checksum.
fn header(input: &mut Input<'_>) -> Result<(Meta, u64, u32)> {
    if input.take(8, "magic")? != MAGIC {
        return Err(Error::foreign(input.file, "not an index file (magic bytes do not match)"));
    }
    let version = input.u32("version")?;
    if version != VERSION {
        return Err(Error::foreign(
            input.file,
            format!("index file version {version}; this release knows version {VERSION}"),
        ));
    }
    let len = input.u32("header length")? as usize;
    let numbers: [u64; 6] = [
        input.u64("shard")?,
        input.u64("instance")?,
        input.u64("epoch")?,
        input.u64("checkpoint")?,
        input.u64("previous checkpoint")?,
        input.u64("entry count")?,
    ];
    let start_len = input.u32("range start length")? as usize;
    let end_len = input.u32("range end length")? as usize;
    let start = input.take(start_len, "range start")?;
    let end = input.take(end_len, "range end")?;
    let covered = &input.bytes[..input.at];
    let crc = input.u32("header checksum")?;
    if crc32fast::hash(covered) != crc {
        return Err(input.damage(0, "header checksum does not match"));
    }
    let range = KeyRange::new(start, end);
    if len != HEADER_FIXED + start_len + end_len + 4
        || range.is_empty()
        || numbers[4] >= numbers[3].max(1)
    {
        return Err(input.damage(0, "malformed header"));
    }
    let [shard, instance, epoch, checkpoint, previous, entries] = numbers;
    let meta = Meta {
        shard: ShardId(shard),
        instance: InstanceId(instance),
        epoch,
        checkpoint: CheckpointId(checkpoint),
        previous: CheckpointId(previous),
        range,
    };
    Ok((meta, entries, crc))
}

/// Reads a block's body; `None` when it is not one.
fn block(body: &[u8]) -> Option<Block> {
    let (fixed, rest) = body.split_first_chunk::<BLOCK_FIXED>()?;
    let count = usize::from(u16::from_le_bytes([fixed[0], fixed[1]]));
    let prefix_len = usize::from(u16::from_le_bytes([fixed[2], fixed[3]]));
    let (tags, rest) = rest.split_at_checked(count)?;
    let (payloads, keys) = rest.split_at_checked(8 * count)?;
    let mut entries = Vec::with_capacity(count);
    for (tag, payload) in tags.iter().zip(payloads.as_chunks::<8>().0) {
        entries.push(Entry::from_stored(u64::from_le_bytes(*payload), *tag)?);
    }
    Block::from_parts(prefix_len, keys.into(), entries.into_iter(), 0)
}

/// Reads the footer, which ends the file.
fn footer(input: &mut Input<'_>, header_crc: u32, blocks: u64, entries: u64) -> Result<()> {
    let start = input.at;
    let body = input.take(FOOTER_LEN - 4, "footer")?;
    let crc = input.u32("footer checksum")?;
    if part_crc(header_crc, blocks + 1, body) != crc {
        return Err(input.damage(start, "footer checksum does not match"));
    }
    let mut expected = FOOTER_MAGIC.to_vec();
    for number in [blocks, entries, input.at as u64] {
        expected.extend_from_slice(&number.to_le_bytes());
    }
    if body != expected {
        return Err(input.damage(start, "footer does not match the file"));
    }
    if input.at != input.bytes.len() {
        return Err(input.damage(input.at, "bytes behind the footer"));
    }
    Ok(())
}

/// Checks keys over all blocks.
struct KeyCheck<'a> {
    range: &'a KeyRange,
    last: Vec<u8>,
    key: Vec<u8>,
    count: u64,
}

impl KeyCheck<'_> {
    fn block(&mut self, block: &Block) -> std::result::Result<(), &'static str> {
        for index in 0..block.count() {
            block.read_key(index, &mut self.key);
            if self.key.is_empty() || self.key.len() > MAX_KEY_BYTES {
                return Err("a key of illegal length");
            }
            // The first key: every key is greater than the empty one.
            if self.key <= self.last {
                return Err("keys out of order");
            }
            if !self.range.contains(&self.key) {
                return Err("a key outside the shard's range");
            }
            std::mem::swap(&mut self.key, &mut self.last);
        }
        self.count += block.count() as u64;
        Ok(())
    }
}

/// The file and how far it was read.
struct Input<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn damage(&self, at: usize, what: impl std::fmt::Display) -> Error {
        Error::corrupt(self.file, at as u64, what)
    }

    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..len) else {
            return Err(self.damage(self.at, format!("file ends within {what}")));
        };
        self.at += len;
        Ok(taken)
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        let mut number = [0; 4];
        number.copy_from_slice(self.take(4, what)?);
        Ok(u32::from_le_bytes(number))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8, what)?);
        Ok(u64::from_le_bytes(number))
    }
}
