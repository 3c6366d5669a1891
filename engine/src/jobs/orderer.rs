//! Rewriting shards in key order in the background, when their scans pay for disorder.
//!
//! Invariants: it runs on the thread that reclaims space, between two looks of that one, and ends
//! when space is to be reclaimed, when writers are slowed, and when the engine closes; it asks
//! nothing of shards while no scan waits for the disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::{Continue, DefragmentOptions, DefragmentReport, DefragmentStep};
use crate::core::Core;
use crate::error::Result;
use crate::index::{Bundle, Shard};
use crate::jobs::order_policy::{Scanned, choose, slice_bytes};
use crate::jobs::pace::Pace;
use crate::jobs::reclaim_policy::decide;
use crate::sync::primitives::atomic::Ordering;

/// Time between two looks at the shards.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// The same after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// The part of the time that a rewrite takes while others work: nobody waits for it.
const DUTY: f64 = 0.1;

/// What the thread remembers between two looks.
#[derive(Debug)]
pub(super) struct Orderer {
    /// Not before.
    look_at: Instant,
    /// Cold jumps of all scans when the shards were last looked at.
    seen: u64,
    /// A shard was due, and had to wait.
    waits: bool,
}

impl Orderer {
    pub(super) fn new(now: Instant) -> Self {
        Self { look_at: now, seen: 0, waits: false }
    }

    /// Rewrites the shard that needs it most, if one is due; whether one was.
    pub(super) fn step(&mut self, core: &Core, now: Instant) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + BETWEEN_LOOKS;
        // Relaxed: what is not seen yet is seen at the next look.
        let jumps = core.store.counters.scan_cold_jumps.load(Ordering::Relaxed);
        if jumps == std::mem::replace(&mut self.seen, jumps) && !self.waits {
            return false;
        }
        let Some(shard) = core.shard_to_order(now) else {
            self.waits = false;
            return false;
        };
        self.waits = true;
        if core.defragmenting.is_locked() {
            // By a call that may take long.
            return false;
        }
        if slice_bytes(&core.order_room()).is_none() {
            if core.store.value_log.empty_bytes() > 0 {
                // Only a checkpoint frees what rewrites and defragments have emptied.
                core.requests.checkpoint();
            }
            return false;
        }
        match core.order_shard(&shard, now) {
            Ok(report) => {
                let DefragmentReport { records_moved, duration_us, .. } = report;
                tracing::debug!(shard = %shard.id, records_moved, duration_us, "put in order");
            }
            Err(error) => {
                tracing::warn!(shard = %shard.id, %error, "putting records in order failed");
                self.look_at = now + AFTER_FAILURE;
            }
        }
        true
    }
}

impl Core {
    /// The shard whose scans pay most for disorder, if a rewrite of one is due.
    fn shard_to_order(&self, now: Instant) -> Option<Arc<Shard>> {
        let table = self.store.table.load_full();
        let facts: Vec<Scanned> = table.shards().iter().map(|shard| scanned(shard, now)).collect();
        choose(&facts).map(|number| Arc::clone(&table.shards()[number]))
    }

    /// Puts the records of one shard in order, politely.
    fn order_shard(&self, shard: &Shard, now: Instant) -> Result<DefragmentReport> {
        let duty = || if self.space.holds_up_writers() { 1.0 } else { DUTY };
        let pace = Pace::new(self, &duty);
        let jumps = shard.cold_scans.take();
        let options = DefragmentOptions::default();
        let began = Instant::now();
        let result = self.put_in_order(&options, &shard.range, &|progress| {
            pace.step();
            let ends = self.requests.is_closed()
                || self.space.slows_writers()
                || progress.step == DefragmentStep::Done && self.wants_space();
            if ends { Continue::No } else { Continue::Yes }
        });
        let report = result?;
        let is_cut = report.cancelled || report.short_of_space;
        if is_cut {
            // Paid for, and not had.
            let records = entries(&shard.load()).max(1);
            let left = records.saturating_sub(report.records_moved) as f64 / records as f64;
            shard.cold_scans.add((jumps as f64 * left) as u64);
        }
        if !is_cut || report.records_moved > 0 {
            shard.cold_scans.rewritten(report.records_moved, now + began.elapsed());
        }
        Ok(report)
    }

    /// Whether there is dead space to reclaim now.
    fn wants_space(&self) -> bool {
        decide(&self.situation()).defragment.is_some()
    }
}

fn scanned(shard: &Shard, now: Instant) -> Scanned {
    let jumps = shard.cold_scans.jumps();
    if jumps == 0 {
        return Scanned::default();
    }
    let bundle = shard.load();
    if bundle.frozen.is_some() {
        // Its records would be shadowed one by one, and only some of them.
        return Scanned::default();
    }
    let rewrites = shard.cold_scans.settle(shard.revision.last());
    Scanned {
        jumps,
        bytes: shard.live_bytes(),
        entries: entries(&bundle),
        unpaid: rewrites.unpaid,
        since_last: rewrites.last.map(|last| now.saturating_duration_since(last)),
    }
}

fn entries(bundle: &Bundle) -> u64 {
    (bundle.sorted.live() + bundle.append_entries()) as u64
}

#[cfg(test)]
#[path = "orderer_test.rs"]
mod orderer_test;
