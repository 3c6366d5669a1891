//! The bytes of a record: a header of 32, the key, the value, slack.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | crc32 of bytes 8.. up to the end of the value: all but itself, the sequence and the slack |
//! | 4..8 | sequence, odd while the record is being changed in place |
//! | 8..12 | value length |
//! | 12..16 | allocated length: the whole record, a multiple of 16 |
//! | 16..18 | key length |
//! | 18 | flags, reserved: 0 |
//! | 19 | compression, reserved: 0 |
//! | 20..24 | uncompressed length, reserved: 0 |
//! | 24..32 | expiry in milliseconds since 1970, 0 = none |
//!
//! All numbers are little-endian. Invariants: decoding bounds every length by the bytes that are
//! there, whatever they hold, and never panics; a reserved field that is not 0 is an error.

use super::location::{MAX_ALLOCATED, RECORD_ALIGN};
use crate::options::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// Length of the header.
pub(super) const HEADER: usize = 32;
const WORDS: usize = HEADER / 8;
/// The checksum covers the record from here.
const CHECKED_FROM: usize = 8;

const _: () = {
    assert!(HEADER.is_multiple_of(RECORD_ALIGN as usize));
    assert!(MAX_KEY_BYTES <= u16::MAX as usize);
    assert!((HEADER + MAX_KEY_BYTES + MAX_VALUE_BYTES) as u64 <= MAX_ALLOCATED - RECORD_ALIGN);
};

/// The allocated length of a record.
pub(super) fn allocated_len(key_len: usize, value_len: usize) -> u64 {
    ((HEADER + key_len + value_len) as u64).next_multiple_of(RECORD_ALIGN)
}

/// The lengths in a header, checked against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lengths {
    pub(super) key: usize,
    pub(super) value: usize,
}

/// The first word: checksum and sequence, which change together.
pub(super) fn first_word(crc: u32, sequence: u32) -> u64 {
    u64::from(crc) | (u64::from(sequence) << 32)
}

/// The checksum in the first word.
pub(super) fn crc_of(first: u64) -> u32 {
    first as u32
}

/// The sequence in the first word.
pub(super) fn sequence_of(first: u64) -> u32 {
    (first >> 32) as u32
}

/// The words 1..4 of a header.
pub(super) fn other_words(lengths: Lengths, allocated: u64, expiry_ms: u64) -> [u64; WORDS - 1] {
    [lengths.value as u64 | (allocated << 32), lengths.key as u64, expiry_ms]
}

/// The checksum of a record with these header words.
pub(super) fn checksum(words: &[u64; WORDS - 1], key: &[u8], value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for word in words {
        hasher.update(&word.to_le_bytes());
    }
    hasher.update(key);
    hasher.update(value);
    hasher.finalize()
}

/// A whole header, sequence 0.
pub(super) fn encode_header(
    key: &[u8],
    value: &[u8],
    allocated: u64,
    expiry_ms: u64,
) -> [u8; HEADER] {
    let lengths = Lengths { key: key.len(), value: value.len() };
    let words = other_words(lengths, allocated, expiry_ms);
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&first_word(checksum(&words, key, value), 0).to_le_bytes());
    for (to, word) in header[8..].chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// The lengths in the words 1 and 2 of a header, for a record allocated with `allocated` bytes.
pub(super) fn lengths(second: u64, third: u64, allocated: u64) -> Result<Lengths, &'static str> {
    let (value, stored) = (second as u32 as usize, second >> 32);
    let (key, reserved) = (third as u16 as usize, third >> 16);
    if stored != allocated {
        return Err("its length is not the one in the index");
    }
    if reserved != 0 {
        return Err("flags that this release does not know");
    }
    if key == 0 || key > MAX_KEY_BYTES || value > MAX_VALUE_BYTES {
        return Err("a length beyond the limits");
    }
    if (HEADER + key + value) as u64 > allocated {
        return Err("longer than its allocation");
    }
    Ok(Lengths { key, value })
}

/// A record that nobody changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) expiry_ms: u64,
    crc: u32,
    checked: &'a [u8],
}

impl<'a> Record<'a> {
    /// Decodes a record from exactly its allocated bytes, without its checksum.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (header, rest) = bytes.split_at_checked(HEADER).ok_or("shorter than a header")?;
        let word = |i: usize| -> u64 {
            let mut word = [0; 8];
            word.copy_from_slice(&header[i * 8..][..8]);
            u64::from_le_bytes(word)
        };
        let lengths = lengths(word(1), word(2), bytes.len() as u64)?;
        let (key, rest) = rest.split_at(lengths.key);
        Ok(Self {
            key,
            value: &rest[..lengths.value],
            expiry_ms: word(3),
            crc: crc_of(word(0)),
            checked: &bytes[CHECKED_FROM..HEADER + lengths.key + lengths.value],
        })
    }

    /// Checks the content against the checksum.
    pub(super) fn verify(&self) -> Result<(), &'static str> {
        let right = crc32fast::hash(self.checked) == self.crc;
        if right { Ok(()) } else { Err("the checksum is wrong") }
    }
}

/// Checks a whole record, content and all.
pub(crate) fn check_record(bytes: &[u8]) -> Result<(), &'static str> {
    Record::decode(bytes)?.verify()
}

/// The checksum that a record says it has.
pub(super) fn crc_of_record(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |crc| u32::from_le_bytes(*crc))
}

/// The allocated length of the record that these bytes begin with, if its header can be one. Only
/// [`check_record`] of all of them says whether it is.
pub(crate) fn record_len(bytes: &[u8]) -> Option<u64> {
    let header = bytes.get(..HEADER)?;
    let word = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    let (second, third) = (word(8)?, word(16)?);
    let allocated = second >> 32;
    let is_sane = allocated.is_multiple_of(RECORD_ALIGN);
    (is_sane && lengths(second, third, allocated).is_ok()).then_some(allocated)
}

/// The key of a record that was checked.
pub(crate) fn key_of_record(bytes: &[u8]) -> &[u8] {
    Record::decode(bytes).map_or(&[], |record| record.key)
}

/// Makes a copied record one that nobody has changed in place yet.
pub(crate) fn renew_record(bytes: &mut [u8]) {
    if let Some(sequence) = bytes.get_mut(4..8) {
        sequence.fill(0);
    }
}
