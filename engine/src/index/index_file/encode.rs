//! Writes the T1 file.
//!
//! Invariant: the region does not change meanwhile (it is not published yet, or its shard is
//! frozen); the sink gets pieces of about 256 KiB in file order.

use super::{BLOCK_FIXED, FOOTER_LEN, FOOTER_MAGIC, HEADER_FIXED, MAGIC, Meta, VERSION, part_crc};
use crate::error::{Error, Result};
use crate::index::filter::Filter;
use crate::index::sorted_region::{Block, SortedBuilder, SortedRegion};

/// Bytes that are handed to the sink at once.
const PIECE: usize = 256 << 10;

/// Takes the file, piece by piece.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Hands the file of a whole region to `sink`.
pub(crate) fn encode(region: &SortedRegion, meta: &Meta, sink: Sink<'_>) -> Result<()> {
    let mut writer = Writer::begin(meta, region.len() as u64, sink)?;
    for block in region.blocks() {
        writer.block(block)?;
    }
    writer.end(region.filter())
}

/// Hands a delta to `sink`: the entries whose changed bits are set, tombstones included.
pub(crate) fn encode_changes(region: &SortedRegion, meta: &Meta, sink: Sink<'_>) -> Result<()> {
    let mut writer = Writer::begin(meta, region.changed() as u64, sink)?;
    // Only for its blocks: they are written as soon as they are full.
    let mut builder = SortedBuilder::with_filter(None);
    let mut key = Vec::new();
    for block in region.blocks() {
        let mut changed = block.changed();
        while changed != 0 {
            let index = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            block.read_key(index, &mut key);
            builder.push(&key, block.entry(index), false);
        }
        builder.drain_blocks().try_for_each(|block| writer.block(&block))?;
    }
    builder.flush();
    builder.drain_blocks().try_for_each(|block| writer.block(&block))?;
    writer.end(None)
}

/// Writes the parts of a file in order.
struct Writer<'a> {
    out: Out<'a>,
    header_crc: u32,
    /// Blocks written so far.
    blocks: u64,
    entries: u64,
    body: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn begin(meta: &Meta, entries: u64, sink: Sink<'a>) -> Result<Self> {
        let mut out = Out { buffer: Vec::with_capacity(PIECE + (64 << 10)), written: 0, sink };
        let header = header(entries, meta)?;
        let header_crc = crc32fast::hash(&header);
        out.put(&header)?;
        out.put(&header_crc.to_le_bytes())?;
        Ok(Self { out, header_crc, blocks: 0, entries, body: Vec::new() })
    }

    fn block(&mut self, block: &Block) -> Result<()> {
        block_body(block, &mut self.body);
        self.out.put(&(self.body.len() as u32).to_le_bytes())?;
        self.out.put(&part_crc(self.header_crc, self.blocks, &self.body).to_le_bytes())?;
        self.out.put(&self.body)?;
        self.blocks += 1;
        Ok(())
    }

    fn end(mut self, filter: Option<&Filter>) -> Result<()> {
        self.out.put(&0u32.to_le_bytes())?;
        let body = &mut self.body;
        body.clear();
        if let Some(filter) = filter {
            body.reserve_exact(filter.memory_bytes());
            filter.write(|line| body.extend_from_slice(line));
        }
        debug_assert_eq!(body.len(), filter.map_or(0, Filter::memory_bytes));
        self.out.put(&(body.len() as u64).to_le_bytes())?;
        self.out.put(&part_crc(self.header_crc, self.blocks, body).to_le_bytes())?;
        self.out.put(body)?;

        let mut footer = FOOTER_MAGIC.to_vec();
        footer.extend_from_slice(&self.blocks.to_le_bytes());
        footer.extend_from_slice(&self.entries.to_le_bytes());
        footer.extend_from_slice(&(self.out.written + FOOTER_LEN as u64).to_le_bytes());
        let crc = part_crc(self.header_crc, self.blocks + 1, &footer);
        self.out.put(&footer)?;
        self.out.put(&crc.to_le_bytes())?;
        self.out.flush()
    }
}

/// The header without its crc.
fn header(entries: u64, meta: &Meta) -> Result<Vec<u8>> {
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
    let Meta { shard, instance, epoch, checkpoint, previous, .. } = meta;
    let numbers = [shard.0, instance.0, *epoch, checkpoint.0, previous.0, entries];
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
    sink: Sink<'a>,
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
