//! Scans, a chunk at a time and in both directions.
//!
//! Invariants:
//! - between two chunks nothing is held; a chunk's memory is bounded by bytes, and its work by
//!   [`EXAMINED`] entries, tombstones included;
//! - the chunk waits for the word of every entry that it examined, tombstones too: a delete that a
//!   crash could undo must not hide a key;
//! - each key that is there from before the chunk to after it is delivered once.

use crossbeam_epoch::Guard;

use crate::api::{ScanChunk, ScanOptions};
use crate::core::Core;
use crate::error::Result;
use crate::index::{RangeIter, Shard, Slot};
use crate::ops::scan_path::ScanPath;
use crate::options::Visibility;
use crate::stats::Counters;
use crate::sync::WordIndex;
use crate::types::{KeyRange, Lsn};
use crate::value_log::{Access, Location};

/// Most entries that one chunk examines.
const EXAMINED: usize = 1 << 16;
/// Size of a chunk when the caller does not say.
const CHUNK_BYTES: usize = 1 << 20;

/// Whether a walk goes on after an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    /// To the next entry.
    On,
    /// This was the last one.
    Stop,
}

/// An entry that a walk shows.
pub(crate) struct Visited<'a> {
    /// Its shard.
    pub(crate) shard: &'a Shard,
    /// Its key.
    pub(crate) key: &'a [u8],
    /// What the index says.
    pub(crate) slot: Slot,
    /// Under which to read it.
    pub(crate) guard: &'a Guard,
}

/// Takes an entry.
type Visit<'a> = dyn FnMut(&Visited<'_>) -> Result<Walk> + 'a;

/// How far a walk came.
pub(crate) struct Walked {
    /// As in [`ScanChunk`].
    pub(crate) covered_to: Vec<u8>,
    /// Whether the range has been walked to its end.
    pub(crate) done: bool,
    /// What was seen is safe once this is durable.
    pub(crate) lsn: Lsn,
}

impl Core {
    /// The next part of a scan. One that meets an entry which cannot be read delivers what comes
    /// before it; the next one, which begins with it, is an error that names the key.
    pub(crate) fn scan(&self, options: &ScanOptions) -> Result<ScanChunk> {
        let max_bytes = if options.max_bytes == 0 { CHUNK_BYTES } else { options.max_bytes };
        let mut entries: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut bytes = 0;
        let mut full = false;
        let mut unreadable: Option<Vec<u8>> = None;
        let mut path = ScanPath::default();
        let mut walked = self.walk(&options.range, options.reverse, &mut |visited| {
            let Visited { shard, key, slot, guard } = *visited;
            if let (Slot::Value(at), false) = (slot, options.keys_only) {
                self.note_scan_read(&mut path, shard, Location(at));
            }
            let value = if options.keys_only && !matches!(slot, Slot::Tombstone) {
                Some(Vec::new())
            } else {
                match self.store.read_slot(key, slot, Access::Scan, guard) {
                    Err(_) if !entries.is_empty() => {
                        unreadable = Some(key.to_vec());
                        return Ok(Walk::Stop);
                    }
                    value => value?,
                }
            };
            if let Some(value) = value {
                bytes += key.len() + value.len();
                entries.push((key.to_vec(), value));
            }
            full = options.limit != 0 && entries.len() >= options.limit;
            Ok(if full || bytes >= max_bytes { Walk::Stop } else { Walk::On })
        })?;
        if let Some(key) = unreadable {
            // In reverse the walk ends with the entry; what is delivered ends right behind it.
            walked.covered_to = key;
            if options.reverse {
                walked.covered_to.push(0);
            }
        }
        self.wait_visible(walked.lsn)?;
        Counters::add(&self.store.counters.scan_chunks, 1);
        Counters::add(&self.store.counters.scan_entries, entries.len() as u64);
        Ok(ScanChunk { entries, covered_to: walked.covered_to, done: walked.done || full })
    }

    /// Shows the entries of a range in order, tombstones included, until `visit` stops it or it
    /// has examined enough. The caller waits for the answer's LSN before it passes anything on.
    pub(crate) fn walk(
        &self,
        range: &KeyRange,
        reverse: bool,
        visit: &mut Visit<'_>,
    ) -> Result<Walked> {
        let mut words: Vec<WordIndex> = Vec::new();
        let mut last_key: Option<Vec<u8>> = None;
        let mut stopped = range.is_empty();
        if !stopped {
            // Held to the end of the chunk, so that what the index points to is not reused.
            let guard = crossbeam_epoch::pin();
            let table = self.store.table.load_full();
            let shards = table.covering(range);
            'shards: for number in 0..shards.len() {
                let shard = &shards[if reverse { shards.len() - 1 - number } else { number }];
                let bundle = shard.load();
                self.note_scan(shard, &bundle);
                let mut entries = RangeIter::new(&bundle, range.intersect(&shard.range), reverse);
                while let Some(item) = entries.next() {
                    words.push(WordIndex::of(item.key));
                    let slot = item.entry.decode();
                    let walk = visit(&Visited { shard, key: item.key, slot, guard: &guard })?;
                    if walk == Walk::Stop || words.len() == EXAMINED {
                        last_key = Some(item.key.to_vec());
                        stopped = true;
                        break 'shards;
                    }
                }
            }
        }
        let covered_to = match last_key {
            Some(mut key) => {
                if !reverse {
                    key.push(0);
                }
                key
            }
            None if reverse => range.start.clone(),
            None => range.end.clone(),
        };
        let lsn = match self.store.options.visibility {
            Visibility::Applied => Lsn(0),
            Visibility::Durable => {
                words.sort_unstable();
                words.dedup();
                words.iter().map(|word| self.stripes.settle(*word)).max().unwrap_or_default()
            }
        };
        Ok(Walked { covered_to, done: !stopped || range.is_empty(), lsn })
    }
}
