//! What a scan asks for.
//!
//! Invariants: start, end and prefix have become one range; a range that holds no key is an empty
//! scan, not an error.

use std::num::NonZeroU64;

use crate::check::invalid;
use crate::convert::KeyRange;
use crate::limits::MAX_KEY_BYTES;
use crate::status::ApiError;
use crate::v1;

/// A checked [`v1::ScanRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The keys: start and end, within the prefix.
    pub range: KeyRange,
    /// At most this many entries; none: all.
    pub limit: Option<NonZeroU64>,
    /// From the last key to the first.
    pub reverse: bool,
    /// Leave the values out.
    pub keys_only: bool,
    /// The shard that the caller means, if it said so.
    pub route: Option<v1::RouteHint>,
}

impl Scan {
    /// The wire form, without a prefix. An empty range becomes one that is empty on the wire too.
    pub fn into_wire(self) -> v1::ScanRequest {
        let (start, end) = self.range.into_wire();
        v1::ScanRequest {
            start,
            end,
            prefix: bytes::Bytes::new(),
            limit: self.limit.map_or(0, NonZeroU64::get),
            reverse: self.reverse,
            keys_only: self.keys_only,
            route: self.route,
        }
    }
}

impl TryFrom<v1::ScanRequest> for Scan {
    type Error = ApiError;

    fn try_from(wire: v1::ScanRequest) -> Result<Self, ApiError> {
        if wire.prefix.len() > MAX_KEY_BYTES {
            let found = wire.prefix.len();
            let how = format!("{found} is above the limit of {MAX_KEY_BYTES} bytes");
            return Err(invalid("prefix", &how));
        }
        let bounds = KeyRange::checked(wire.start, wire.end)?;
        Ok(Self {
            range: bounds.intersect(&KeyRange::of_prefix(wire.prefix)),
            limit: NonZeroU64::new(wire.limit),
            reverse: wire.reverse,
            keys_only: wire.keys_only,
            route: wire.route,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(start: &'static [u8], end: &'static [u8], prefix: &'static [u8]) -> Scan {
        let wire = v1::ScanRequest {
            start: start.into(),
            end: end.into(),
            prefix: prefix.into(),
            ..Default::default()
        };
        Scan::try_from(wire).unwrap()
    }

    fn bounds(scan: Scan) -> (Vec<u8>, Vec<u8>) {
        let (start, end) = scan.range.into_wire();
        (start.to_vec(), end.to_vec())
    }

    #[test]
    fn a_prefix_meets_start_and_end() {
        assert_eq!(bounds(scan(b"", b"", b"")), (vec![], vec![]));
        let of = |start: &[u8], end: &[u8]| (start.to_vec(), end.to_vec());
        assert_eq!(bounds(scan(b"", b"", b"ab")), of(b"ab", b"ac"));
        assert_eq!(bounds(scan(b"abc", b"", b"ab")), of(b"abc", b"ac"));
        assert_eq!(bounds(scan(b"", b"abx", b"ab")), of(b"ab", b"abx"));
        assert_eq!(bounds(scan(b"a", b"z", b"\xff")), of(b"\xff", b"z"));
        assert!(scan(b"a", b"z", b"\xff").range.is_empty());
        assert_eq!(bounds(scan(b"", b"", b"\xff\xff")), of(b"\xff\xff", b""));
        assert!(scan(b"b", b"", b"a").range.is_empty());
    }

    #[test]
    fn limits() {
        assert_eq!(scan(b"", b"", b"").limit, None);
        let long =
            v1::ScanRequest { prefix: vec![0; MAX_KEY_BYTES + 1].into(), ..Default::default() };
        let error = Scan::try_from(long).unwrap_err();
        assert!(error.message.starts_with("prefix: "), "{error}");
    }

    #[test]
    fn the_wire_form_asks_for_the_same() {
        for some in [
            scan(b"a", b"", b"ab"),
            scan(b"b", b"", b"a"),
            Scan {
                limit: NonZeroU64::new(7),
                reverse: true,
                keys_only: true,
                route: Some(v1::RouteHint::default()),
                ..scan(b"", b"x", b"")
            },
        ] {
            assert_eq!(Scan::try_from(some.clone().into_wire()), Ok(some));
        }
    }
}
