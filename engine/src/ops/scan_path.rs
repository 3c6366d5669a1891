//! Where a scan jumps between places on the device, and whether it waits for the disk there.
//!
//! Invariants: a read is looked at before it is made, for it brings its pages to memory; of the
//! jumps a few are looked at and stand for the others, so a scan of records in memory pays little
//! for it and touches nothing shared. Who looks changes nothing.

use crate::core::Core;
use crate::index::Shard;
use crate::stats::Counters;
use crate::value_log::Location;

/// One jump in so many is looked at: to ask the kernel takes about as long as a record in memory.
const SAMPLED: u64 = 64;
/// Records up to this size; a larger one costs about the same wherever it lies.
const SMALL_BYTES: u64 = 8 << 10;

/// The way of one scan over the value log.
#[derive(Default)]
pub(super) struct ScanPath {
    last: Option<Location>,
}

impl ScanPath {
    /// The scan is about to read the record at `next`: whether that is a jump to look at.
    fn samples(&mut self, next: Location) -> bool {
        let Some(last) = self.last.replace(next) else { return false };
        let is_jump = !next.is_close_behind(last) && !last.is_close_behind(next);
        is_jump && next.allocated() <= SMALL_BYTES && is_chosen(next)
    }
}

/// By its place, evenly, so that no scan needs a state of its own for it.
fn is_chosen(location: Location) -> bool {
    location.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) < u64::MAX / SAMPLED
}

impl Core {
    /// Counts what a scan of `shard` pays for the place of the record that it reads next.
    pub(super) fn note_scan_read(&self, path: &mut ScanPath, shard: &Shard, next: Location) {
        if path.samples(next) && self.store.value_log.is_cold_base(next) {
            shard.cold_scans.add(SAMPLED);
            Counters::add(&self.store.counters.scan_cold_jumps, SAMPLED);
        }
    }
}

#[cfg(test)]
#[path = "scan_path_test.rs"]
mod scan_path_test;
