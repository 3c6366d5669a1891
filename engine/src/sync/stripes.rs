//! Locks and words by key hash. A *stripe* is a lock that every writer of a key holds from its
//! look-up to its log append; a *word* tells readers how far the log must be durable before they
//! may show what they read.
//!
//! Invariants:
//! - each word lies under exactly one stripe: `stripe = word mod STRIPES`;
//! - a word holds the LSN of the last write of any of its keys; it never goes back;
//! - from before the first byte of T2 or T1 changes until the write's LSN is known, the word's
//!   in-flight bit is set, so a reader that saw any of the change waits for the LSN;
//! - a holder that is dropped in flight (a panic) leaves [`UNKNOWN`]: readers get an error from
//!   the poisoned log, and nobody hangs.

use crate::sync::primitives::atomic::{AtomicU64, Ordering};

use crate::sync::primitives::Backoff;
use crate::sync::primitives::{Mutex, MutexGuard};
use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::types::Lsn;

/// Few under the explorer, so that keys meet and a pass is short.
const STRIPES: usize = if cfg!(shuttle) { 4 } else { 1024 };
const WORDS: usize = if cfg!(shuttle) { 8 } else { 1 << 16 };
const IN_FLIGHT: u64 = 1 << 63;
/// An LSN that no log reaches.
const UNKNOWN: u64 = IN_FLIGHT - 1;

const _: () = assert!(WORDS.is_multiple_of(STRIPES));

/// The hash that picks a key's word and stripe. Never stored.
pub(crate) fn key_hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// Which word a key's readers look at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct WordIndex(u32);

impl WordIndex {
    /// The word of a key.
    pub(crate) fn of(key: &[u8]) -> Self {
        Self((key_hash(key) % WORDS as u64) as u32)
    }

    /// Which of `count` parts of all stripes its stripe belongs to.
    pub(crate) fn share(self, count: usize) -> usize {
        self.stripe() % count
    }

    fn stripe(self) -> usize {
        self.0 as usize % STRIPES
    }
}

/// The arrays of locks and words.
pub(crate) struct Stripes {
    locks: Box<[CachePadded<Mutex<()>>]>,
    words: Box<[AtomicU64]>,
}

impl Stripes {
    /// Free stripes, and words at `durable`: everything recovered is durable.
    pub(crate) fn new(durable: Lsn) -> Self {
        Self {
            locks: (0..STRIPES).map(|_| CachePadded::new(Mutex::new(()))).collect(),
            words: (0..WORDS).map(|_| AtomicU64::new(durable.0)).collect(),
        }
    }

    /// Locks the stripes of all `words`, in ascending order, so that batches cannot deadlock.
    pub(crate) fn lock(&self, words: impl IntoIterator<Item = WordIndex>) -> Held<'_> {
        let mut words: SmallVec<[WordIndex; 1]> = words.into_iter().collect();
        words.sort_unstable();
        words.dedup();
        let mut stripes: SmallVec<[usize; 1]> = words.iter().map(|word| word.stripe()).collect();
        stripes.sort_unstable();
        stripes.dedup();
        let guards = stripes.into_iter().map(|stripe| self.locks[stripe].lock()).collect();
        Held { stripes: self, words, _guards: guards, in_flight: false }
    }

    /// Waits for every writer that holds a stripe now: afterwards, no writer works with a pointer
    /// that it loaded before this call.
    pub(crate) fn pass(&self) {
        for lock in &self.locks {
            drop(lock.lock());
        }
    }

    /// The LSN that a reader must see durable before it shows what it has copied. The caller
    /// copied first; call this after.
    pub(crate) fn settle(&self, word: WordIndex) -> Lsn {
        // Orders the caller's copy before the load. Pairs with the Release stores in `begin` and
        // `commit`: whoever saw a writer's change also sees its in-flight bit, or a later word.
        crate::sync::primitives::atomic::fence(Ordering::Acquire);
        let backoff = Backoff::new();
        loop {
            let value = self.words[word.0 as usize].load(Ordering::Acquire);
            if value & IN_FLIGHT == 0 {
                return Lsn(value);
            }
            // Bounded by a copy into T2 and into the ring: writers wait for nothing in flight.
            backoff.snooze();
        }
    }
}

/// Held stripes of one write.
pub(crate) struct Held<'a> {
    stripes: &'a Stripes,
    words: SmallVec<[WordIndex; 1]>,
    _guards: SmallVec<[MutexGuard<'a, ()>; 1]>,
    in_flight: bool,
}

impl Held<'_> {
    /// The newest LSN of the held words: the ticket of a write that changes nothing.
    pub(crate) fn ticket(&self) -> Lsn {
        // Relaxed: only holders of the stripe write the word, and the lock orders them.
        let load = |word: &WordIndex| self.stripes.words[word.0 as usize].load(Ordering::Relaxed);
        Lsn(self.words.iter().map(load).max().unwrap_or(0))
    }

    /// Sets the in-flight bits. From here to [`commit`](Self::commit) nothing may fail or block.
    pub(crate) fn begin(&mut self) {
        for word in &self.words {
            self.stripes.words[word.0 as usize].fetch_or(IN_FLIGHT, Ordering::AcqRel);
        }
        self.in_flight = true;
        // Orders the bits before every store of the change itself, relaxed ones included. Pairs
        // with the fence in `settle`.
        crate::sync::primitives::atomic::fence(Ordering::SeqCst);
    }

    /// Publishes the write's LSN and unlocks.
    pub(crate) fn commit(mut self, lsn: Lsn) {
        for word in &self.words {
            // Release: pairs with the Acquire in `settle`.
            self.stripes.words[word.0 as usize].store(lsn.0, Ordering::Release);
        }
        self.in_flight = false;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.in_flight {
            for word in &self.words {
                self.stripes.words[word.0 as usize].store(UNKNOWN, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_shows_the_last_write_and_a_panic_shows_unknown() {
        let stripes = Stripes::new(Lsn(7));
        let word = WordIndex::of(b"k");
        assert_eq!(stripes.settle(word), Lsn(7));
        let mut held = stripes.lock([word, word]);
        assert_eq!(held.ticket(), Lsn(7));
        held.begin();
        held.commit(Lsn(64));
        assert_eq!(stripes.settle(word), Lsn(64));
        let mut held = stripes.lock([word]);
        held.begin();
        drop(held);
        assert_eq!(stripes.settle(word), Lsn(UNKNOWN));
        stripes.pass();
    }

    #[test]
    fn batches_over_the_same_stripes_do_not_deadlock() {
        let stripes = Stripes::new(Lsn(0));
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let stripes = &stripes;
                scope.spawn(move || {
                    for round in 0..2000u32 {
                        let words = (0..8u32)
                            .map(|i| WordIndex::of(&(i * 7 + round + thread).to_le_bytes()));
                        let mut held = stripes.lock(words);
                        held.begin();
                        held.commit(Lsn(u64::from(round)));
                    }
                });
            }
        });
    }
}
