//! Where an entry is kept: payload and tag, read and changed as one under a sequence lock.
//!
//! Invariants: a reader never gets the payload of one entry with the tag of another; a reader that
//! gets an entry sees everything its writer did before [`CellRef::store`] (in particular the
//! in-flight bit of the key's stripe word). One key has one writer at a time (its stripe); cells
//! of several keys may share a sequence lock, then their writers take turns.
//!
//! A cell of a sorted region also has a *changed* bit: its entry is in no index file yet. It is
//! set together with the entry, inside the key's stripe. Whoever reads or clears bits has frozen
//! the shard and passed every stripe, and that pass orders the two; so the bits need no ordering
//! of their own.

use crate::sync::primitives::atomic::{
    AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use super::entry::{Entry, Tag};

/// A sequence lock: odd while an entry under it is being changed.
#[derive(Default)]
pub(super) struct Sequence(AtomicU32);

/// A place in the index that holds an entry. Cheap to copy.
#[derive(Clone, Copy)]
pub(crate) struct CellRef<'a> {
    sequence: &'a Sequence,
    payload: &'a AtomicU64,
    tag: &'a AtomicU8,
    tombstones: &'a AtomicUsize,
    /// The bits of the cell's block, and which of them is the cell's.
    changed: Option<(&'a AtomicU64, u64)>,
}

impl<'a> CellRef<'a> {
    /// The cell made of these parts. `tombstones` counts the tombstones of the cell's region.
    #[inline]
    pub(super) fn new(
        sequence: &'a Sequence,
        payload: &'a AtomicU64,
        tag: &'a AtomicU8,
        tombstones: &'a AtomicUsize,
    ) -> Self {
        Self { sequence, payload, tag, tombstones, changed: None }
    }

    /// The same cell with a changed bit: number `index` of `bits`.
    #[inline]
    pub(super) fn with_changed(self, bits: &'a AtomicU64, index: usize) -> Self {
        Self { changed: Some((bits, 1 << index)), ..self }
    }

    /// The entry.
    #[inline]
    pub(crate) fn load(&self) -> Entry {
        let mut spins = 0u32;
        loop {
            // Acquire: pairs with the Release store that ends `store`, so that the entry and all
            // that its writer did before are seen.
            let before = self.sequence.0.load(Ordering::Acquire);
            if before & 1 == 0 {
                let payload = self.payload.load(Ordering::Relaxed);
                super::race_window();
                let tag = self.tag.load(Ordering::Relaxed);
                // Acquire fence: pairs with the Release fence in `store`. If either load above got
                // a newer entry's part, the load below gets that writer's odd number or a later
                // one.
                fence(Ordering::Acquire);
                if self.sequence.0.load(Ordering::Relaxed) == before {
                    return Entry { payload, tag: Tag::trusted(tag) };
                }
            }
            relax(&mut spins);
        }
    }

    /// Changes the entry. The caller holds the key's stripe, and has made sure that this region
    /// may be changed (see [`Bundle::publish`](super::Bundle::publish)). Never fails or panics.
    #[inline]
    pub(crate) fn store(&self, entry: Entry) {
        let mut spins = 0u32;
        let mut now = self.sequence.0.load(Ordering::Relaxed);
        loop {
            if now & 1 == 0 {
                // Acquire: pairs with the Release store below of the writer before (of another
                // key under this lock), so that a reader who sees this change sees that one's
                // causes too, and this writer's stores come after that one's.
                match self.sequence.0.compare_exchange_weak(
                    now,
                    now.wrapping_add(1),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => break,
                    Err(other) => now = other,
                }
            } else {
                relax(&mut spins);
                now = self.sequence.0.load(Ordering::Relaxed);
            }
        }
        // Release fence: pairs with the Acquire fence in `load`.
        fence(Ordering::Release);
        let was = Tag::trusted(self.tag.load(Ordering::Relaxed)).is_tombstone();
        self.payload.store(entry.payload, Ordering::Relaxed);
        super::race_window();
        self.tag.store(entry.tag.bits(), Ordering::Relaxed);
        // Relaxed: read after a pass over the stripes only. Most changes find it set.
        if let Some((bits, bit)) = self.changed
            && bits.load(Ordering::Relaxed) & bit == 0
        {
            bits.fetch_or(bit, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire loads in `load` and in the next `store`.
        self.sequence.0.store(now.wrapping_add(2), Ordering::Release);
        // Relaxed: a statistic, nothing is ordered by it.
        match (was, entry.is_tombstone()) {
            (false, true) => self.tombstones.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.tombstones.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

/// Waits a moment for a writer, whose section is a few instructions unless it was preempted.
#[cold]
fn relax(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(64) {
        crate::sync::primitives::thread::yield_now();
    } else {
        crate::sync::primitives::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::test_keys::{StopOnDrop, yield_in_race_windows};
    use std::sync::atomic::AtomicBool;

    /// Two keys under one lock, two writers, readers: each entry is whole, and is one of its own
    /// key's.
    #[test]
    fn an_entry_is_never_torn() {
        const LAST: u64 = 20_000;
        let sequence = Sequence::default();
        let payloads = [AtomicU64::new(0), AtomicU64::new(0)];
        let tags = [AtomicU8::new(0), AtomicU8::new(0)];
        let tombstones = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let cell = |key: usize| CellRef::new(&sequence, &payloads[key], &tags[key], &tombstones);
        // The tag follows from the payload.
        let entry = |key: usize, n: u64| match n % 3 {
            0 => Entry::value(u64::MAX - 2 * n - key as u64),
            1 => Entry::inline(&(2 * n + key as u64).to_le_bytes()).unwrap(),
            _ => Entry::tombstone(),
        };
        std::thread::scope(|scope| {
            for key in 0..2 {
                cell(key).store(entry(key, 0));
            }
            let writers: Vec<_> = (0..2)
                .map(|key| {
                    scope.spawn(move || {
                        yield_in_race_windows();
                        (1..=LAST).for_each(|n| cell(key).store(entry(key, n)));
                    })
                })
                .collect();
            for _ in 0..2 {
                scope.spawn(|| {
                    yield_in_race_windows();
                    while !stop.load(Ordering::Relaxed) {
                        for key in 0..2 {
                            let got = cell(key).load();
                            let n = match got.decode() {
                                super::super::Slot::Value(at) => (u64::MAX - at) / 2,
                                super::super::Slot::Inline(bytes, _) => {
                                    u64::from_le_bytes(bytes) / 2
                                }
                                super::super::Slot::Tombstone => 2,
                            };
                            assert_eq!(got, entry(key, n));
                        }
                    }
                });
            }
            let stopping = StopOnDrop(&stop);
            for writer in writers {
                writer.join().unwrap();
            }
            drop(stopping);
        });
        assert_eq!(cell(0).load(), entry(0, LAST));
        let dead = (0..2).filter(|&key| cell(key).load().is_tombstone()).count();
        assert_eq!(tombstones.load(Ordering::Relaxed), dead);
    }

    /// What a writer did before the store is seen by whoever sees the entry.
    #[test]
    fn an_entry_carries_what_came_before_it() {
        let (sequence, payload, tag) = (Sequence::default(), AtomicU64::new(0), AtomicU8::new(0));
        let (tombstones, word) = (AtomicUsize::new(0), AtomicU64::new(0));
        let cell = CellRef::new(&sequence, &payload, &tag, &tombstones);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=200_000 {
                    word.store(n, Ordering::Relaxed);
                    cell.store(Entry::value(n));
                }
            });
            scope.spawn(|| {
                loop {
                    let seen = cell.load().payload;
                    assert!(word.load(Ordering::Relaxed) >= seen);
                    if seen == 200_000 {
                        break;
                    }
                }
            });
        });
    }
}
