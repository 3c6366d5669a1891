//! Disk space: how much is left, and whether puts are taken.
//!
//! Invariants: no put asks the file system; it looks at what was found last, and at most every
//! [`Space::next_look`] bytes, or every [`AGAIN`] while puts are refused, somebody looks anew. Puts
//! resume by themselves once enough is left.

mod reserves;

use std::time::{Duration, Instant};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::io::Disk;
use crate::options::Options;
use crate::stats::{Counters, DiskStats};
use crate::sync::primitives::Mutex;
use crate::sync::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::primitives::thread;
use crate::wal::Permit;
use reserves::{
    Sizes, checkpoint_bytes, pause_us, reserves, slow_zone, value_segment_bytes, wal_segment_bytes,
};

/// How often the disk is looked at while puts are refused.
const AGAIN: Duration = Duration::from_millis(20);
/// Longest wait of a put for space that is being reclaimed.
const MOST_WAIT: Duration = Duration::from_millis(500);
/// Log that is kept for readers that lag on a disk that is not tight, however little is stored.
const LEAST_KEPT_LOG: u64 = 64 << 20;
/// One step of that wait.
const STEP: Duration = Duration::from_millis(5);

/// What was found out about the disk, for those who cannot ask it each time. All atomics are
/// relaxed: hints, nothing is ordered by them.
pub(crate) struct Space {
    total: u64,
    refused: AtomicBool,
    pause_us: AtomicU64,
    /// Bytes written (see [`Core::written_bytes`]) at which a put looks again.
    next_look: AtomicU64,
    checkpoint_bytes: AtomicU64,
    last: Mutex<(Instant, DiskStats)>,
}

impl Space {
    /// For a disk of `total` bytes, not looked at yet.
    pub(crate) fn new(total: u64, options: &Options) -> Self {
        Self {
            total,
            refused: false.into(),
            pause_us: 0.into(),
            next_look: 0.into(),
            checkpoint_bytes: options.checkpoint_wal_bytes.into(),
            last: Mutex::new((Instant::now(), DiskStats::default())),
        }
    }

    /// Whether puts are refused for want of space.
    pub(crate) fn is_full(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether writers are slowed or refused for want of disk.
    pub(crate) fn holds_up_writers(&self) -> bool {
        self.is_full() || self.pause_us.load(Ordering::Relaxed) > 0
    }

    /// A checkpoint is due when the log is longer than this.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint_bytes.load(Ordering::Relaxed)
    }

    /// What was found last.
    pub(crate) fn last(&self) -> DiskStats {
        self.last.lock().1
    }
}

/// The size of the disk; a disk that does not say is as large as can be.
pub(crate) fn total_bytes(disk: &dyn Disk) -> u64 {
    disk.total_bytes().unwrap_or(u64::MAX)
}

/// Segment sizes that suit the disk.
pub(crate) fn scaled(options: Options, total: u64) -> Options {
    Options {
        value_segment_bytes: value_segment_bytes(options.value_segment_bytes, total),
        wal_segment_bytes: wal_segment_bytes(options.wal_segment_bytes, total),
        checkpoint_wal_bytes: checkpoint_bytes(options.checkpoint_wal_bytes, total, u64::MAX),
        ..options
    }
}

impl Core {
    /// Before a write that is to put something: refuses it when the disk is down to its reserve,
    /// and slows it when it soon will be. No lock is held.
    pub(crate) fn check_space(&self) -> Result<()> {
        self.look_if_due();
        if self.space.is_full() {
            self.wait_for_space()?;
        }
        let pause_us = self.space.pause_us.load(Ordering::Relaxed);
        if pause_us > 0 {
            let counters = &self.store.counters;
            Counters::add(&counters.stalls_disk, 1);
            Counters::add(&counters.stalls_disk_us, pause_us);
            thread::sleep(Duration::from_micros(pause_us));
        }
        Ok(())
    }

    /// Room in the log. When its disk is full, blocks that wait to be used again for values may
    /// help, so that deletes go on.
    pub(crate) fn acquire_log(&self, bytes: usize) -> Result<Permit<'_>> {
        match self.wal.acquire(bytes) {
            Err(error) if error.kind() == ErrorKind::DiskFull => {
                if self.space.last.lock().0.elapsed() < AGAIN {
                    return Err(error);
                }
                self.look_at_disk();
                self.wal.acquire(bytes)
            }
            permit => permit,
        }
    }

    /// Looks at the disk if enough was written since the last time.
    fn look_if_due(&self) {
        if self.written_bytes() >= self.space.next_look.load(Ordering::Relaxed) {
            self.look_at_disk();
        }
    }

    fn wait_for_space(&self) -> Result<()> {
        let started = Instant::now();
        loop {
            if self.space.last.lock().0.elapsed() >= AGAIN {
                self.look_at_disk();
            }
            if !self.space.is_full() {
                return Ok(());
            }
            if !self.reclaims() || started.elapsed() >= MOST_WAIT {
                Counters::add(&self.store.counters.refused_disk, 1);
                let last = self.space.last();
                return Err(Error::new(
                    ErrorKind::DiskFull,
                    format!(
                        "the disk of {} is down to its reserve ({} bytes left, {} kept); nothing \
                         was changed; delete something or give it more space",
                        self.disk.root().display(),
                        last.available_bytes,
                        last.soft_reserve_bytes
                    ),
                ));
            }
            Counters::add(&self.store.counters.stalls_disk_us, STEP.as_micros() as u64);
            thread::sleep(STEP);
        }
    }

    /// Whether space will come back by itself.
    fn reclaims(&self) -> bool {
        let dead_bytes = self.store.value_log.stats().dead_bytes;
        self.store.options.background && dead_bytes > self.store.options.value_segment_bytes
    }

    /// A put found no room for its value: whether it is to try again, after a moment in which it
    /// holds nothing. `began` is when it failed first.
    pub(crate) fn tries_again(&self, error: &Error, began: &mut Option<Instant>) -> bool {
        let began = began.get_or_insert_with(Instant::now);
        error.kind() == ErrorKind::DiskFull && began.elapsed() < MOST_WAIT && self.reclaims()
    }

    /// The moment before the next try.
    pub(crate) fn wait_a_moment(&self) {
        Counters::add(&self.store.counters.stalls_disk_us, STEP.as_micros() as u64);
        thread::sleep(STEP);
        self.look_at_disk();
    }

    /// Bytes given out by log and value log: only ever grows while the engine is open.
    fn written_bytes(&self) -> u64 {
        self.wal.appended_lsn().0.wrapping_add(self.store.value_log.allocated_bytes())
    }

    /// Looks at the disk; decides whether puts are taken; gives blocks back that nobody needs.
    pub(crate) fn look_at_disk(&self) -> DiskStats {
        let space = &self.space;
        let mut last = space.last.lock();
        let options = &self.store.options;
        let log = &self.store.value_log;
        let sizes = Sizes {
            value_segment: options.value_segment_bytes,
            wal_segment: options.wal_segment_bytes,
            // A file is about as long as the index is large.
            index_files: self.memory.used_bytes(),
        };
        let values = log.stats();
        let checkpoint =
            checkpoint_bytes(options.checkpoint_wal_bytes, space.total, values.live_bytes);
        space.checkpoint_bytes.store(checkpoint, Ordering::Relaxed);
        let kept = reserves(&sizes);
        let zone = slow_zone(&sizes, checkpoint);
        // A disk that does not say is taken for roomy: it will refuse by itself.
        let mut free = self.disk.free_bytes().unwrap_or(u64::MAX);
        let reusable = log.free_bytes() + self.wal.free_bytes();
        let available = free.saturating_add(reusable);
        let is_tight = available < kept.soft.saturating_add(zone);
        // Free segments until the next checkpoint frees some; on a tight disk whoever needs the
        // blocks first should get them.
        let until_checkpoint = checkpoint / sizes.value_segment + 2;
        let keep = if free < kept.hard {
            1
        } else {
            until_checkpoint.min(values.live_bytes / 16 / sizes.value_segment + 2)
        };
        let trimmed = log.trim(keep as usize) as u64 * sizes.value_segment;
        let logs = checkpoint / sizes.wal_segment + 2;
        // Log for readers that lag is a small part of the data, and nothing on a tight disk.
        let keep_log = options.wal_keep_bytes.min((values.live_bytes / 16).max(LEAST_KEPT_LOG));
        // What is kept counts as available, so it is bounded by what is left beside the reserve.
        let beside = available.saturating_sub(kept.soft.saturating_add(zone));
        let keep_log = if free < kept.hard { 0 } else { keep_log.min(beside / 2) };
        self.wal.keep(keep_log, if free < kept.hard { 1 } else { logs as usize });
        free = if trimmed > 0 { self.disk.free_bytes().unwrap_or(free) } else { free };
        let refused = available < kept.soft;
        if refused != space.refused.swap(refused, Ordering::Relaxed) {
            let (soft, free) = (kept.soft, available);
            tracing::warn!(free, soft, refused, "puts for the disk's sake");
        }
        let pause = if is_tight && options.background && values.dead_bytes > sizes.value_segment {
            pause_us(available, kept.soft, zone)
        } else {
            0
        };
        space.pause_us.store(pause, Ordering::Relaxed);
        let step = (available.saturating_sub(kept.soft) / 4).max(sizes.wal_segment.min(1 << 20));
        let next = self.written_bytes().saturating_add(step);
        space.next_look.store(next, Ordering::Relaxed);
        let stats = DiskStats {
            total_bytes: space.total,
            free_bytes: free,
            available_bytes: available,
            soft_reserve_bytes: kept.soft,
            hard_reserve_bytes: kept.hard,
            slow_below_bytes: kept.soft.saturating_add(zone),
            index_file_bytes: sizes.index_files,
            used_bytes: values.disk_bytes + self.wal.disk_bytes() + sizes.index_files,
        };
        *last = (Instant::now(), stats);
        stats
    }
}
