//! Replaying writes on all cores: each worker applies the operations of its share of the keys.
//!
//! Invariants:
//! - the operations of a key are applied in log order: all go to one worker, by the stripe of the
//!   key, so that what a stripe keeps apart while the engine serves is never at work at once here;
//! - a record that changes the shard table is applied while every worker rests, behind all that
//!   the log has before it ([`Workers::drain`]);
//! - regions are merged while no other worker is within an operation;
//! - the error that is reported is that of the first record, in log order, that cannot be replayed;
//! - memory is bounded: a few batches for each worker.

use std::ops::Range;

use super::{Applied, NewValue, apply_op, merge_full};
use crate::error::Error;
use crate::store::Store;
use crate::sync::WordIndex;
use crate::sync::primitives::Mutex;
use crate::sync::primitives::channel::{Receiver, Sender, bounded};
use crate::sync::primitives::thread::{Scope, ScopedJoinHandle};
use crate::types::{Lsn, ValueAt};

/// Batches that wait for a worker.
const QUEUED: usize = 3;
/// Bytes, and operations, of a batch. One operation may be larger.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_OPS: usize = 512;

/// An operation, its bytes in the batch.
struct Op {
    lsn: Lsn,
    revision: u64,
    key: Range<usize>,
    value: Kept,
}

/// What the key gets.
enum Kept {
    Nothing,
    Bytes(Range<usize>),
    At(ValueAt),
}

/// Operations for one worker.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    ops: Vec<Op>,
}

impl Batch {
    fn push(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }
}

enum Message {
    Apply(Batch),
    /// Answer when all before is applied.
    Rest,
}

/// What failed, and at which record.
pub(super) type Failed = (Lsn, Error);

struct Worker<'scope> {
    queue: Sender<Message>,
    /// Answers to [`Message::Rest`]. Ends with the thread, which has the only sender: what is queued
    /// for a thread that has ended is dropped by nobody.
    rested: Receiver<()>,
    /// Batches to be filled again.
    empty: Receiver<Batch>,
    filling: Batch,
    thread: ScopedJoinHandle<'scope, Option<Failed>>,
}

/// Where workers wait for whoever merges: each holds its own while it is within an operation.
pub(super) struct Turns(Vec<Mutex<()>>);

/// Running workers.
pub(super) struct Workers<'scope> {
    workers: Vec<Worker<'scope>>,
}

impl Turns {
    /// For so many workers.
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Mutex::new(())).collect())
    }
}

impl<'scope> Workers<'scope> {
    /// Starts a worker for each turn.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        store: &'env Store,
        turns: &'env Turns,
    ) -> Self {
        let start = |own: usize| {
            let (queue, messages) = bounded(QUEUED);
            let (emptied, empty) = bounded(QUEUED + 1);
            let (resting, rested) = bounded(1);
            let thread =
                scope.spawn(move || work(store, turns, own, &messages, &emptied, &resting));
            Worker { queue, rested, empty, filling: Batch::default(), thread }
        };
        Self { workers: (0..turns.0.len()).map(start).collect() }
    }

    /// Gives an operation to the worker of its key. False when that worker is gone: see
    /// [`finish`](Self::finish).
    pub(super) fn push(
        &mut self,
        lsn: Lsn,
        revision: u64,
        key: &[u8],
        value: NewValue<'_>,
    ) -> bool {
        let count = self.workers.len();
        let worker = &mut self.workers[WordIndex::of(key).share(count)];
        let batch = &mut worker.filling;
        let key = batch.push(key);
        let value = match value {
            NewValue::None => Kept::Nothing,
            NewValue::Bytes(value) => Kept::Bytes(batch.push(value)),
            NewValue::At(at) => Kept::At(at),
        };
        batch.ops.push(Op { lsn, revision, key, value });
        if batch.bytes.len() < BATCH_BYTES && batch.ops.len() < BATCH_OPS {
            return true;
        }
        worker.flush()
    }

    /// Waits until all that was pushed is applied. False when a worker is gone.
    pub(super) fn drain(&mut self) -> bool {
        let asked = self
            .workers
            .iter_mut()
            .all(|worker| worker.flush() && worker.queue.send(Message::Rest).is_ok());
        asked && self.workers.iter().all(|worker| worker.rested.recv().is_ok())
    }

    /// Ends the workers behind all that was pushed; the first failure, in log order.
    pub(super) fn finish(self) -> Option<Failed> {
        let ended = self.workers.into_iter().map(|mut worker| {
            worker.flush();
            drop(worker.queue);
            match worker.thread.join() {
                Ok(failed) => failed,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        ended.collect::<Vec<_>>().into_iter().flatten().min_by_key(|(lsn, _)| *lsn)
    }
}

impl Worker<'_> {
    fn flush(&mut self) -> bool {
        if self.filling.ops.is_empty() {
            return true;
        }
        let empty = self.empty.try_recv().unwrap_or_default();
        let full = std::mem::replace(&mut self.filling, empty);
        self.queue.send(Message::Apply(full)).is_ok()
    }
}

/// One worker's life. An error ends it: what follows in the log counts no more for it, while the
/// others go on with what they have, which may hold an earlier failure.
fn work(
    store: &Store,
    turns: &Turns,
    own: usize,
    messages: &Receiver<Message>,
    emptied: &Sender<Batch>,
    resting: &Sender<()>,
) -> Option<Failed> {
    for message in messages {
        let mut batch = match message {
            Message::Apply(batch) => batch,
            Message::Rest => {
                // Room for one, and one is asked for at a time; nobody waits any more: it does not matter.
                let _ = resting.send(());
                continue;
            }
        };
        if let Err(failed) = apply(store, turns, own, &batch) {
            return Some(failed);
        }
        batch.bytes.clear();
        batch.ops.clear();
        // A batch that was large for one operation is not kept.
        if batch.bytes.capacity() <= 4 * BATCH_BYTES {
            let _ = emptied.try_send(batch);
        }
    }
    None
}

fn apply(store: &Store, turns: &Turns, own: usize, batch: &Batch) -> Result<(), Failed> {
    for Op { lsn, revision, key, value } in &batch.ops {
        let key = &batch.bytes[key.clone()];
        let value = match value {
            Kept::Nothing => NewValue::None,
            Kept::Bytes(value) => NewValue::Bytes(&batch.bytes[value.clone()]),
            Kept::At(at) => NewValue::At(*at),
        };
        loop {
            let turn = turns.0[own].lock();
            let full = match apply_op(store, key, value, *revision).map_err(|e| (*lsn, e))? {
                Applied::Done => break,
                Applied::Full(shard) => shard,
            };
            drop(turn);
            // In order, so that two who merge do not wait for each other.
            let _all: Vec<_> = turns.0.iter().map(|turn| turn.lock()).collect();
            merge_full(store, &full).map_err(|error| (*lsn, error))?;
        }
    }
    Ok(())
}
