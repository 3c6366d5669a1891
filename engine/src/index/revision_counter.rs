//! Where a shard's revisions come from, over splits and merges too.
//!
//! Invariants: what is taken while the log's place is reserved is in log order, for all shards that
//! share a counter; a counter that a shard leaves is left at or below the one that it gets.
//!
//! # Over a split and a merge
//!
//! A writer that has loaded the table before it was swapped (a *straggler*) still takes revisions of
//! the old shard, and may log after the first writes of the new one. So until the stripes have been
//! passed old and new shards share one counter: the children of a split begin with the parent's
//! and part when no straggler is left ([`part`](RevisionCounter::part)); the two shards of a merge
//! get the merged one's before it is published ([`unite`](RevisionCounter::unite)). A shard leaves a
//! counter under that counter's lock, and a writer that has locked one looks again whether it is
//! still the shard's: nobody takes a revision from a counter that was left.
//!
//! Locks of several counters are taken in key order, which is the same for old and new ones.

use std::sync::Arc;

use crate::sync::primitives::ArcSwap;
use crate::sync::primitives::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::types::Revision;

/// A shard's counter, perhaps shared with other shards.
pub(crate) struct RevisionCounter {
    current: ArcSwap<Mutex<u64>>,
}

/// Locked counters of several shards.
pub(crate) struct LockedCounters<'a> {
    guards: SmallVec<[MutexGuard<'a, u64>; 1]>,
    /// For each shard, which guard is its.
    which: SmallVec<[usize; 1]>,
}

impl LockedCounters<'_> {
    /// Takes `count` revisions of the shard number `shard`; the first of them.
    pub(crate) fn take(&mut self, shard: usize, count: u64) -> Revision {
        let last = &mut *self.guards[self.which[shard]];
        let first = *last + 1;
        *last += count;
        Revision(first)
    }
}

impl RevisionCounter {
    /// A counter behind `last`.
    pub(crate) fn new(last: Revision) -> Self {
        Self { current: ArcSwap::from_pointee(Mutex::new(last.0)) }
    }

    /// Another handle of the same counter.
    pub(crate) fn share(&self) -> Self {
        Self { current: ArcSwap::new(self.current.load_full()) }
    }

    /// The last revision handed out.
    pub(crate) fn last(&self) -> Revision {
        Revision(*self.current.load().lock())
    }

    /// Hands out nothing at or below `revision` any more.
    pub(crate) fn raise(&self, revision: Revision) {
        let current = self.current.load();
        let mut last = current.lock();
        *last = revision.0.max(*last);
    }

    /// Calls `act` with the counters of these shards locked, which are in key order.
    pub(crate) fn lock_all<R>(
        counters: &[&RevisionCounter],
        act: impl FnOnce(LockedCounters<'_>) -> R,
    ) -> R {
        loop {
            let held: SmallVec<[_; 1]> =
                counters.iter().map(|counter| counter.current.load()).collect();
            let mut guards: SmallVec<[MutexGuard<'_, u64>; 1]> = SmallVec::new();
            let mut which: SmallVec<[usize; 1]> = SmallVec::new();
            for (at, counter) in held.iter().enumerate() {
                // Only neighbours share one: it is locked once.
                if at == 0 || !Arc::ptr_eq(&held[at - 1], counter) {
                    guards.push(counter.lock());
                }
                which.push(guards.len() - 1);
            }
            let still_theirs = counters
                .iter()
                .zip(&held)
                .all(|(counter, held)| Arc::ptr_eq(&counter.current.load(), held));
            if still_theirs {
                return act(LockedCounters { guards, which });
            }
        }
    }

    /// Calls `act` with the last revision of a counter that both share, and gives each its own
    /// before the next revision is taken.
    pub(crate) fn part<R>(left: &Self, right: &Self, act: impl FnOnce(Revision) -> R) -> R {
        let shared = left.current.load_full();
        let last = shared.lock();
        let answer = act(Revision(*last));
        for counter in [left, right] {
            counter.current.store(Arc::new(Mutex::new(*last)));
        }
        answer
    }

    /// Lets two neighbours share one counter from here on; another handle of it.
    pub(crate) fn unite(left: &Self, right: &Self) -> Self {
        let (old_left, old_right) = (left.current.load_full(), right.current.load_full());
        let last_left = old_left.lock();
        let last_right = (!Arc::ptr_eq(&old_left, &old_right)).then(|| old_right.lock());
        let last = last_right.as_ref().map_or(*last_left, |last| (**last).max(*last_left));
        let united = Arc::new(Mutex::new(last));
        left.current.store(Arc::clone(&united));
        right.current.store(Arc::clone(&united));
        Self { current: ArcSwap::new(united) }
    }

    /// Calls `act` with the last revision handed out; none is taken meanwhile.
    pub(crate) fn with_last<R>(&self, act: impl FnOnce(Revision) -> R) -> R {
        let current = self.current.load_full();
        let last = current.lock();
        act(Revision(*last))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn take(counter: &RevisionCounter) -> u64 {
        RevisionCounter::lock_all(&[counter], |mut locked| locked.take(0, 1).0)
    }

    #[test]
    fn children_go_on_behind_the_parent_and_a_merged_shard_behind_both() {
        let parent = RevisionCounter::new(Revision(10));
        let (left, right) = (parent.share(), parent.share());
        assert_eq!((take(&left), take(&parent), take(&right)), (11, 12, 13));
        let at = RevisionCounter::part(&left, &right, |last| last);
        assert_eq!((at, take(&left), take(&right)), (Revision(13), 14, 14));
        assert_eq!((15..20).map(|_| take(&right)).last(), Some(19));
        let merged = RevisionCounter::unite(&left, &right);
        assert_eq!((take(&left), take(&right), take(&merged)), (20, 21, 22));
        assert_eq!(merged.last(), Revision(22));
        let both = [&left, &right, &merged];
        let taken = RevisionCounter::lock_all(&both, |mut locked| {
            [locked.take(0, 2), locked.take(2, 1), locked.take(1, 1)]
        });
        assert_eq!(taken, [Revision(23), Revision(25), Revision(26)]);
    }

    /// Threads take revisions in pairs while the counters part and unite: each sees its own grow,
    /// and nobody hangs.
    #[test]
    fn revisions_grow_while_counters_part_and_unite() {
        let left = RevisionCounter::new(Revision(0));
        let right = left.share();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = (Revision(0), Revision(0));
                    while !stop.load(Ordering::Relaxed) {
                        let taken = RevisionCounter::lock_all(&[&left, &right], |mut locked| {
                            (locked.take(0, 1), locked.take(1, 1))
                        });
                        assert!(taken.0 > last.0 && taken.1 > last.1, "{last:?} {taken:?}");
                        last = taken;
                    }
                });
            }
            for _ in 0..3000 {
                RevisionCounter::part(&left, &right, |_| ());
                let merged = RevisionCounter::unite(&left, &right);
                assert!(left.last() <= merged.last());
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
