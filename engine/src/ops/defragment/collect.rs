//! What the index points to in some segments, in key order.
//!
//! Invariants: found by walking the index, never by parsing segments, so gaps and stale bytes in
//! them do not matter; an entry that points into the segments during the whole walk is found, for
//! nothing is written there any more; nothing is held between two steps.

use std::collections::HashSet;

use crate::core::Core;
use crate::index::{RangeIter, Slot};
use crate::types::KeyRange;
use crate::value_log::Location;

/// Entries between two questions whether to go on.
const STEP_ENTRIES: usize = 16 << 10;
/// What an examined entry counts for a throttle: about what it costs beside a byte copied.
const BYTES_PER_ENTRY: u64 = 64;

/// What a walk found.
pub(super) struct Collected {
    /// In key order.
    pub(super) locations: Vec<Location>,
    /// Whether it was ended early.
    pub(super) cancelled: bool,
}

impl Core {
    /// The locations in `range` that lie in the segments (`None`: in any).
    pub(super) fn collect(
        &self,
        range: &KeyRange,
        segments: &HashSet<u32>,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Collected {
        let mut locations = Vec::new();
        let mut rest = range.clone();
        let log = &self.store.value_log;
        loop {
            let mut examined = 0;
            let mut last_key: Option<Vec<u8>> = None;
            let table = self.store.table.load_full();
            'shards: for shard in table.covering(&rest) {
                let bundle = shard.load();
                let mut entries = RangeIter::new(&bundle, rest.intersect(&shard.range), false);
                while let Some(item) = entries.next() {
                    if let Slot::Value(at) = item.entry.decode()
                        && segments.contains(&log.segment_of(Location(at)))
                    {
                        locations.push(Location(at));
                    }
                    examined += 1;
                    if examined == STEP_ENTRIES {
                        last_key = Some(item.key.to_vec());
                        break 'shards;
                    }
                }
            }
            let cancelled = !goes_on(examined as u64 * BYTES_PER_ENTRY);
            match last_key {
                Some(mut key) if !cancelled => {
                    key.push(0);
                    rest.start = key;
                }
                _ => return Collected { locations, cancelled },
            }
        }
    }
}
