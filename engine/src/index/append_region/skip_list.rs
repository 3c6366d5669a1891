//! The order of an append region's nodes: a skip list without locks, insert-only.
//!
//! Invariants: each level is ascending and holds a subset of the level below; a node, once linked,
//! stays; a walker that came upon a node finds it again from any node before it. Links are set
//! from the lowest level up, so whoever reaches a node at a level finds its lower links set.

use crate::sync::primitives::atomic::{AtomicPtr, Ordering};
use std::cmp::Ordering as Order;

use super::arena::Arena;
use super::node::{MAX_HEIGHT, Node, NodeRef};
use crate::index::entry::Entry;

/// A skip list over nodes of `arena`, with a head that has no key.
pub(super) struct SkipList {
    arena: Arena,
    head: AtomicPtr<Node>,
}

impl SkipList {
    pub(super) fn new() -> Self {
        let arena = Arena::new();
        let head = NodeRef::create(&arena, &[], Entry::tombstone(), MAX_HEIGHT).as_ptr();
        Self { arena, head: AtomicPtr::new(head) }
    }

    /// The node behind a link.
    #[inline]
    fn follow(&self, link: &AtomicPtr<Node>) -> Option<NodeRef<'_>> {
        // Acquire: pairs with the Release stores and exchanges of links in `insert`: the node is
        // complete, and so are its lower links.
        // SAFETY: links only ever hold nodes of this list's arena, which lives as long as `self`.
        unsafe { NodeRef::from_ptr(link.load(Ordering::Acquire)) }
    }

    #[inline]
    fn head(&self) -> NodeRef<'_> {
        // SAFETY: set in `new` to a node of the arena (never null), never changed; whoever shares
        // the list got it after `new`.
        unsafe { NodeRef::from_ptr(self.head.load(Ordering::Relaxed)).unwrap_unchecked() }
    }

    /// The last node of `level` at or behind `from` whose key is less than `key`, and the one
    /// behind it.
    #[inline]
    fn walk<'a>(
        &'a self,
        mut from: NodeRef<'a>,
        level: usize,
        key: &[u8],
    ) -> (NodeRef<'a>, Option<NodeRef<'a>>) {
        loop {
            match self.follow(from.next(level)) {
                Some(next) if next.key() < key => from = next,
                next => return (from, next),
            }
        }
    }

    /// Makes a node for a key that is not in the list, and links it.
    pub(super) fn insert(&self, key: &[u8], entry: Entry, random: u64) -> NodeRef<'_> {
        let mut places = [(self.head(), None); MAX_HEIGHT];
        let mut from = self.head();
        for level in (0..MAX_HEIGHT).rev() {
            places[level] = self.walk(from, level, key);
            from = places[level].0;
        }
        debug_assert!(places[0].1.is_none_or(|next| next.key() != key), "the key is there already");
        let height = (1 + random.trailing_zeros() as usize / 2).min(MAX_HEIGHT);
        let node = NodeRef::create(&self.arena, key, entry, height);
        for (level, place) in places.iter().enumerate().take(height) {
            let (mut before, mut behind) = *place;
            loop {
                let expected = behind.map_or(std::ptr::null_mut(), NodeRef::as_ptr);
                // Relaxed: published by the exchange below.
                node.next(level).store(expected, Ordering::Relaxed);
                if level == 0 {
                    node.prev().store(before.as_ptr(), Ordering::Relaxed);
                }
                crate::index::race_window();
                // Release: pairs with the Acquire load in `follow`. Relaxed on failure: the value
                // is not used, `walk` loads it again.
                let linked = before.next(level).compare_exchange(
                    expected,
                    node.as_ptr(),
                    Ordering::Release,
                    Ordering::Relaxed,
                );
                if linked.is_ok() {
                    break;
                }
                (before, behind) = self.walk(before, level, key);
            }
            if let (0, Some(behind)) = (level, behind) {
                // Release: pairs with the Acquire load in `follow`. Racing inserts may leave an
                // earlier node here than the last one before; `before` copes.
                behind.prev().store(node.as_ptr(), Ordering::Release);
            }
        }
        node
    }

    /// The first node.
    #[cfg(test)]
    pub(super) fn first(&self) -> Option<NodeRef<'_>> {
        self.follow(self.head().next(0))
    }

    /// The last node.
    pub(super) fn last(&self) -> Option<NodeRef<'_>> {
        let mut at = self.head();
        for level in (0..MAX_HEIGHT).rev() {
            while let Some(next) = self.follow(at.next(level)) {
                at = next;
            }
        }
        self.unless_head(at)
    }

    /// The last node with a key less than `key`, and the first with one that is not.
    pub(super) fn seek(&self, key: &[u8]) -> (Option<NodeRef<'_>>, Option<NodeRef<'_>>) {
        let mut place = (self.head(), None);
        for level in (0..MAX_HEIGHT).rev() {
            place = self.walk(place.0, level, key);
        }
        (self.unless_head(place.0), place.1)
    }

    /// The node behind `node`.
    pub(super) fn behind<'a>(&'a self, node: NodeRef<'a>) -> Option<NodeRef<'a>> {
        self.follow(node.next(0))
    }

    /// The node before `node`: from the back link, or the few nodes behind it that came since.
    pub(super) fn before<'a>(&'a self, node: NodeRef<'a>) -> Option<NodeRef<'a>> {
        let mut at = self.follow(node.prev())?;
        loop {
            match self.follow(at.next(0)) {
                Some(next) if next == node => return self.unless_head(at),
                Some(next) if next.key().cmp(node.key()) == Order::Less => at = next,
                // Not reached: whoever holds `node` finds it from each node before it.
                _ => return self.seek(node.key()).0,
            }
        }
    }

    fn unless_head<'a>(&'a self, node: NodeRef<'a>) -> Option<NodeRef<'a>> {
        (node != self.head()).then_some(node)
    }

    /// Memory of the nodes in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.arena.used_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::test_keys::yield_in_race_windows;

    fn keys(list: &SkipList, level: usize) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut at = list.head();
        while let Some(next) = list.follow(at.next(level)) {
            keys.push(next.key().to_vec());
            at = next;
        }
        keys
    }

    #[test]
    fn a_stale_back_link_is_no_obstacle() {
        let list = SkipList::new();
        let nodes: Vec<_> =
            (0..10u8).map(|n| list.insert(&[n], Entry::value(0), u64::MAX)).collect();
        for n in 1..10 {
            for stale in 0..n {
                nodes[n].prev().store(nodes[stale].as_ptr(), Ordering::Release);
                assert!(list.before(nodes[n]) == Some(nodes[n - 1]));
            }
            nodes[n].prev().store(list.head().as_ptr(), Ordering::Release);
            assert!(list.before(nodes[n]) == Some(nodes[n - 1]));
        }
        assert!(list.before(nodes[0]).is_none());
    }

    /// Threads insert neighbours at the same time, on several levels.
    #[test]
    fn neighbours_inserted_at_once_stay_in_order() {
        const THREADS: u32 = 4;
        const EACH: u32 = 2000;
        let list = SkipList::new();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let list = &list;
                scope.spawn(move || {
                    yield_in_race_windows();
                    for n in (0..EACH).rev() {
                        let mut key = (n * THREADS + thread).to_le_bytes();
                        key.reverse();
                        list.insert(&key, Entry::value(0), 1 << (n % 8));
                    }
                });
            }
        });
        assert_eq!(keys(&list, 0).len(), (THREADS * EACH) as usize);
        for level in 0..MAX_HEIGHT {
            assert!(keys(&list, level).is_sorted_by(|a, b| a < b), "level {level}");
        }
        let mut node = list.last();
        let mut count = 0;
        while let Some(at) = node {
            count += 1;
            node = list.before(at);
        }
        assert_eq!(count, THREADS * EACH);
    }
}
