//! Ranges of keys: half open, by byte order.
//!
//! Invariants: `end` is never an empty key (on the wire empty means unbounded), so that a range and
//! its wire form say the same.

use bytes::Bytes;

use crate::check::check_bound;
use crate::status::ApiError;

/// The keys from `start` on and below `end`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key; empty: from the lowest.
    start: Bytes,
    /// First key behind the range; none: unbounded.
    end: Option<Bytes>,
}

impl KeyRange {
    /// Every key.
    pub fn all() -> Self {
        Self::default()
    }

    /// A range from wire bounds, without a check of their length: for what a peer committed.
    pub fn new(start: Bytes, end: Bytes) -> Self {
        Self { start, end: Some(end).filter(|end| !end.is_empty()) }
    }

    /// A range from the bounds of a request, whose length is checked.
    pub fn checked(start: Bytes, end: Bytes) -> Result<Self, ApiError> {
        check_bound("start", &start)?;
        check_bound("end", &end)?;
        Ok(Self::new(start, end))
    }

    /// The keys that begin with `prefix`.
    pub fn of_prefix(prefix: Bytes) -> Self {
        let end = prefix_end(&prefix);
        Self { start: prefix, end }
    }

    /// The first key; empty: from the lowest.
    pub fn start(&self) -> &Bytes {
        &self.start
    }

    /// The first key behind the range; none: unbounded.
    pub fn end(&self) -> Option<&Bytes> {
        self.end.as_ref()
    }

    /// Whether no key at all is within.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// Whether `key` is within.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_ref() && self.end.as_ref().is_none_or(|end| key < end.as_ref())
    }

    /// Whether every key of `other` is within.
    pub fn contains_range(&self, other: &Self) -> bool {
        let end_within = match (&self.end, &other.end) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(end), Some(other)) => other <= end,
        };
        other.is_empty() || (self.start <= other.start && end_within)
    }

    /// The keys that are in both; may be empty.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        let start = self.start.clone().max(other.start.clone());
        let end = match (&self.end, &other.end) {
            (Some(a), Some(b)) => Some(a.min(b).clone()),
            (Some(end), None) | (None, Some(end)) => Some(end.clone()),
            (None, None) => None,
        };
        Self { start, end }
    }

    /// Whether a key is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty() && !other.is_empty() && !self.intersect(other).is_empty()
    }

    /// The bounds as on the wire: an empty end is unbounded.
    pub fn into_wire(self) -> (Bytes, Bytes) {
        (self.start, self.end.unwrap_or_default())
    }
}

/// The first key above all keys that begin with `prefix`; none: there is no such key, as for an
/// empty prefix or one of 0xff only.
pub fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_BOUND_BYTES;

    fn range(start: &'static [u8], end: &'static [u8]) -> KeyRange {
        KeyRange::new(Bytes::from_static(start), Bytes::from_static(end))
    }

    #[test]
    fn the_end_of_a_prefix_is_above_all_its_keys() {
        let end = |prefix: &[u8]| prefix_end(prefix).map(|end| end.to_vec());
        assert_eq!(end(b""), None);
        assert_eq!(end(b"\xff"), None);
        assert_eq!(end(b"\xff\xff\xff"), None);
        assert_eq!(end(b"a"), Some(b"b".to_vec()));
        assert_eq!(end(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(end(b"\xff\xfe"), Some(b"\xff\xff".to_vec()));
        assert_eq!(end(b"\xff\x00\xff"), Some(b"\xff\x01".to_vec()));
        assert_eq!(end(b"\x00"), Some(b"\x01".to_vec()));
    }

    #[test]
    fn a_prefix_range_holds_exactly_its_keys() {
        let alphabet = [0x00, 0x01, b'a', 0xfe, 0xff];
        let mut keys: Vec<Vec<u8>> = vec![Vec::new()];
        for length in 0..3 {
            let longer: Vec<_> = keys
                .iter()
                .filter(|key| key.len() == length)
                .flat_map(|key| alphabet.map(|byte| [key.as_slice(), &[byte]].concat()))
                .collect();
            keys.extend(longer);
        }
        for prefix in &keys {
            let range = KeyRange::of_prefix(prefix.clone().into());
            for key in &keys {
                assert_eq!(range.contains(key), key.starts_with(prefix));
            }
        }
    }

    #[test]
    fn bounds_are_half_open() {
        let some = range(b"b", b"d");
        assert!(!some.contains(b"a") && some.contains(b"b") && some.contains(b"c\xff"));
        assert!(!some.contains(b"d"));
        assert!(range(b"b", b"").contains(b"\xff"));
        assert!(KeyRange::all().contains(b"") && !KeyRange::all().is_empty());
        assert!(range(b"b", b"b").is_empty() && range(b"c", b"b").is_empty());
    }

    #[test]
    fn intersections() {
        let some = range(b"b", b"d");
        assert_eq!(some.intersect(&KeyRange::all()), some);
        assert_eq!(KeyRange::all().intersect(&some), some);
        assert_eq!(some.intersect(&range(b"c", b"")), range(b"c", b"d"));
        assert!(some.intersect(&range(b"d", b"")).is_empty());
        assert!(some.overlaps(&range(b"", b"b\0")) && !some.overlaps(&range(b"", b"b")));
        assert!(!some.overlaps(&range(b"c", b"c")));
    }

    #[test]
    fn ranges_within_ranges() {
        let some = range(b"b", b"d");
        assert!(some.contains_range(&some) && some.contains_range(&range(b"c", b"cc")));
        assert!(!some.contains_range(&range(b"c", b"")));
        assert!(!some.contains_range(&range(b"a", b"c")));
        assert!(some.contains_range(&range(b"z", b"a")));
        assert!(KeyRange::all().contains_range(&range(b"c", b"")));
    }

    #[test]
    fn bounds_of_a_request_have_a_limit() {
        let long = Bytes::from(vec![1; MAX_BOUND_BYTES + 1]);
        let error = KeyRange::checked(Bytes::new(), long.clone()).unwrap_err();
        assert!(error.message.starts_with("end: "), "{error}");
        let error = KeyRange::checked(long, Bytes::new()).unwrap_err();
        assert!(error.message.starts_with("start: "), "{error}");
    }

    #[test]
    fn the_wire_form_says_the_same() {
        for some in [KeyRange::all(), range(b"a", b"b"), range(b"a", b"")] {
            let (start, end) = some.clone().into_wire();
            assert_eq!(KeyRange::new(start, end), some);
        }
    }
}
