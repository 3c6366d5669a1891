//! The range of keys that a command is about: `--prefix`, or `--start` and `--end`.
//!
//! Invariant: a range that ends before it starts is wrong use, not an empty answer.

use bytes::Bytes;
use clap::Args;
use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::limits::{MAX_BOUND_BYTES, MAX_KEY_BYTES};

use crate::encoding::Encoding;
use crate::failure::{Failure, Result};

/// Flags that choose keys; none: all keys.
#[derive(Args, Clone, Debug, Default)]
pub struct RangeArgs {
    /// Only keys that begin with this
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["start", "end"])]
    pub prefix: Option<String>,
    /// The first key [default: the lowest]
    #[arg(long, value_name = "KEY")]
    pub start: Option<String>,
    /// The first key that is left out [default: no upper bound]
    #[arg(long, value_name = "KEY")]
    pub end: Option<String>,
}

impl RangeArgs {
    /// The range as bounds.
    pub fn to_range(&self, encoding: Encoding) -> Result<KeyRange> {
        if let Some(prefix) = &self.prefix {
            let prefix = bound("--prefix", prefix, encoding, MAX_KEY_BYTES)?;
            return Ok(KeyRange::of_prefix(prefix));
        }
        let read = |flag: &str, text: &Option<String>| match text {
            Some(text) => bound(flag, text, encoding, MAX_BOUND_BYTES),
            None => Ok(Bytes::new()),
        };
        let (start, end) = (read("--start", &self.start)?, read("--end", &self.end)?);
        if !end.is_empty() && start > end {
            return Err(Failure::usage("--start is above --end: the range ends before it starts"));
        }
        Ok(KeyRange::new(start, end))
    }

    /// The range as start and end for a request; an empty end is unbounded. None: the range
    /// surely holds no key.
    pub fn to_wire(&self, encoding: Encoding) -> Result<Option<(Bytes, Bytes)>> {
        let range = self.to_range(encoding)?;
        if range.is_empty() {
            return Ok(None);
        }
        Ok(Some(range.into_wire()))
    }
}

fn bound(flag: &str, text: &str, encoding: Encoding, limit: usize) -> Result<Bytes> {
    let bytes = encoding.decode(flag, text).map_err(Failure::usage)?;
    if bytes.len() > limit {
        let message = format!("{flag} is {} bytes, the limit is {limit}", bytes.len());
        return Err(Failure::usage(message));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(prefix: Option<&str>, start: Option<&str>, end: Option<&str>) -> RangeArgs {
        let own = |text: Option<&str>| text.map(str::to_owned);
        RangeArgs { prefix: own(prefix), start: own(start), end: own(end) }
    }

    #[test]
    fn prefixes_become_bounds() {
        let range = args(Some("ab"), None, None).to_wire(Encoding::Utf8).unwrap().unwrap();
        assert_eq!(range, (Bytes::from("ab"), Bytes::from("ac")));
        let range = args(Some("ffff"), None, None).to_wire(Encoding::Hex).unwrap().unwrap();
        assert_eq!(range, (Bytes::from_static(&[0xff, 0xff]), Bytes::new()));
        let all = args(None, None, None).to_wire(Encoding::Utf8).unwrap().unwrap();
        assert_eq!(all, (Bytes::new(), Bytes::new()));
    }

    #[test]
    fn a_range_that_ends_before_it_starts_is_wrong_use() {
        let failure = args(None, Some("b"), Some("a")).to_wire(Encoding::Utf8).unwrap_err();
        assert_eq!(failure.exit(), 2);
        assert_eq!(args(None, Some("a"), Some("a")).to_wire(Encoding::Utf8).unwrap(), None);
        assert!(args(None, Some("xy"), None).to_wire(Encoding::Hex).is_err());
    }
}
