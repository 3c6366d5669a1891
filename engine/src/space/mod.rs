//! Disk space: how much is left, and whether puts are taken.
//!
//! Invariants: no put asks the file system; it looks at what was found last, and at most every
//! [`Space::next_look`] bytes, or every [`AGAIN`] while puts are refused, somebody looks anew. Puts
//! resume by themselves once enough is left. While space is being reclaimed, puts are slowed down
//! and not refused.

mod look;
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
pub(crate) use look::Found;
use reserves::{most_checkpoint_bytes, value_segment_bytes, wal_segment_bytes};

/// How often the disk is looked at while puts are refused.
const AGAIN: Duration = Duration::from_millis(20);
/// Longest wait of a put for space while none is reclaimed.
const MOST_WAIT: Duration = Duration::from_millis(500);
/// Longest wait of a put for space.
const MOST_WAIT_IN_ALL: Duration = Duration::from_secs(5);
/// One step of that wait.
const STEP: Duration = Duration::from_millis(5);
/// Longest wait of a write for the log's next attempt to make a segment, when the disk has room.
const MOST_WAIT_FOR_LOG: Duration = Duration::from_millis(150);
/// What the log needs besides its records, in bytes.
const LOG_SPARE: u64 = 64 << 10;
/// The value log gets at least so much address space, however small the disk is.
const ADDRESSES: u64 = 256 << 30;

/// What was found out about the disk, for those who cannot ask it each time. All atomics are
/// relaxed: hints, nothing is ordered by them.
pub(crate) struct Space {
    total: u64,
    opened: Instant,
    refused: AtomicBool,
    pause_us: AtomicU64,
    /// The pause is for the allowance's sake, not the disk's.
    pause_is_debt: AtomicBool,
    /// Bytes written (see [`Core::written_bytes`]) at which a put looks again.
    next_look: AtomicU64,
    checkpoint_bytes: AtomicU64,
    /// Bytes of all index files, and of those that hold every entry of a shard.
    index_bytes: AtomicU64,
    whole_index_bytes: AtomicU64,
    /// So little headroom is left that dead space is reclaimed.
    is_short: AtomicBool,
    /// The last attempt to reclaim dead space has gained nothing.
    in_vain: AtomicBool,
    /// Pieces of work that jobs have done: while it grows, space may come back.
    stirs: AtomicU64,
    /// Bytes of index files that a checkpoint has written and not committed: they take from the
    /// disk what is kept for them.
    index_pending: AtomicU64,
    last: Mutex<(Instant, Found)>,
}

impl Space {
    /// For a disk of `total` bytes, not looked at yet.
    pub(crate) fn new(total: u64, options: &Options) -> Self {
        Self {
            total,
            opened: Instant::now(),
            refused: false.into(),
            pause_us: 0.into(),
            pause_is_debt: false.into(),
            next_look: 0.into(),
            checkpoint_bytes: options.checkpoint_wal_bytes.into(),
            index_bytes: 0.into(),
            whole_index_bytes: 0.into(),
            is_short: false.into(),
            in_vain: false.into(),
            stirs: 0.into(),
            index_pending: 0.into(),
            last: Mutex::new((Instant::now(), Found::default())),
        }
    }

    /// Whether puts are refused for want of space.
    pub(crate) fn is_full(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether writers are slowed or refused for want of space, or soon will be.
    pub(crate) fn holds_up_writers(&self) -> bool {
        self.is_full() || self.is_short.load(Ordering::Relaxed)
    }

    /// Whether writers are slowed or refused for want of space.
    pub(crate) fn slows_writers(&self) -> bool {
        self.is_full() || self.pause_us.load(Ordering::Relaxed) > 0
    }

    /// A job has done a piece of its work.
    pub(crate) fn stir(&self) {
        self.stirs.fetch_add(1, Ordering::Relaxed);
    }

    /// A checkpoint has written so much of an index file.
    pub(crate) fn wrote_index(&self, bytes: u64) {
        self.index_pending.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The checkpoint has ended, and what it does not need is gone.
    pub(crate) fn index_settled(&self) {
        self.index_pending.store(0, Ordering::Relaxed);
    }

    /// A checkpoint is due when the log is longer than this.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint_bytes.load(Ordering::Relaxed)
    }

    /// What was found last.
    pub(crate) fn last(&self) -> DiskStats {
        self.last.lock().1.stats
    }

    /// Takes over the size of all index files, and of those that hold every entry of a shard.
    pub(crate) fn set_index_files(&self, all_bytes: u64, whole_bytes: u64) {
        self.index_bytes.store(all_bytes, Ordering::Relaxed);
        self.whole_index_bytes.store(whole_bytes, Ordering::Relaxed);
    }

    /// Takes over whether an attempt to reclaim dead space has gained nothing.
    pub(crate) fn set_in_vain(&self, in_vain: bool) {
        self.in_vain.store(in_vain, Ordering::Relaxed);
    }
}

/// The size of the disk; a disk that does not say is as large as can be.
pub(crate) fn total_bytes(disk: &dyn Disk) -> u64 {
    disk.total_bytes().unwrap_or(u64::MAX)
}

/// Sizes that suit the disk.
pub(crate) fn scaled(options: Options, total: u64) -> Options {
    let addresses = total.saturating_mul(2).max(ADDRESSES);
    Options {
        value_segment_bytes: value_segment_bytes(options.value_segment_bytes, total),
        value_log_max_bytes: options.value_log_max_bytes.min(addresses),
        wal_segment_bytes: wal_segment_bytes(options.wal_segment_bytes, total),
        checkpoint_wal_bytes: most_checkpoint_bytes(options.checkpoint_wal_bytes, total, u64::MAX),
        ..options
    }
}

/// The pause until the next multiple of `pause_us`: those who are slowed down go on together, so that
/// they share a group of the log.
fn until_tick(now_us: u64, pause_us: u64) -> u64 {
    pause_us - now_us % pause_us.max(1)
}

/// A put's wait for space.
pub(crate) struct Wait {
    began: Instant,
    /// What had been reclaimed when last some more was, and when that was.
    reclaimed: u64,
    progress: Instant,
}

impl Wait {
    fn begin(core: &Core) -> Self {
        let now = Instant::now();
        Self { began: now, reclaimed: core.reclaimed(), progress: now }
    }

    /// Whether there is hope: space was reclaimed a short while ago.
    fn goes_on(&mut self, core: &Core) -> bool {
        let reclaimed = core.reclaimed();
        if reclaimed != std::mem::replace(&mut self.reclaimed, reclaimed) {
            self.progress = Instant::now();
        }
        self.progress.elapsed() < MOST_WAIT && self.began.elapsed() < MOST_WAIT_IN_ALL
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
            let (count, time_us) = match self.space.pause_is_debt.load(Ordering::Relaxed) {
                true => (&counters.stalls_debt, &counters.stalls_debt_us),
                false => (&counters.stalls_disk, &counters.stalls_disk_us),
            };
            let now_us = self.space.opened.elapsed().as_micros() as u64;
            let pause_us = until_tick(now_us, pause_us);
            Counters::add(count, 1);
            Counters::add(time_us, pause_us);
            thread::sleep(Duration::from_micros(pause_us));
        }
        Ok(())
    }

    /// Room in the log. When its disk is full, blocks that wait to be used again for values may
    /// help, so that deletes go on. The caller holds nothing: it waits for a moment then, at most once.
    pub(crate) fn acquire_log(&self, bytes: usize) -> Result<Permit<'_>> {
        let is_full = |error: &Error| error.kind() == ErrorKind::DiskFull;
        let mut permit = self.wal.acquire(bytes);
        if !permit.as_ref().is_err_and(is_full) {
            return permit;
        }
        // Somebody has looked just now, perhaps, and before there was something to give back.
        let since = self.space.last.lock().0.elapsed();
        thread::sleep(AGAIN.saturating_sub(since));
        if self.space.last.lock().0.elapsed() >= AGAIN {
            self.look_at_disk();
        }
        permit = self.wal.acquire(bytes);
        // The log does not try at once what has just failed.
        let has_room = self.space.last().free_bytes >= LOG_SPARE.saturating_add(bytes as u64);
        let began = Instant::now();
        while has_room && permit.as_ref().is_err_and(is_full) && began.elapsed() < MOST_WAIT_FOR_LOG
        {
            thread::sleep(STEP);
            permit = self.wal.acquire(bytes);
        }
        permit
    }

    /// Looks at the disk if enough was written since the last time.
    fn look_if_due(&self) {
        if self.written_bytes() >= self.space.next_look.load(Ordering::Relaxed) {
            self.look_at_disk();
        }
    }

    fn wait_for_space(&self) -> Result<()> {
        let mut wait = Wait::begin(self);
        let _hurry = self.requests.hurry();
        loop {
            self.check_writable()?;
            if self.space.last.lock().0.elapsed() >= AGAIN {
                self.look_at_disk();
            }
            if !self.space.is_full() {
                return Ok(());
            }
            if !self.reclaims() || !wait.goes_on(self) {
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

    /// Grows while space is being reclaimed: with what is read to be copied, with what a checkpoint
    /// writes and frees, and with every piece of work of either.
    fn reclaimed(&self) -> u64 {
        let counters = &self.store.counters;
        counters
            .defragment_read_bytes
            .load(Ordering::Relaxed)
            .wrapping_add(counters.defragment_segments.load(Ordering::Relaxed))
            .wrapping_add(counters.checkpoint_index_bytes.load(Ordering::Relaxed))
            .wrapping_add(counters.checkpoints.load(Ordering::Relaxed))
            .wrapping_add(self.space.stirs.load(Ordering::Relaxed))
    }

    /// Whether space will come back by itself.
    fn reclaims(&self) -> bool {
        let dead_bytes = self.store.value_log.stats().dead_bytes;
        self.store.options.background && dead_bytes > self.store.options.value_segment_bytes
    }

    /// A put found no room for its value: whether it is to try again, after a moment in which it
    /// holds nothing. `wait` began when it failed first.
    pub(crate) fn tries_again(&self, error: &Error, wait: &mut Option<Wait>) -> bool {
        let wait = wait.get_or_insert_with(|| Wait::begin(self));
        error.kind() == ErrorKind::DiskFull && self.reclaims() && wait.goes_on(self)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_slowed_down_goes_on_together() {
        for pause_us in [1, 7, 4000] {
            let ends = (50_000..50_000 + pause_us).map(|now| now + until_tick(now, pause_us));
            let mut ends: Vec<u64> = ends.collect();
            ends.dedup();
            assert!(ends.len() <= 2 && ends.iter().all(|end| end % pause_us == 0), "{ends:?}");
        }
        assert_eq!(until_tick(12_000, 4000), 4000);
        assert_eq!(until_tick(15_999, 4000), 1);
        assert_eq!(until_tick(5, 0), 0);
    }
}
