//! Which write of a key a follower of its changes has seen last.
//!
//! Invariants: pure but for the notes of [`Skips`]; two writes of a key may have left the same
//! value, so what is known is a set, which is never empty; a write is passed over only if it was
//! not made, or if it left a missing key missing.

use std::ops::RangeInclusive;

use super::keys::Keys;
use super::skips::{Skip, Skips};

/// How many older writes are searched for a value that does not fit; for people.
const SEARCHED: u64 = 1000;

/// What a follower has seen of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// The writes of which one was the last that was shown, ascending.
    pub(super) writes: Vec<u64>,
    /// The revision of the last change that was shown.
    pub(super) revision: u64,
}

/// What is known of the writes of one key.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) keys: &'a Keys,
    pub(super) skips: &'a Skips,
    pub(super) key: usize,
}

impl Seen {
    /// Of a key that nobody has written.
    pub(super) fn nothing() -> Self {
        Self { writes: vec![0], revision: 0 }
    }

    /// After something that says no more than this; `writes` must have one that was made.
    pub(super) fn any_of(writes: RangeInclusive<u64>, revision: u64, known: Known<'_>) -> Self {
        let least = *writes.start();
        let made = writes.filter(|n| *n == least || known.skip(*n) != Some(Skip::Never));
        Self { writes: made.collect(), revision }
    }

    /// A change to `value` is shown, when `attempted` writes had been attempted.
    pub(super) fn change(
        &mut self,
        value: Option<&[u8]>,
        revision: u64,
        attempted: u64,
        known: Known<'_>,
    ) -> Result<(), String> {
        let mut after = Vec::new();
        for &from in &self.writes {
            for n in from + 1..=attempted {
                let fits = known.skip(n) != Some(Skip::Never)
                    && known.keys.written(known.key, n).as_deref() == value;
                if fits && !after.contains(&n) {
                    after.push(n);
                }
                if !known.may_be_missing(n, from) {
                    break;
                }
            }
        }
        if after.is_empty() {
            let newest = self.writes.last().copied().unwrap_or(0);
            let mut others =
                (newest + 1..=attempted).chain((newest.saturating_sub(SEARCHED)..=newest).rev());
            let found = others.find(|n| known.keys.written(known.key, *n).as_deref() == value);
            let what = match (found, value) {
                (Some(n), _) => format!("is the one of write {n}"),
                (None, None) => "is a delete".to_owned(),
                (None, Some(value)) => format!("has {} bytes that nobody wrote", value.len()),
            };
            let before = &self.writes;
            return Err(format!(
                "the change of revision {revision} after write {before:?} {what}, of {attempted}"
            ));
        }
        after.sort_unstable();
        *self = Self { writes: after, revision };
        Ok(())
    }

    /// Everything has been shown that was durable when write `least` was.
    pub(super) fn complete(&mut self, least: u64, known: Known<'_>) -> Result<(), String> {
        let before = self.writes.clone();
        let missing = |from: u64| (from + 1..=least).find(|n| !known.may_be_missing(*n, from));
        self.writes.retain(|from| missing(*from).is_none());
        match before.iter().filter_map(|from| missing(*from)).max() {
            Some(n) if self.writes.is_empty() => Err(format!(
                "everything is said to have been shown, and write {n} is missing after write \
                 {before:?}; writes up to {least} were acknowledged"
            )),
            _ => Ok(()),
        }
    }
}

impl Known<'_> {
    fn skip(&self, n: u64) -> Option<Skip> {
        self.skips.get(self.key, n)
    }

    /// Whether write `n` may have left no change when the key was as write `from` left it.
    fn may_be_missing(&self, n: u64, from: u64) -> bool {
        let is_gone = |n| self.keys.written(self.key, n).is_none();
        self.skip(n).is_some() || is_gone(n) && is_gone(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key with two deletes, a put between them, and what its writes are.
    struct Bench {
        keys: Keys,
        skips: Skips,
        key: usize,
        _folder: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let skips = Skips::open(&folder.path().join("skips")).expect("notes");
            // A unit of a range: every sixth write deletes.
            let keys = Keys::new(3);
            let key = keys.units[0].last().expect("a range").keys[0];
            assert!(keys.written(key, 6).is_none() && keys.written(key, 12).is_none());
            Self { keys, skips, key, _folder: folder }
        }

        fn known(&self) -> Known<'_> {
            Known { keys: &self.keys, skips: &self.skips, key: self.key }
        }

        fn show(&self, seen: &mut Seen, n: u64) -> Result<(), String> {
            let value = self.keys.written(self.key, n);
            seen.change(value.as_deref(), 10 + n, 40, self.known())
        }
    }

    #[test]
    fn each_write_once_and_in_order() {
        let bench = Bench::new();
        let mut seen = Seen::nothing();
        for n in 1..9 {
            bench.show(&mut seen, n).expect("the next");
            assert_eq!(seen, Seen { writes: vec![n], revision: 10 + n });
            seen.complete(n, bench.known()).expect("complete");
        }
        for wrong in [8, 7, 10, 11] {
            let error = bench.show(&mut seen.clone(), wrong).expect_err("wrong");
            assert!(error.contains(&format!("is the one of write {wrong},")), "{error}");
        }
        let torn = seen.clone().change(Some(b"torn bytes"), 30, 40, bench.known());
        assert!(torn.expect_err("torn").contains("nobody wrote"));
        let error = seen.complete(9, bench.known()).expect_err("write 9 is missing");
        assert!(error.contains("write 9 is missing after write [8]"), "{error}");
    }

    #[test]
    fn what_was_not_made_is_passed_over() {
        let bench = Bench::new();
        bench.skips.note(bench.key, 2, Skip::Never).expect("a note");
        bench.skips.note(bench.key, 3, Skip::Perhaps).expect("a note");
        let mut seen = Seen { writes: vec![1], revision: 1 };
        assert!(bench.show(&mut seen.clone(), 2).is_err(), "it was not made");
        seen.complete(3, bench.known()).expect("nothing is missing");
        for first in [3, 4] {
            let mut seen = seen.clone();
            bench.show(&mut seen, first).expect("either");
            assert_eq!(seen.writes, [first]);
        }
        assert!(seen.complete(4, bench.known()).is_err());
    }

    #[test]
    fn a_delete_of_a_missing_key_need_not_be_shown() {
        let bench = Bench::new();
        // 12 is another delete.
        for n in 7..12 {
            bench.skips.note(bench.key, n, Skip::Never).expect("a note");
        }
        let mut seen = Seen { writes: vec![6], revision: 1 };
        seen.complete(12, bench.known()).expect("nothing is missing");
        bench.show(&mut seen.clone(), 12).expect("it may be");
        bench.show(&mut seen, 13).expect("the next");
        assert_eq!(seen.writes, [13]);
        assert!(Seen { writes: vec![5], revision: 1 }.complete(12, bench.known()).is_err());
    }

    #[test]
    fn what_is_not_known_becomes_known() {
        let bench = Bench::new();
        bench.skips.note(bench.key, 3, Skip::Never).expect("a note");
        let mut seen = Seen::any_of(1..=5, 9, bench.known());
        assert_eq!(seen.writes, [1, 2, 4, 5]);
        bench.show(&mut seen, 5).expect("after write 4");
        assert_eq!(seen.writes, [5]);
    }
}
