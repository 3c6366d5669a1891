//! What the index keeps for a key: a 64-bit payload and a tag outside those 64 bits.
//!
//! Invariants: every 64-bit payload and every value of up to 8 bytes is legal, since what an entry
//! *is* stands in the tag; an entry has one representation only (unused payload bytes and tag bits
//! are zero), so equal entries compare equal.

/// Bits of [`Tag`]: the length of an inline value.
const LEN_MASK: u8 = 0b0000_1111;
/// Bits of [`Tag`]: what the payload is.
const KIND_MASK: u8 = 0b0011_0000;
/// The payload is a location in the value log.
const KIND_VALUE: u8 = 0b0000_0000;
/// The payload is the value itself.
const KIND_INLINE: u8 = 0b0001_0000;
/// The key is deleted.
const KIND_TOMBSTONE: u8 = 0b0010_0000;
/// The record may carry an expiry time (reserved: never set by this version; never with inline).
const MAY_EXPIRE: u8 = 0b0100_0000;
/// Zero in this version.
const RESERVED: u8 = 0b1000_0000;

/// Longest inline value.
const MAX_INLINE: usize = crate::options::MAX_INLINE_BYTES;

const _: () = {
    assert!(LEN_MASK | KIND_MASK | MAY_EXPIRE | RESERVED == u8::MAX);
    assert!(LEN_MASK & KIND_MASK == 0 && MAY_EXPIRE & (LEN_MASK | KIND_MASK | RESERVED) == 0);
    assert!(KIND_VALUE | KIND_INLINE | KIND_TOMBSTONE | KIND_MASK == KIND_MASK);
    assert!(KIND_VALUE != KIND_INLINE && KIND_INLINE != KIND_TOMBSTONE);
    assert!(MAX_INLINE == 8 && MAX_INLINE <= LEN_MASK as usize);
    assert!(size_of::<Tag>() == 1);
};

/// The byte that says what a payload is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag(u8);

impl Tag {
    /// The tag with these bits, or `None` when this version does not know them.
    pub(crate) fn from_bits(bits: u8) -> Option<Self> {
        let len = bits & LEN_MASK;
        let legal = bits & RESERVED == 0
            && match bits & KIND_MASK {
                KIND_VALUE => len == 0,
                KIND_INLINE => usize::from(len) <= MAX_INLINE && bits & MAY_EXPIRE == 0,
                KIND_TOMBSTONE => len == 0 && bits & MAY_EXPIRE == 0,
                _ => false,
            };
        legal.then_some(Self(bits))
    }

    /// The tag as stored.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// Whether the key is deleted.
    pub(crate) const fn is_tombstone(self) -> bool {
        self.0 & KIND_MASK == KIND_TOMBSTONE
    }

    /// Bits that a cell was given by [`Entry`]: known to be legal.
    pub(super) const fn trusted(bits: u8) -> Self {
        Self(bits)
    }
}

/// A decoded entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    /// The value is in the value log, at this location.
    Value(u64),
    /// The value is these bytes, of which the first `len` count.
    Inline([u8; 8], usize),
    /// The key is deleted.
    Tombstone,
}

/// An entry of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// A location, or an inline value (little-endian, zero-padded); 0 for a tombstone.
    pub(crate) payload: u64,
    /// What the payload is.
    pub(crate) tag: Tag,
}

impl Entry {
    /// The value is in the value log at `location`, any 64 bits.
    pub(crate) const fn value(location: u64) -> Self {
        Self { payload: location, tag: Tag(KIND_VALUE) }
    }

    /// The value itself, if it has at most 8 bytes.
    pub(crate) fn inline(value: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_INLINE];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        let tag = Tag(KIND_INLINE | value.len() as u8);
        Some(Self { payload: u64::from_le_bytes(bytes), tag })
    }

    /// The key is deleted.
    pub(crate) const fn tombstone() -> Self {
        Self { payload: 0, tag: Tag(KIND_TOMBSTONE) }
    }

    /// The entry with this stored payload and tag, or `None` when no entry is stored like that.
    pub(crate) fn from_stored(payload: u64, tag: u8) -> Option<Self> {
        let entry = Self { payload, tag: Tag::from_bits(tag)? };
        let canonical = match entry.decode() {
            Slot::Value(_) => true,
            Slot::Inline(bytes, len) => bytes[len..].iter().all(|&byte| byte == 0),
            Slot::Tombstone => payload == 0,
        };
        canonical.then_some(entry)
    }

    /// What the entry says.
    #[inline]
    pub(crate) fn decode(self) -> Slot {
        match self.tag.0 & KIND_MASK {
            KIND_VALUE => Slot::Value(self.payload),
            KIND_INLINE => {
                Slot::Inline(self.payload.to_le_bytes(), usize::from(self.tag.0 & LEN_MASK))
            }
            _ => Slot::Tombstone,
        }
    }

    /// Whether the key is deleted.
    #[inline]
    pub(crate) const fn is_tombstone(self) -> bool {
        self.tag.is_tombstone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_up_to_eight_bytes_is_legal() {
        for byte in [0u8, 1, 0x7f, 0xff] {
            for len in 0..=8usize {
                let value = vec![byte; len];
                let entry = Entry::inline(&value).unwrap();
                let Slot::Inline(bytes, n) = entry.decode() else { panic!("not inline") };
                assert_eq!(&bytes[..n], &value[..]);
                assert!(!entry.is_tombstone());
                assert_eq!(Entry::from_stored(entry.payload, entry.tag.bits()), Some(entry));
            }
        }
        assert_eq!(Entry::inline(&[0; 9]), None);
        assert_eq!(Entry::value(u64::MAX).decode(), Slot::Value(u64::MAX));
        assert_eq!(Entry::tombstone().decode(), Slot::Tombstone);
        assert_ne!(Entry::inline(&[0]), Entry::inline(&[0, 0]));
        assert_ne!(Entry::inline(&[]), Some(Entry::tombstone()));
    }

    #[test]
    fn only_known_tags_are_accepted() {
        let legal = (0..=u8::MAX).filter(|&bits| Tag::from_bits(bits).is_some()).count();
        assert_eq!(legal, 2 + 9 + 1); // value, value that may expire, inline 0..=8, tombstone
        assert_eq!(Entry::from_stored(1, Entry::tombstone().tag.bits()), None);
        let short = Entry::inline(b"a").unwrap();
        assert_eq!(Entry::from_stored(short.payload | 0x100, short.tag.bits()), None);
    }
}
