//! The write-ahead log: one per node, the place where a write becomes durable.
//!
//! An [`Lsn`] is a byte position in the log since it was made. Appenders [acquire](Wal::acquire)
//! room in a ring, [reserve](Wal::reserve) a range of LSNs with one atomic add, copy their record
//! into the ring and publish it; one flusher thread writes whatever is contiguous, syncs once for
//! all of it and wakes the waiters. [`Replay`] reads the log back after a crash and starts it again.
//!
//! Invariants:
//! - `checkpoint_lsn <= durable_lsn <= appended_lsn`; each is a record's end (or 0) and a multiple
//!   of 8; none goes back, over restarts included, except that what was never durable is cut;
//! - `appended_lsn - consumed <= wal_ring_bytes`, where consumed is what the flusher has written,
//!   and what is between fits the files that are there;
//! - a record's `base` is the `durable_lsn` of the moment it was written: `base <= lsn`;
//! - a segment's header becomes valid only after everything below its `start_lsn` is durable, so
//!   the header of a newer segment above the end of the log proves that something was lost;
//! - after the first failed write or sync nothing is written, synced or acknowledged any more;
//! - a value that a record refers to is durable when the record is: see `reference`.
//!
//! `record` framing and checksums, `encode`, `decode` bodies, `segment` files and their header
//! `ring` memory, `space` waiting for it, `room` the same on the disk, `reservation` permit,
//! reserve, publish, `shard_records`
//! splits and merges, `reference` values that are in the value log only, `parker`, `flusher` the thread, `commit` waiters, `retention` live and free
//! segments, `reader` streaming, `walk` the torn-tail rule, `replay`, `reopen` recovery,
//! `inspect` reading only, `repair` giving up the end of a damaged log.

mod commit;
mod decode;
mod encode;
mod flusher;
mod follow;
mod inspect;
mod parker;
mod reader;
mod record;
mod reference;
mod reopen;
mod repair;
mod replay;
mod reservation;
mod retention;
mod ring;
mod room;
mod segment;
mod shard_records;
mod space;
mod walk;

#[cfg(test)]
mod append_test;
#[cfg(test)]
mod codec_test;
#[cfg(test)]
mod crash_test;
#[cfg(all(test, shuttle))]
mod explore_test;
#[cfg(test)]
mod full_test;
#[cfg(test)]
mod replay_test;
#[cfg(test)]
mod testing;

use crate::sync::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::primitives::thread;
use std::sync::Arc;

use crate::sync::primitives::Mutex;
use crossbeam_utils::CachePadded;

use crate::error::{Error, ErrorKind, Result};
use crate::stats::WalStats;
use crate::types::Lsn;
use commit::Commit;
use flusher::{ActiveSegment, Flusher};
use parker::Parker;
pub(crate) use retention::FileBytes;
use retention::Segments;
use ring::Ring;
use room::Room;
use space::Space;

pub(crate) use commit::Callback;
pub(crate) use decode::{BodyView, OpView, RecordView, SectionView};
pub(crate) use encode::{Body, Op, Record, Section};
pub(crate) use follow::{Followed, Reading};
pub(crate) use inspect::{check, for_each_reference, inspect};
pub(crate) use record::{OpKind, RequestId};
pub(crate) use reference::{Reference, SyncValues};
pub(crate) use repair::DamagedLog;
pub use repair::Dropped;
pub(crate) use replay::Replay;
pub(crate) use reservation::{Permit, Reservation};
pub(crate) use shard_records::{Merge, Split};

/// The folder of the segments, below the engine's directory.
pub(crate) const WAL_FOLDER: &str = "wal";

/// The open log. Made by [`Replay::start`]; dropping it [closes](Self::close) it.
pub(crate) struct Wal {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

/// What appenders, waiters and the flusher share.
struct Shared {
    ring: Ring,
    space: Space,
    commit: Commit,
    parker: Parker,
    segments: Segments,
    room: Room,
    sync_values: SyncValues,
    /// The reserved end of the log. Appenders add to it with `AcqRel`: see [`Wal::reserve`].
    reserved: CachePadded<AtomicU64>,
    /// No more permits; the flusher ends once it has written everything reserved. Stored before
    /// `Parker::wake`, read by the flusher inside `Parker::sleep`, whose fences order the two.
    closing: AtomicBool,
    checkpoint_lsn: AtomicU64,
    /// How long the flusher waits for others to join a group. Relaxed: a hint.
    gather_us: AtomicU64,
    counters: FlushCounters,
}

/// Counted by the flusher, read by [`Wal::stats`]; relaxed, nothing is ordered by them.
#[derive(Default)]
struct FlushCounters {
    records: AtomicU64,
    fsyncs: AtomicU64,
    bytes: AtomicU64,
}

impl Wal {
    /// Starts the flusher at `end`, the end of what is durable in `active`.
    fn start(
        ring_bytes: usize,
        segments: Segments,
        active: ActiveSegment,
        sync_values: SyncValues,
        checkpoint_lsn: Lsn,
        end: u64,
    ) -> Result<Self> {
        let left = active.header.limit_lsn() - end;
        let room = Room::new(ring_bytes as u64, left);
        let space = Space::new(ring_bytes as u64, room.limit());
        // A start on a full disk has no spare.
        room.refill(&segments, &space)?;
        let shared = Arc::new(Shared {
            ring: Ring::new(ring_bytes),
            space,
            commit: Commit::new(end),
            parker: Parker::default(),
            segments,
            room,
            sync_values,
            reserved: CachePadded::new(AtomicU64::new(end)),
            closing: AtomicBool::new(false),
            checkpoint_lsn: AtomicU64::new(checkpoint_lsn.0),
            gather_us: AtomicU64::new(0),
            counters: FlushCounters::default(),
        });
        let flusher = Flusher::new(Arc::clone(&shared), active, end);
        let thread = thread::Builder::new()
            .name("vmemkv-wal".into())
            .spawn(move || flusher.run())
            .map_err(|error| Error::io("start a thread for", WAL_FOLDER, &error))?;
        shared.parker.set_thread(thread.thread().clone());
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until the ring has room for a record of `len` bytes
    /// ([`Record::encoded_len`], or an upper bound). Never call it while holding a lock that an
    /// appender needs. `DiskFull` when the disk has no room for it (or what else the disk said;
    /// nothing was changed), `ReadOnly` when poisoned, `Unavailable` when closed.
    pub(crate) fn acquire(&self, len: usize) -> Result<Permit<'_>> {
        Permit::acquire(&self.shared, len)
    }

    /// Reserves the permit's bytes: cannot fail or block. From here until
    /// [`Reservation::publish`] nothing may fail.
    pub(crate) fn reserve<'wal>(&'wal self, permit: Permit<'wal>) -> Reservation<'wal> {
        debug_assert!(std::ptr::eq(permit.shared(), &*self.shared), "a permit of another log");
        permit.reserve()
    }

    /// Waits until everything below `lsn` is durable. `ReadOnly` when the log is poisoned and
    /// `lsn` did not become durable before, `Unavailable` when it was closed before,
    /// `InvalidArgument` when nobody has reserved it.
    pub(crate) fn wait(&self, lsn: Lsn) -> Result<()> {
        self.check_reserved(lsn)?;
        self.shared.commit.wait(lsn.0)
    }

    /// What nobody has reserved may never come: the LSN of a write that a crash took, or of one
    /// that stopped before it was logged (then the log is poisoned).
    fn check_reserved(&self, lsn: Lsn) -> Result<()> {
        let end = self.appended_lsn();
        if lsn <= end {
            return Ok(());
        }
        Err(match self.shared.commit.poisoned() {
            Some(reason) => read_only(&reason),
            None => Error::invalid(format!("LSN {lsn} is beyond the end of the log, {end}")),
        })
    }

    /// Calls `callback` once: when `lsn` is durable, or with the error that [`wait`](Self::wait)
    /// would return. On the flusher's thread (so it must be quick and must not wait for the log),
    /// or here when the answer is known.
    pub(crate) fn on_durable(&self, lsn: Lsn, callback: Callback) {
        match self.check_reserved(lsn) {
            Ok(()) => self.shared.commit.on_durable(lsn.0, callback),
            Err(error) => callback(Err(error)),
        }
    }

    /// The same once more than `lsn` is durable, whether or not anybody has reserved more yet; but
    /// when the answer is known, it is given here, and nobody is called.
    pub(crate) fn on_durable_beyond(&self, lsn: Lsn, callback: Callback) -> Option<Result<()>> {
        let registered = self.shared.commit.register(lsn.0.saturating_add(1), callback);
        registered.err().map(|(outcome, _)| outcome)
    }

    /// Whether the flusher is who asks: in a callback.
    pub(crate) fn is_flusher(&self) -> bool {
        let thread = self.thread.lock();
        thread.as_ref().is_some_and(|flusher| flusher.thread().id() == thread::current().id())
    }

    /// Everything below is durable.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        Lsn(self.shared.commit.durable())
    }

    /// The reserved end of the log.
    pub(crate) fn appended_lsn(&self) -> Lsn {
        // Acquire pairs with the AcqRel of `reserve`: who sees an LSN here sees what its
        // appender did before reserving it.
        Lsn(self.shared.reserved.load(Ordering::Acquire))
    }

    /// Bytes that replay would read now.
    pub(crate) fn bytes_since_checkpoint(&self) -> u64 {
        let checkpoint_lsn = self.shared.checkpoint_lsn.load(Ordering::Relaxed);
        self.appended_lsn().0.saturating_sub(checkpoint_lsn)
    }

    /// Takes no more writes, for good: every wait for what is not durable yet, and every later
    /// one, is an error of kind `ReadOnly` that says `reason`. The first reason stays.
    pub(crate) fn poison(&self, reason: &str) {
        self.shared.poison(reason);
    }

    /// Why the log takes no more writes.
    pub(crate) fn poisoned(&self) -> Option<String> {
        self.shared.commit.poisoned()
    }

    /// The log below `checkpoint_lsn` is no longer needed: call it only after the manifest that
    /// says so is durable. Segments wholly below are kept for readers that lag, or else reused or
    /// removed.
    pub(crate) fn retire(&self, checkpoint_lsn: Lsn) {
        self.shared.checkpoint_lsn.fetch_max(checkpoint_lsn.0, Ordering::Relaxed);
        self.shared.segments.retire(checkpoint_lsn.0);
    }

    /// Keeps at most so many bytes of log for readers that lag, and so many files for reuse, from
    /// now on.
    pub(crate) fn keep(&self, keep_bytes: u64, files: usize) {
        self.shared.segments.keep(keep_bytes, files);
    }

    /// From now on a group that is not alone waits so long for others to join it: fewer groups
    /// write fewer bytes, for each writes the page anew in which the last one ended.
    pub(crate) fn gather(&self, time_us: u64) {
        self.shared.gather_us.store(time_us, Ordering::Relaxed);
    }

    /// Bytes of the files, the spare not counted.
    pub(crate) fn file_bytes(&self) -> FileBytes {
        self.shared.segments.bytes()
    }

    /// Bytes of all files of the log.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let FileBytes { live, kept, free } = self.shared.segments.bytes();
        live + kept + free + self.shared.room.spare_bytes()
    }

    /// The log's counters.
    pub(crate) fn stats(&self) -> WalStats {
        let shared = &*self.shared;
        let (segments, kept_segments, free) = shared.segments.counts();
        let recycled_segments = free + u64::from(shared.room.has_spare());
        let durable_lsn = self.durable_lsn();
        WalStats {
            checkpoint_lsn: Lsn(shared.checkpoint_lsn.load(Ordering::Relaxed)),
            durable_lsn,
            appended_lsn: self.appended_lsn(),
            records: shared.counters.records.load(Ordering::Relaxed),
            fsyncs: shared.counters.fsyncs.load(Ordering::Relaxed),
            bytes: shared.counters.bytes.load(Ordering::Relaxed),
            segments,
            kept_segments,
            recycled_segments,
            disk_bytes: self.disk_bytes(),
            stalls: shared.space.stalls(),
        }
    }

    /// Gives the ring's memory back to the system if nothing is in the ring; whether it has.
    /// Appends wait meanwhile, for about a millisecond for each 16 MiB.
    pub(crate) fn give_back_ring(&self) -> bool {
        let shared = &*self.shared;
        shared.room.while_all_is_free(&shared.space, || {
            // SAFETY: all permits are ours, so nobody has reserved anything or will, and everything
            // published has been written and zeroed: the ring belongs to nobody else until the
            // permits are given, which also hands it on. The flusher may look at a first word
            // meanwhile: it finds zero.
            unsafe { shared.ring.give_back() }
        })
    }

    /// Writes and syncs everything that is reserved, then ends the flusher. Later appends and
    /// waits for what is not durable get `Unavailable`. An error if the log was poisoned.
    pub(crate) fn close(&self) -> Result<()> {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.space.stop();
        self.shared.parker.wake();
        if let Some(thread) = self.thread.lock().take() {
            // A callback may drop the last handle of the log: the flusher cannot join itself.
            let own = thread.thread().id() == thread::current().id();
            if !own && thread.join().is_err() {
                self.shared.poison("the log's flusher panicked");
            }
        }
        self.shared.commit.poisoned().map_or(Ok(()), |reason| Err(read_only(&reason)))
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the log was closed after a failure");
        }
    }
}

impl Shared {
    fn poison(&self, reason: &str) {
        self.commit.poison(reason);
        self.space.stop();
        self.parker.wake();
    }

    /// Why no permit is given any more.
    fn refusal(&self) -> Error {
        self.commit.poisoned().map_or_else(closed, |reason| read_only(&reason))
    }
}

fn read_only(reason: &str) -> Error {
    Error::new(ErrorKind::ReadOnly, format!("the log takes no writes until a reopen: {reason}"))
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the log is closed")
}
