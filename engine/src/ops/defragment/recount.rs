//! Counting live bytes anew, to check the running counts. For tests and diagnosis.

use std::collections::BTreeMap;

use crate::core::Core;
use crate::index::{RangeIter, Slot};
use crate::value_log::Location;

impl Core {
    /// Where the running counts of live bytes differ from what the index points to: a line each.
    /// Only right while nobody writes.
    pub(crate) fn recount_live(&self) -> Vec<String> {
        let log = &self.store.value_log;
        let mut segments: BTreeMap<u32, u64> = BTreeMap::new();
        let mut wrong = Vec::new();
        for shard in self.store.table.load_full().shards() {
            let bundle = shard.load();
            let mut entries = RangeIter::new(&bundle, shard.range.clone(), false);
            let mut bytes = 0;
            while let Some(item) = entries.next() {
                if let Slot::Value(at) = item.entry.decode() {
                    let allocated = Location(at).allocated();
                    *segments.entry(log.segment_of(Location(at))).or_default() += allocated;
                    bytes += allocated;
                }
            }
            let counted = shard.live_bytes();
            if counted != bytes {
                wrong.push(format!("shard {}: {counted} counted, {bytes} live", shard.id));
            }
        }
        for number in 0..log.segments_made() {
            let (counted, live) = (log.live_in(number), segments.remove(&number).unwrap_or(0));
            if counted != live {
                wrong.push(format!("value segment {number}: {counted} counted, {live} live"));
            }
        }
        wrong.extend(segments.keys().map(|number| format!("value segment {number} is not there")));
        wrong
    }
}
