//! [`Position`]: how far a walk over a range has come.
//!
//! Invariants: what is covered is what servers said they covered, and what they sent; a bound that we
//! only believe in (the end of a cached shard) counts once the server was asked for exactly that and
//! said it was done.

use bytes::Bytes;
use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::limits::MAX_KEY_BYTES;
use vmemkv_proto::v1;

use crate::key_range::after;

/// What is left of a range.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    left: KeyRange,
    reverse: bool,
    finished: bool,
}

impl Position {
    pub(crate) fn new(range: KeyRange, reverse: bool) -> Self {
        let finished = range.is_empty();
        Self { left: range, reverse, finished }
    }

    /// Nothing is left.
    pub(crate) fn finished(&self) -> bool {
        self.finished
    }

    /// A key of the shard that comes next.
    pub(crate) fn key(&self) -> Bytes {
        if self.reverse { last_key_below(self.left.end()) } else { self.left.start().clone() }
    }

    /// What of the rest is within a shard.
    pub(crate) fn within(&self, shard: &v1::Shard) -> KeyRange {
        self.left.intersect(&shard.range())
    }

    /// As an answer says it.
    pub(crate) fn covered_to(&self) -> Bytes {
        if self.reverse {
            self.left.end().cloned().unwrap_or_default()
        } else {
            self.left.start().clone()
        }
    }

    /// Where a walk that came to its end stands: at the far bound, which may be unbounded (empty).
    pub(crate) fn far_bound(&self) -> Bytes {
        if self.reverse {
            self.left.start().clone()
        } else {
            self.left.end().cloned().unwrap_or_default()
        }
    }

    /// A server was asked for `asked` and has sent entries up to `last`, covered up to `covered_to`,
    /// and is `done` with all it was asked for. Says whether that is further than before.
    pub(crate) fn advance(
        &mut self,
        asked: &KeyRange,
        last: Option<&Bytes>,
        covered_to: &Bytes,
        done: bool,
    ) -> bool {
        if self.reverse {
            self.advance_down(asked, last, covered_to, done)
        } else {
            self.advance_up(asked, last, covered_to, done)
        }
    }

    fn advance_up(
        &mut self,
        asked: &KeyRange,
        last: Option<&Bytes>,
        covered_to: &Bytes,
        done: bool,
    ) -> bool {
        if done && covered_to.is_empty() {
            match asked.end() {
                Some(end) => return self.up_to(end.clone()),
                None => return self.finish(),
            }
        }
        let sent = last.map(|key| after(key)).unwrap_or_default();
        let mut reached = sent.max(covered_to.clone());
        if let Some(end) = asked.end() {
            reached = reached.min(end.clone());
        }
        self.up_to(reached)
    }

    fn up_to(&mut self, reached: Bytes) -> bool {
        if reached <= *self.left.start() {
            return false;
        }
        if self.left.end().is_some_and(|end| reached >= *end) {
            return self.finish();
        }
        self.left = KeyRange::new(reached, self.left.end().cloned().unwrap_or_default());
        true
    }

    fn advance_down(
        &mut self,
        asked: &KeyRange,
        last: Option<&Bytes>,
        covered_to: &Bytes,
        done: bool,
    ) -> bool {
        // Empty means covered to the lowest key; only believed of who says that it is done.
        let covered = if covered_to.is_empty() {
            done.then(|| asked.start().clone())
        } else {
            Some(covered_to.clone().max(asked.start().clone()))
        };
        let Some(reached) = covered.into_iter().chain(last.cloned()).min() else {
            return false;
        };
        if reached <= *self.left.start() {
            return self.finish();
        }
        if self.left.end().is_some_and(|end| reached >= *end) {
            return false;
        }
        self.left = KeyRange::new(self.left.start().clone(), reached);
        true
    }

    fn finish(&mut self) -> bool {
        self.finished = true;
        true
    }
}

/// The last key below a bound (none: the last of all), given how long keys can be. Below the lowest
/// bound there is none; the empty key stands for it.
pub(crate) fn last_key_below(bound: Option<&Bytes>) -> Bytes {
    let Some(bound) = bound else { return vec![0xff; MAX_KEY_BYTES].into() };
    let mut key = bound.to_vec();
    match key.pop() {
        None | Some(0) => {}
        Some(last) => {
            key.push(last - 1);
            key.resize(MAX_KEY_BYTES.max(key.len()), 0xff);
        }
    }
    key.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: &str, end: &str) -> KeyRange {
        KeyRange::new(start.to_owned().into(), end.to_owned().into())
    }

    #[test]
    fn forward() {
        let mut at = Position::new(range("a", "z"), false);
        let asked = range("a", "m");
        assert!(!at.advance(&asked, None, &"a".into(), true));
        assert!(at.advance(&asked, Some(&"c".into()), &Bytes::new(), false));
        assert_eq!(at.covered_to(), Bytes::from("c\0"));
        assert!(at.advance(&asked, None, &"f".into(), true));
        assert_eq!(at.key(), Bytes::from("f"));
        // Nobody may cover more than was asked for.
        assert!(at.advance(&asked, None, &"x".into(), true));
        assert_eq!(at.key(), Bytes::from("m"));
        assert!(at.advance(&range("m", "z"), None, &"z".into(), true));
        assert!(at.finished());
        let mut at = Position::new(range("a", ""), false);
        assert!(at.advance(&range("a", "m"), None, &Bytes::new(), true) && !at.finished());
        assert!(at.advance(&range("m", ""), None, &Bytes::new(), true) && at.finished());
    }

    #[test]
    fn reverse() {
        let mut at = Position::new(range("", "z"), true);
        let asked = range("m", "z");
        assert!(at.key() < *b"z".as_slice() && at.key() > *b"yzz".as_slice());
        assert!(!at.advance(&asked, None, &"z".into(), true));
        assert!(at.advance(&asked, Some(&"x".into()), &"x".into(), false));
        assert_eq!(at.covered_to(), Bytes::from("x"));
        assert!(at.advance(&asked, None, &"a".into(), true));
        assert_eq!(at.covered_to(), Bytes::from("m"));
        assert!(at.advance(&range("", "m"), None, &Bytes::new(), true) && at.finished());
    }

    #[test]
    fn an_empty_range_is_finished() {
        assert!(Position::new(range("b", "a"), false).finished());
        assert!(!Position::new(range("", ""), true).finished());
    }

    #[test]
    fn the_last_key_below_a_bound() {
        assert_eq!(last_key_below(Some(&Bytes::from("a\0"))), Bytes::from("a"));
        let key = last_key_below(Some(&Bytes::from("b")));
        assert!(key.starts_with(b"a\xff") && key.len() == MAX_KEY_BYTES);
        assert_eq!(last_key_below(None).len(), MAX_KEY_BYTES);
        let longest = after(&[7; MAX_KEY_BYTES]);
        assert_eq!(last_key_below(Some(&longest)), Bytes::from(vec![7; MAX_KEY_BYTES]));
    }
}
