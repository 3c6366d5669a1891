//! One look at the disk: what is left, and what follows from it for puts, checkpoints and files that
//! wait to be used again.
//!
//! Invariant: log that is kept for readers, and files that wait, never stand for a reserve.

use std::time::Instant;

use super::reserves::{
    Limits, Sizes, allowance, least_checkpoint_bytes, limits, most_checkpoint_bytes, pause_us,
    reserves,
};
use crate::core::Core;
use crate::stats::DiskStats;
use crate::sync::primitives::atomic::Ordering;

/// Log that is kept for readers that lag on a disk that is not tight, however little is stored.
const LEAST_KEPT_LOG: u64 = 32 << 20;

/// How long writers wait for each other on a full disk, where each byte of log that is written costs
/// as much again in copies.
const GATHER_US: u64 = 60;

/// On a full disk values from here on are written once, unless smaller ones are anyway.
const ONCE_BYTES_WHEN_FULL: usize = 512;

/// What was found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// For everybody.
    pub(crate) stats: DiskStats,
    /// What may still be written before puts are refused, or the files outgrow the allowance.
    pub(crate) headroom: u64,
    /// When headroom is short.
    pub(crate) limits: Limits,
}

impl Core {
    /// Looks at the disk; decides whether puts are taken; gives blocks back that nobody needs.
    pub(crate) fn look_at_disk(&self) -> DiskStats {
        self.look().stats
    }

    /// The same, for the policy that reclaims space.
    pub(crate) fn look(&self) -> Found {
        let space = &self.space;
        let mut last = space.last.lock();
        let options = &self.store.options;
        let log = &self.store.value_log;
        let values = log.stats();
        let (wanted, live) = (options.checkpoint_wal_bytes, values.live_bytes);
        let least_checkpoint = least_checkpoint_bytes(wanted, space.total, live);
        let most_checkpoint = most_checkpoint_bytes(wanted, space.total, live);
        let sizes = Sizes {
            value_segment: options.value_segment_bytes,
            wal_segment: options.wal_segment_bytes,
            whole_index: space.whole_index_bytes.load(Ordering::Relaxed),
            index_pending: space.index_pending.load(Ordering::Relaxed),
            checkpoint: least_checkpoint,
        };
        let (kept, limits) = (reserves(&sizes), limits(&sizes));
        // A disk that does not say is taken for roomy: it will refuse by itself.
        let mut free = self.disk.free_bytes().unwrap_or(u64::MAX);
        let log_bytes = self.wal.file_bytes();
        let available = free.saturating_add(log.free_bytes() + log_bytes.kept + log_bytes.free);
        let beside_reserve = available.saturating_sub(kept.soft);

        let index = space.index_bytes.load(Ordering::Relaxed);
        let used = values.disk_bytes + self.wal.disk_bytes() + index;
        let in_use = used - (log.free_bytes() + log_bytes.free).min(used);
        let allowed = allowance(&sizes, live, index + log_bytes.kept);
        let below_allowance = allowed.saturating_sub(in_use);
        let headroom = beside_reserve.min(below_allowance);
        let checkpoint = (headroom / 8).clamp(least_checkpoint, most_checkpoint);
        space.checkpoint_bytes.store(checkpoint, Ordering::Relaxed);

        // Free segments until the next checkpoint frees some; on a tight disk whoever needs the
        // blocks first should get them.
        let until_checkpoint = checkpoint / sizes.value_segment + 2;
        let keep = if free < kept.hard {
            // No more than is lacking: a segment that is cut and filled again costs the file system a
            // commit for each sync of what is written there.
            let lacking = kept.hard.saturating_sub(2 * sizes.value_segment).saturating_sub(free);
            let segments = log.free_bytes() / sizes.value_segment;
            segments.saturating_sub(lacking.div_ceil(sizes.value_segment)).max(1)
        } else {
            until_checkpoint.min(live / 16 / sizes.value_segment + 2)
        };
        let trimmed = log.trim(keep as usize) as u64 * sizes.value_segment;
        let logs = checkpoint / sizes.wal_segment + 2;
        // Log for readers that lag is a small part of the data, and nothing on a tight disk.
        let keep_log = options.wal_keep_bytes.min((live / 32).max(LEAST_KEPT_LOG));
        // What is kept counts as available, so it is bounded by what is left beside the reserve.
        let beside = beside_reserve.saturating_sub(limits.reclaim_below);
        let keep_log = if free < kept.hard { 0 } else { keep_log.min(beside / 2) };
        self.wal.keep(keep_log, if free < kept.hard { 1 } else { logs as usize });
        free = if trimmed > 0 { self.disk.free_bytes().unwrap_or(free) } else { free };

        let refused = available < kept.soft;
        if refused != space.refused.swap(refused, Ordering::Relaxed) {
            let (soft, free) = (kept.soft, available);
            tracing::warn!(free, soft, refused, "puts for the disk's sake");
        }
        let is_debt = below_allowance < beside_reserve;
        // A pause is to give reclaiming time; the allowance is no reason when that gains nothing.
        let helps = options.background
            && values.dead_bytes > sizes.value_segment
            && !(is_debt && space.in_vain.load(Ordering::Relaxed));
        let pause = if helps { pause_us(headroom, limits.slow_below) } else { 0 };
        space.is_short.store(headroom < limits.reclaim_below, Ordering::Relaxed);
        let is_full = !is_debt && headroom < 2 * limits.reclaim_below;
        self.wal.gather(if is_full { GATHER_US } else { 0 });
        let once = options.write_once_bytes;
        let is_never = once == usize::MAX;
        let when_full = is_full && !is_never;
        log.set_once_from(if when_full { once.min(ONCE_BYTES_WHEN_FULL) } else { once });
        space.pause_is_debt.store(is_debt, Ordering::Relaxed);
        space.pause_us.store(pause, Ordering::Relaxed);
        let step = (headroom / 8).max(sizes.wal_segment.min(1 << 20));
        let next = self.written_bytes().saturating_add(step);
        space.next_look.store(next, Ordering::Relaxed);
        let stats = DiskStats {
            total_bytes: space.total,
            free_bytes: free,
            available_bytes: available,
            soft_reserve_bytes: kept.soft,
            hard_reserve_bytes: kept.hard,
            slow_below_bytes: kept.soft.saturating_add(limits.slow_below),
            index_file_bytes: index,
            used_bytes: used,
        };
        let found = Found { stats, headroom, limits };
        *last = (Instant::now(), found);
        found
    }
}
