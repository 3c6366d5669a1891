//! Ranges of keys as callers write them.
//!
//! Invariants: a range is half open, `[start, end)`; inclusive ends become the next key.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use bytes::Bytes;
pub use vmemkv_proto::convert::KeyRange;

/// What can be given as a range of keys: `..`, `"a".."b"`, `"a"..`, `.."b"`, `"a"..="b"`, or a
/// [`KeyRange`] (for one, [`KeyRange::of_prefix`]).
pub trait IntoKeyRange {
    /// The range.
    fn into_key_range(self) -> KeyRange;
}

impl IntoKeyRange for KeyRange {
    fn into_key_range(self) -> KeyRange {
        self
    }
}

impl IntoKeyRange for RangeFull {
    fn into_key_range(self) -> KeyRange {
        KeyRange::all()
    }
}

impl<K: AsRef<[u8]>> IntoKeyRange for Range<K> {
    /// An end that is an empty key ends before every key.
    fn into_key_range(self) -> KeyRange {
        below(copy(&self.start), copy(&self.end))
    }
}

impl<K: AsRef<[u8]>> IntoKeyRange for RangeInclusive<K> {
    fn into_key_range(self) -> KeyRange {
        KeyRange::new(copy(self.start()), after(self.end().as_ref()))
    }
}

impl<K: AsRef<[u8]>> IntoKeyRange for RangeFrom<K> {
    fn into_key_range(self) -> KeyRange {
        KeyRange::new(copy(&self.start), Bytes::new())
    }
}

impl<K: AsRef<[u8]>> IntoKeyRange for RangeTo<K> {
    /// An end that is an empty key ends before every key.
    fn into_key_range(self) -> KeyRange {
        below(Bytes::new(), copy(&self.end))
    }
}

impl<K: AsRef<[u8]>> IntoKeyRange for RangeToInclusive<K> {
    fn into_key_range(self) -> KeyRange {
        KeyRange::new(Bytes::new(), after(self.end.as_ref()))
    }
}

/// The first key behind `key`.
pub(crate) fn after(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

fn copy(key: &impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(key.as_ref())
}

/// On the wire an empty end means unbounded, so a range that ends at the empty key, and therefore
/// holds nothing, is written as one that is empty there too.
fn below(start: Bytes, end: Bytes) -> KeyRange {
    if end.is_empty() {
        let nothing = Bytes::from_static(b"\0");
        return KeyRange::new(nothing.clone(), nothing);
    }
    KeyRange::new(start, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_ranges_mean_what_they_say() {
        assert_eq!((..).into_key_range(), KeyRange::all());
        let range = ("a".."c").into_key_range();
        assert!(range.contains(b"a") && range.contains(b"bz") && !range.contains(b"c"));
        let range = ("a"..="c").into_key_range();
        assert!(range.contains(b"c") && !range.contains(b"c\0"));
        let range = (..=vec![0xffu8]).into_key_range();
        assert!(range.contains(&[0xff]) && !range.contains(&[0xff, 0]));
        assert!(("b"..).into_key_range().contains(b"zz"));
        assert!(("".."").into_key_range().is_empty());
        assert!((..String::new()).into_key_range().is_empty());
        assert!(("b".."a").into_key_range().is_empty());
    }
}
