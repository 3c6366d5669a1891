//! What writers ask the background threads for.
//!
//! Invariant: a request that is still waiting is not queued again, so the queue holds at most one
//! entry of each kind for each shard and one for the checkpoint.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::primitives::atomic::{AtomicUsize, Ordering};
use crate::sync::primitives::{Condvar, Mutex};

use crate::index::Shard;
use crate::types::InstanceId;

/// A piece of background work.
pub(crate) enum Request {
    /// Merge this shard's append region.
    Reorganize(Arc<Shard>),
    /// Split this shard.
    Split(Arc<Shard>),
    /// Make a checkpoint.
    Checkpoint,
}

/// What a background thread gets.
pub(crate) enum Next {
    /// This is to be done.
    Request(Request),
    /// Nobody has asked for anything in time.
    Nothing,
    /// It is to end.
    Closed,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Request>,
    shards: HashSet<InstanceId>,
    splits: HashSet<InstanceId>,
    checkpoint: bool,
    closed: bool,
}

/// The queue of requests.
#[derive(Default)]
pub(crate) struct Requests {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Apart from `changed`: who pauses must not take a wake-up from who works.
    closing: Condvar,
    /// Who waits for a job that may be resting.
    hurries: AtomicUsize,
}

/// While it lives, no job rests.
pub(crate) struct Hurry<'a>(&'a Requests);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurries.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Requests {
    /// Asks for a reorganize, unless one of this shard is waiting already.
    pub(crate) fn reorganize(&self, shard: &Arc<Shard>) {
        let mut queue = self.queue.lock();
        if !queue.closed && queue.shards.insert(shard.instance) {
            queue.waiting.push_back(Request::Reorganize(Arc::clone(shard)));
            self.changed.notify_one();
        }
    }

    /// Asks for a split, unless one of this shard is waiting already.
    pub(crate) fn split(&self, shard: &Arc<Shard>) {
        let mut queue = self.queue.lock();
        if !queue.closed && queue.splits.insert(shard.instance) {
            queue.waiting.push_back(Request::Split(Arc::clone(shard)));
            self.changed.notify_one();
        }
    }

    /// Asks for a checkpoint, unless one is waiting already.
    pub(crate) fn checkpoint(&self) {
        let mut queue = self.queue.lock();
        if !queue.closed && !std::mem::replace(&mut queue.checkpoint, true) {
            // Before the merges that wait: it does theirs as well, and space and log are given back by
            // nothing else.
            queue.waiting.push_front(Request::Checkpoint);
            self.changed.notify_one();
        }
    }

    /// The next request; blocks for one until `until`.
    pub(crate) fn next(&self, until: Instant) -> Next {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return Next::Closed;
            }
            if let Some(request) = queue.waiting.pop_front() {
                match &request {
                    Request::Reorganize(shard) => {
                        queue.shards.remove(&shard.instance);
                    }
                    Request::Split(shard) => {
                        queue.splits.remove(&shard.instance);
                    }
                    Request::Checkpoint => queue.checkpoint = false,
                }
                return Next::Request(request);
            }
            if self.changed.wait_until(&mut queue, until).timed_out() {
                return if queue.closed { Next::Closed } else { Next::Nothing };
            }
        }
    }

    /// Waits for as long, or until closed.
    pub(crate) fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut queue = self.queue.lock();
        while !queue.closed && !self.closing.wait_until(&mut queue, until).timed_out() {}
    }

    /// Drops what waits and ends every [`next`](Self::next).
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.waiting.clear();
        self.changed.notify_all();
        self.closing.notify_all();
    }

    /// The caller is about to wait for what a job holds: none rests until the answer is dropped.
    pub(crate) fn hurry(&self) -> Hurry<'_> {
        let waiting = self.hurries.fetch_add(1, Ordering::Relaxed);
        if waiting == 0 {
            // Under the lock: a job that has just looked rests already, and hears it.
            let _queue = self.queue.lock();
            self.closing.notify_all();
        }
        Hurry(self)
    }

    /// Waits for as long, until closed, or until somebody is in a [hurry](Self::hurry).
    pub(crate) fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut queue = self.queue.lock();
        // Relaxed: it changes before whoever changed it takes the lock.
        while !queue.closed
            && self.hurries.load(Ordering::Relaxed) == 0
            && !self.closing.wait_until(&mut queue, until).timed_out()
        {}
    }

    /// Whether somebody has asked for something that has not begun.
    pub(crate) fn any_waits(&self) -> bool {
        !self.queue.lock().waiting.is_empty()
    }

    /// Whether the engine is closing.
    pub(crate) fn is_closed(&self) -> bool {
        self.queue.lock().closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::SortedRegion;
    use crate::types::{KeyRange, ShardId};

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_checkpoint_comes_before_the_merges_that_wait() {
        let requests = Requests::default();
        let shard = |id| {
            let sorted = SortedRegion::empty();
            let (id, instance) = (ShardId(id), InstanceId(id));
            Arc::new(Shard::new(id, instance, 1, KeyRange::all(), sorted, 1 << 13, false))
        };
        requests.reorganize(&shard(1));
        requests.split(&shard(2));
        requests.checkpoint();
        requests.checkpoint();
        let next = || match requests.next(Instant::now()) {
            Next::Request(Request::Checkpoint) => "checkpoint",
            Next::Request(Request::Reorganize(_)) => "reorganize",
            Next::Request(Request::Split(_)) => "split",
            Next::Nothing | Next::Closed => "nothing",
        };
        assert_eq!(
            [next(), next(), next(), next()],
            ["checkpoint", "reorganize", "split", "nothing"]
        );
    }

    /// Ends at once, or the test hangs for ten minutes.
    #[test]
    fn a_rest_ends_for_whoever_is_in_a_hurry_and_for_a_close() {
        let requests = Requests::default();
        std::thread::scope(|scope| {
            let resting = scope.spawn(|| requests.rest(LONG));
            let hurry = requests.hurry();
            let second = requests.hurry();
            assert!(resting.join().is_ok());
            drop(hurry);
            requests.rest(LONG);
            drop(second);
            // Nobody is in a hurry any more.
            let began = Instant::now();
            requests.rest(Duration::from_millis(5));
            assert!(began.elapsed() >= Duration::from_millis(5));
            let resting = scope.spawn(|| requests.rest(LONG));
            requests.close();
            assert!(resting.join().is_ok());
        });
    }
}
