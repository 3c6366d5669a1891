//! Writes the T1 file.
//!
//! Invariant: the region does not change meanwhile (it is not published yet, or its shard is
//! frozen); the sink gets pieces of about 256 KiB in file order.

use super::{BLOCK_FIXED, FOOTER_LEN, FOOTER_MAGIC, HEADER_FIXED, MAGIC, Meta, VERSION, part_crc};
use crate::error::{Error, Result};
use crate::index::filter::Filter;
use crate::index::sorted_region::{Block, SortedRegion};

/// Bytes that are handed to the sink at once.
const PIECE: usize = 256 << 10;

/// Hands the file to `sink`, piece by piece.
pub(crate) fn encode(
    region: &SortedRegion,
    meta: &Meta,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut out = Out { buffer: Vec::with_capacity(PIECE + (64 << 10)), written: 0, sink };
    let header = header(region, meta)?;
    let header_crc = crc32fast::hash(&header);
    out.put(&header)?;
    out.put(&header_crc.to_le_bytes())?;

    let mut part = 0;
    let mut body = Vec::new();
    for block in region.blocks() {
        block_body(block, &mut body);
        out.put(&(body.len() as u32).to_le_bytes())?;
        out.put(&part_crc(header_crc, part, &body).to_le_bytes())?;
        out.put(&body)?;
        part += 1;
    }
    out.put(&0u32.to_le_bytes())?;

    body.clear();
    if let Some(filter) = region.filter() {
        body.reserve_exact(filter.memory_bytes());
        filter.write(|line| body.extend_from_slice(line));
    }
    debug_assert_eq!(body.len(), region.filter().map_or(0, Filter::memory_bytes));
    out.put(&(body.len() as u64).to_le_bytes())?;
    out.put(&part_crc(header_crc, part, &body).to_le_bytes())?;
    out.put(&body)?;

    let mut footer = FOOTER_MAGIC.to_vec();
    footer.extend_from_slice(&(region.blocks().len() as u64).to_le_bytes());
    footer.extend_from_slice(&(region.len() as u64).to_le_bytes());
    footer.extend_from_slice(&(out.written + FOOTER_LEN as u64).to_le_bytes());
    let crc = part_crc(header_crc, part + 1, &footer);
    out.put(&footer)?;
    out.put(&crc.to_le_bytes())?;
    out.flush()
}

/// The header without its crc.
fn header(region: &SortedRegion, meta: &Meta) -> Result<Vec<u8>> {
    let (start, end) = (&meta.range.start, &meta.range.end);
    let len = HEADER_FIXED + start.len() + end.len() + 4;
    let (Ok(len), Ok(start_len), Ok(end_len)) =
        (u32::try_from(len), u32::try_from(start.len()), u32::try_from(end.len()))
    else {
        return Err(Error::invalid("the range's bounds are too long for an index file"));
    };
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&len.to_le_bytes());
    let numbers =
        [meta.shard.0, meta.instance.0, meta.epoch, meta.checkpoint.0, region.len() as u64];
    numbers.iter().for_each(|number| header.extend_from_slice(&number.to_le_bytes()));
    header.extend_from_slice(&start_len.to_le_bytes());
    header.extend_from_slice(&end_len.to_le_bytes());
    header.extend_from_slice(start);
    header.extend_from_slice(end);
    Ok(header)
}

/// Writes a block's body into `body`.
fn block_body(block: &Block, body: &mut Vec<u8>) {
    body.clear();
    body.reserve(BLOCK_FIXED + 9 * block.count() + block.key_bytes().len());
    body.extend_from_slice(&(block.count() as u16).to_le_bytes());
    body.extend_from_slice(&(block.prefix().len() as u16).to_le_bytes());
    let tags_at = body.len();
    body.resize(tags_at + block.count(), 0);
    for index in 0..block.count() {
        let entry = block.entry(index);
        body[tags_at + index] = entry.tag.bits();
        body.extend_from_slice(&entry.payload.to_le_bytes());
    }
    body.extend_from_slice(block.key_bytes());
}

/// Collects pieces for the sink.
struct Out<'a> {
    buffer: Vec<u8>,
    written: u64,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl Out<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            (self.sink)(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}
