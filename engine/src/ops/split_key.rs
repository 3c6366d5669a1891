//! Where to cut a shard in two, and how much lies on either side.
//!
//! Invariants: of a sorted region of many blocks [`MAX_SAMPLES`] are looked at, and what lies from
//! the middle's stretch on until half of the estimate has been passed: mostly one stretch. This is
//! no bound where samples mislead: of a shard that is nearly all tombstones, or whose samples show
//! fewer than two live keys, all of it may be gone over, once for each question. Of the append
//! regions, which are bounded themselves, always all. A cut has a live key on both sides. A shard of
//! few blocks is cut exactly.

use crate::index::{AppendRegion, Bundle, RangeIter, Shard, Slot, SortedCursor};
use crate::store::slot_bytes;
use crate::types::KeyRange;

/// Blocks of a sorted region that are looked at.
const MAX_SAMPLES: usize = 512;

/// A key to split at, and about how many bytes lie before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    pub(super) key: Vec<u8>,
    pub(super) bytes_before: u64,
}

/// What a stretch of keys holds.
#[derive(Clone, Copy, Default, Debug)]
struct Held {
    /// Halved by a cut: bytes of the value log, and the place in the index, so that keys without
    /// values are halved too.
    weight: u64,
    /// Bytes of the value log.
    bytes: u64,
}

impl Held {
    fn add(&mut self, key: &[u8], slot: Slot, times: u64) {
        if !matches!(slot, Slot::Tombstone) {
            let bytes = slot_bytes(slot);
            self.weight += (bytes + key.len() as u64 + 16) * times;
            self.bytes += bytes * times;
        }
    }

    fn and(self, other: Self) -> Self {
        Self { weight: self.weight + other.weight, bytes: self.bytes + other.bytes }
    }
}

/// The key that halves a shard; `None` if it has less than two.
pub(super) fn find_cut(shard: &Shard) -> Option<Cut> {
    let bundle = shard.load();
    let stretches = Stretches::of(&bundle, &shard.range);
    stretches.cut(&bundle, &shard.range).or_else(|| {
        // What was looked at had no two live keys.
        Stretches::exact(&bundle, &shard.range).cut(&bundle, &shard.range)
    })
}

/// Bytes of a shard's entries before `key`, about.
pub(super) fn bytes_below(shard: &Shard, key: &[u8]) -> u64 {
    let bundle = shard.load();
    let stretches = Stretches::of(&bundle, &shard.range);
    let below = |(start, _): &(Vec<u8>, Held)| start.as_slice() < key;
    let count = stretches.held.iter().take_while(|stretch| below(stretch)).count();
    let Some(((start, last), whole)) = stretches.held[..count].split_last() else { return 0 };
    let whole: u64 = whole.iter().map(|(_, held)| held.bytes).sum();
    if stretches.held.len() == 1 {
        let range = shard.range.intersect(&KeyRange::new(start.clone(), key));
        return Stretches::exact(&bundle, &range).total().bytes;
    }
    whole + last.bytes / 2
}

/// A range in stretches of keys.
struct Stretches {
    /// The first key that may be in each, and what it holds, about. Not empty.
    held: Vec<(Vec<u8>, Held)>,
}

impl Stretches {
    /// About what a range holds; as one stretch, exactly, if it has few blocks.
    fn of(bundle: &Bundle, range: &KeyRange) -> Self {
        let samples = bundle.sorted.sample(range, MAX_SAMPLES);
        if samples.iter().all(|(_, blocks)| *blocks == 1) {
            return Self::exact(bundle, range);
        }
        let mut held: Vec<(Vec<u8>, Held)> = Vec::with_capacity(samples.len());
        for (mut cursor, blocks) in samples {
            let first = cursor.key().unwrap_or_default().to_vec();
            let start = if held.is_empty() { range.start.clone() } else { first };
            held.push((start, of_block(&mut cursor, range, blocks)));
        }
        let mut stretches = Self { held };
        for region in [Some(&*bundle.active), bundle.frozen.as_deref()].into_iter().flatten() {
            stretches.add_region(region, range);
        }
        stretches
    }

    /// What a range holds, as one stretch; goes over all of it.
    fn exact(bundle: &Bundle, range: &KeyRange) -> Self {
        let mut held = Held::default();
        let mut entries = RangeIter::new(bundle, range.clone(), false);
        while let Some(item) = entries.next() {
            held.add(item.key, item.entry.decode(), 1);
        }
        Self { held: vec![(range.start.clone(), held)] }
    }

    fn add_region(&mut self, region: &AppendRegion, range: &KeyRange) {
        let mut entries = region.cursor();
        entries.seek_at_or_after(&range.start);
        let mut at = 0;
        while let (Some(key), Some(cell)) = (entries.key(), entries.cell()) {
            if !range.contains(key) {
                break;
            }
            while self.held.get(at + 1).is_some_and(|(start, _)| start.as_slice() <= key) {
                at += 1;
            }
            self.held[at].1.add(key, cell.load().decode(), 1);
            entries.next();
        }
    }

    fn total(&self) -> Held {
        self.held.iter().fold(Held::default(), |sum, (_, held)| sum.and(*held))
    }

    /// Goes over the stretch in which the middle lies.
    fn cut(&self, bundle: &Bundle, range: &KeyRange) -> Option<Cut> {
        let total = self.total();
        let mut before = Held::default();
        let mut start = &range.start;
        for (first, held) in &self.held {
            start = first;
            if 2 * before.and(*held).weight >= total.weight {
                break;
            }
            before = before.and(*held);
        }
        let from = KeyRange::new(start.clone(), range.end.clone());
        let mut entries = RangeIter::new(bundle, from, false);
        let mut last: Vec<u8> = Vec::new();
        let mut cut = None;
        while let Some(item) = entries.next() {
            let slot = item.entry.decode();
            if matches!(slot, Slot::Tombstone) {
                continue;
            }
            if !last.is_empty() {
                // Kept up to the last key: a huge one at the end is cut off.
                let key = separator(&last, item.key);
                cut = Some(Cut { key, bytes_before: before.bytes });
                if 2 * before.weight >= total.weight {
                    break;
                }
            }
            before.add(item.key, slot, 1);
            last.clear();
            last.extend_from_slice(item.key);
        }
        cut
    }
}

/// What the block at a cursor's place holds of a range, so many times.
fn of_block(cursor: &mut SortedCursor<'_>, range: &KeyRange, times: usize) -> Held {
    let mut held = Held::default();
    while let (Some(key), Some(cell)) = (cursor.key(), cursor.cell()) {
        if range.contains(key) {
            held.add(key, cell.load().decode(), times as u64);
        }
        cursor.next();
        if cursor.whole_block().is_some() {
            break;
        }
    }
    held
}

/// The shortest key that is above `before` and not above `key`.
fn separator(before: &[u8], key: &[u8]) -> Vec<u8> {
    let common = before.iter().zip(key).take_while(|(a, b)| a == b).count();
    key[..key.len().min(common + 1)].to_vec()
}
