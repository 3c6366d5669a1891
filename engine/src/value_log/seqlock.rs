//! Records that change while they are read: all access is by whole 64-bit atomic words, under the
//! sequence in the record's first word.
//!
//! Invariants: one writer at a time (the key's stripe); the sequence is odd while the writer
//! changes words; a reader that saw the same even sequence before and after has copied one version.
//! Words are never accessed at another size, and no word is shared by two records. What a reader
//! copied is worth nothing until then: every length is bounded by the allocation, and re-read on
//! each attempt.
//!
//! Pairing: the writer's Release fence behind the odd store, with the reader's Acquire fence in
//! front of the second load: a reader that saw any new word sees the odd sequence or a later one.
//! The writer's Release store of the even sequence, with the reader's Acquire first load: who
//! begins with the new sequence copies only new words.

use crate::sync::primitives::atomic::{AtomicU64, Ordering, fence};

use crate::sync::primitives::Backoff;

use super::record::{self, HEADER, Lengths};

/// Copies bytes out of the words, from `offset` on. `out` lies within them.
pub(super) fn load_bytes(words: &[AtomicU64], offset: usize, out: &mut [u8]) {
    let (first, rest) = out.split_at_mut(head_len(offset, out.len()));
    let words = &words[offset / 8..];
    if !first.is_empty() {
        load_part(&words[0], offset % 8, first);
    }
    let words = &words[usize::from(!first.is_empty())..];
    let (whole, last) = rest.as_chunks_mut::<8>();
    for (to, word) in whole.iter_mut().zip(words) {
        *to = load(word, Ordering::Relaxed).to_le_bytes();
    }
    if !last.is_empty() {
        load_part(&words[whole.len()], 0, last);
    }
}

/// Whether the words hold `bytes` at `offset`. `bytes` is no longer than they are.
pub(super) fn holds(words: &[AtomicU64], offset: usize, bytes: &[u8]) -> bool {
    let mut at = offset;
    bytes.chunks(16).all(|part| {
        let mut there = [0; 16];
        load_bytes(words, at, &mut there[..part.len()]);
        at += part.len();
        there[..part.len()] == *part
    })
}

/// Stores bytes into the words, from `offset` on; the only writer meanwhile.
pub(super) fn store_bytes(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    let (first, rest) = bytes.split_at(head_len(offset, bytes.len()));
    let words = &words[offset / 8..];
    if !first.is_empty() {
        store_part(&words[0], offset % 8, first);
    }
    let words = &words[usize::from(!first.is_empty())..];
    let (whole, last) = rest.as_chunks::<8>();
    for (from, word) in whole.iter().zip(words) {
        store(word, u64::from_le_bytes(*from), Ordering::Relaxed);
    }
    if !last.is_empty() {
        store_part(&words[whole.len()], 0, last);
    }
}

/// How many of `len` bytes at `offset` lie in a word that begins before it.
fn head_len(offset: usize, len: usize) -> usize {
    (offset.next_multiple_of(8) - offset).min(len)
}

fn load_part(word: &AtomicU64, within: usize, out: &mut [u8]) {
    let bytes = load(word, Ordering::Relaxed).to_le_bytes();
    out.copy_from_slice(&bytes[within..within + out.len()]);
}

fn store_part(word: &AtomicU64, within: usize, bytes: &[u8]) {
    // The only writer: what it loads is what it or its predecessors stored.
    let mut new = load(word, Ordering::Relaxed).to_le_bytes();
    new[within..within + bytes.len()].copy_from_slice(bytes);
    store(word, u64::from_le_bytes(new), Ordering::Relaxed);
}

fn load(word: &AtomicU64, order: Ordering) -> u64 {
    u64::from_le(word.load(order))
}

fn store(word: &AtomicU64, value: u64, order: Ordering) {
    word.store(value.to_le(), order);
}

/// Changes value and expiry of a record in place. The caller is the record's only writer, `key` is
/// the record's key, and the new value fits.
pub(super) fn overwrite(words: &[AtomicU64], key: &[u8], value: &[u8], expiry_ms: u64) {
    let lengths = Lengths { key: key.len(), value: value.len() };
    let others = record::other_words(lengths, words.len() as u64 * 8, expiry_ms);
    let crc = record::checksum(&others, key, value);
    let first = load(&words[0], Ordering::Relaxed);
    // Even, also when it is damaged.
    let sequence = record::sequence_of(first) & !1;
    let odd = record::first_word(record::crc_of(first), sequence | 1);
    store(&words[0], odd, Ordering::Relaxed);
    // With the Acquire fence in `read`.
    fence(Ordering::Release);
    for (word, new) in words[1..].iter().zip(others) {
        store(word, new, Ordering::Relaxed);
    }
    store_bytes(words, HEADER + key.len(), value);
    // With the first load in `read`.
    store(&words[0], record::first_word(crc, sequence.wrapping_add(2)), Ordering::Release);
}

/// Copies one version of the value into `out` (replacing what is there); answers the expiry. An
/// error says what is wrong with the record.
pub(super) fn read(
    words: &[AtomicU64],
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<u64, &'static str> {
    consistent(words, || copy(words, key, out))
}

/// Copies one version of the whole record.
pub(super) fn snapshot(words: &[AtomicU64], out: &mut Vec<u8>) {
    out.resize(words.len() * 8, 0);
    consistent(words, || load_bytes(words, 0, out));
}

/// The answer of `attempt` from a moment when nobody changed the record.
fn consistent<R>(words: &[AtomicU64], mut attempt: impl FnMut() -> R) -> R {
    let backoff = Backoff::new();
    loop {
        // With the last store of `overwrite`.
        let first = load(&words[0], Ordering::Acquire);
        if record::sequence_of(first).is_multiple_of(2) {
            let answer = attempt();
            // With the Release fence in `overwrite`.
            fence(Ordering::Acquire);
            if load(&words[0], Ordering::Relaxed) == first {
                return answer;
            }
        }
        // Spins a little, then yields.
        backoff.snooze();
    }
}

fn copy(words: &[AtomicU64], key: &[u8], out: &mut Vec<u8>) -> Result<u64, &'static str> {
    let word = |i: usize| load(&words[i], Ordering::Relaxed);
    let lengths = record::lengths(word(1), word(2), words.len() as u64 * 8)?;
    if lengths.key != key.len() || !holds(words, HEADER, key) {
        return Err("it belongs to another key");
    }
    // Only what is new is zeroed, all of it is copied over.
    out.resize(lengths.value, 0);
    load_bytes(words, HEADER + lengths.key, out);
    Ok(word(3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::testing::SeededRandom;
    use std::sync::atomic::AtomicBool;

    fn record(key: &[u8], value: &[u8], room: usize) -> Vec<AtomicU64> {
        let words = record::allocated_len(key.len(), room) as usize / 8;
        let words: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
        store_bytes(&words, HEADER, key);
        overwrite(&words, key, value, 0);
        words
    }

    #[test]
    fn bytes_at_any_offset() {
        let mut random = SeededRandom(1);
        for _ in 0..2000 {
            let mut model = [0; 64];
            let words: Vec<_> = (0..8).map(|_| AtomicU64::new(0)).collect();
            for _ in 0..5 {
                let from = random.below(65) as usize;
                let to = from + random.below(65 - from as u64) as usize;
                let bytes: Vec<u8> = (from..to).map(|_| random.next() as u8).collect();
                model[from..to].copy_from_slice(&bytes);
                store_bytes(&words, from, &bytes);
                assert!(holds(&words, from, &bytes));
            }
            let from = random.below(64) as usize;
            let mut out = vec![0; 64 - from];
            load_bytes(&words, from, &mut out);
            assert_eq!(out, model[from..]);
        }
    }

    #[test]
    fn a_reader_sees_one_whole_version() {
        let key = b"seventeen bytes k";
        let words = record(key, &[0; 100], 300);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut out = Vec::new();
                    let mut versions = 0u32;
                    let mut last = u64::MAX;
                    while !stop.load(Ordering::Relaxed) || versions == 0 {
                        let expiry = read(&words, key, &mut out).unwrap();
                        assert_eq!(out.len() as u64, 100 + expiry % 201);
                        assert!(out.iter().all(|byte| *byte == expiry as u8), "torn");
                        versions += u32::from(expiry != last);
                        last = expiry;
                    }
                });
            }
            for i in 0..300_000u64 {
                overwrite(&words, key, &vec![i as u8; 100 + (i % 201) as usize], i);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let mut out = Vec::new();
        assert!(read(&words, b"another", &mut out).is_err());
    }

    #[test]
    fn garbage_is_an_error_not_a_panic() {
        let mut random = SeededRandom(3);
        let words = record(b"key", b"value", 40);
        let mut out = Vec::new();
        for _ in 0..200_000 {
            let i = random.below(words.len() as u64) as usize;
            let bit = 1 << random.below(64);
            let old = words[i].load(Ordering::Relaxed);
            // An odd sequence would wait for its writer.
            let new = if i == 0 { old & !(1 << 32) } else { old ^ bit };
            words[i].store(new, Ordering::Relaxed);
            let _ = read(&words, b"key", &mut out);
        }
    }
}
