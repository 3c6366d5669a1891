//! [`FrameRun`]: one frame under way.
//!
//! A frame is worked on in segments, each up to the first key that repeats (frames of reads have one):
//! within a segment nothing depends on order, so that what was refused can be sent again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use vmemkv_proto::ApiError;

use super::kind::FrameKind;
use super::part::Part;
use crate::deadline::Deadline;
use crate::dispatch::core::Core;
use crate::dispatch::failure::Failure;
use crate::dispatch::plan::Plan;
use crate::error::Error;
use crate::routes::Route;

/// An operation, by its index, and the route that it is sent along.
type Member = (usize, Arc<Route>);

/// A frame under way: [`FrameRun::next`] gives its results in order.
pub(crate) struct FrameRun<K: FrameKind> {
    core: Arc<Core>,
    plan: Plan,
    ops: Vec<K::Op>,
    extra: K::Extra,
    /// Bounds the whole, and is told to servers.
    deadline: Deadline,
    /// Bounds each result that is waited for.
    step: Duration,
    /// The next result to give.
    next: usize,
    /// End of the segment that was sent.
    sent: usize,
    /// Per operation that was sent: the index of its part.
    owners: Vec<usize>,
    parts: Vec<Part<K>>,
    /// Errors of operations that could not be sent at all.
    unsent: HashMap<usize, Error>,
    /// Keys of writes whose outcome is unknown.
    unresolved: HashSet<Bytes>,
}

impl<K: FrameKind> FrameRun<K> {
    /// Sends a frame, or its first segment. Its size must have been checked; a bad key fails alone.
    pub(crate) async fn start(
        core: &Arc<Core>,
        ops: Vec<K::Op>,
        extra: K::Extra,
        deadline: Deadline,
        step: Duration,
    ) -> Self {
        let mut run = Self {
            core: Arc::clone(core),
            plan: Plan::new(core, deadline, K::WRITE),
            owners: vec![usize::MAX; ops.len()],
            ops,
            extra,
            deadline,
            step,
            next: 0,
            sent: 0,
            parts: Vec::new(),
            unsent: HashMap::new(),
            unresolved: HashSet::new(),
        };
        run.start_step();
        run.send_segment().await;
        run
    }

    /// Index of the result that comes next.
    pub(crate) fn index(&self) -> usize {
        self.next
    }

    /// How many operations the frame has.
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// The next result; none: all have been given.
    pub(crate) async fn next(&mut self) -> Option<K::Result> {
        if self.next >= self.ops.len() {
            return None;
        }
        self.start_step();
        if self.next >= self.sent {
            self.send_segment().await;
        }
        let result = self.resolve(self.next).await;
        self.next += 1;
        if self.next == self.sent {
            self.parts.clear();
        }
        Some(result)
    }

    fn start_step(&mut self) {
        self.plan.set_deadline(self.deadline.min(Deadline::within(self.step)));
    }

    /// Sends the operations from `self.sent` on, up to the first key that repeats.
    async fn send_segment(&mut self) {
        let begin = self.sent;
        let mut end = self.ops.len();
        if K::WRITE && !K::is_whole(&self.extra) {
            let mut keys = HashSet::with_capacity(end - begin);
            let fresh = self.ops[begin..].iter().take_while(|op| keys.insert(K::key(op))).count();
            end = begin + fresh;
        }
        self.sent = end;
        let mut members = Vec::with_capacity(end - begin);
        for index in begin..end {
            if let Err(refused) = K::check(&self.ops[index]) {
                self.unsent.insert(index, refused.into());
            } else if self.unresolved.contains(K::key(&self.ops[index])) {
                let message = "an earlier write of this key in the frame has an unknown outcome";
                let refused = ApiError::unavailable(message, 0);
                self.unsent.insert(index, refused.into());
            } else {
                members.push(index);
            }
        }
        self.send(members).await;
    }

    /// Sends operations, split by who owns their keys.
    async fn send(&mut self, members: Vec<usize>) {
        let mut groups: HashMap<(u64, String), Vec<Member>> = HashMap::new();
        let whole = K::is_whole(&self.extra);
        let mut last: Option<Arc<Route>> = None;
        for index in members {
            let key = K::key(&self.ops[index]).clone();
            // Of a frame that stays whole, the first key says where it goes.
            let known = last.clone().filter(|route| whole || self.leads_to(route, &key));
            let route = match known {
                Some(route) => route,
                None => match self.plan.route(&key).await {
                    Ok(route) => route,
                    Err(error) => {
                        self.unsent.insert(index, error);
                        continue;
                    }
                },
            };
            last = Some(Arc::clone(&route));
            let node = (route.shard().node_id, route.shard().address.clone());
            groups.entry(node).or_default().push((index, route));
        }
        let (plan, ops, extra, deadline) = (&self.plan, &self.ops, &self.extra, self.deadline);
        let parts = join_all(groups.into_values().map(|members| {
            let ops = members.iter().map(|(index, _)| ops[*index].clone()).collect();
            let indexes: Vec<_> = members.iter().map(|(index, _)| *index).collect();
            async move {
                let part = Part::send(plan, members, ops, extra.clone(), deadline).await;
                (indexes, part)
            }
        }))
        .await;
        for (indexes, part) in parts {
            for index in indexes {
                self.owners[index] = self.parts.len();
            }
            self.parts.push(part);
        }
    }

    /// Whether the newest route of a key is this one; spares most look-ups in sorted frames.
    fn leads_to(&self, route: &Arc<Route>, key: &Bytes) -> bool {
        route.shard().contains(key)
            && self.core.table.cached(key).is_some_and(|known| Arc::ptr_eq(&known, route))
    }

    /// The result of one operation, whatever it takes.
    async fn resolve(&mut self, index: usize) -> K::Result {
        loop {
            if let Some(error) = self.unsent.remove(&index) {
                return K::failed(error.to_wire());
            }
            let owner = self.owners[index];
            let filled = self.parts[owner].fill(self.plan.deadline()).await;
            let (failure, route, came) = match filled {
                Ok(()) => {
                    let again = self.parts[owner].peek().and_then(|ready| {
                        let failure = Self::refusal(&ready.result, &self.extra)?;
                        Some((failure, Arc::clone(&ready.route)))
                    });
                    let Some((failure, route)) = again else {
                        return self.give(owner, index);
                    };
                    (failure, route, true)
                }
                Err(failure) => {
                    let Some(route) = self.parts[owner].waiting_route() else {
                        return self.fail(index, failure.error());
                    };
                    (failure, route, false)
                }
            };
            let key = K::key(&self.ops[index]).clone();
            if let Err(error) = self.plan.after(&key, &route, &failure).await {
                if came {
                    return self.give(owner, index);
                }
                self.parts[owner].skip_waiting();
                return self.fail(index, &error);
            }
            let extra = self.extra.clone();
            let again = if came {
                self.parts[owner].take_ready(|ready| Self::refusal(&ready.result, &extra).is_some())
            } else {
                self.parts[owner].take_waiting()
            };
            self.send(again).await;
        }
    }

    /// The failure of an operation that may be sent again.
    fn refusal(result: &K::Result, extra: &K::Extra) -> Option<Failure> {
        if K::is_whole(extra) {
            return None;
        }
        let failure = Failure::of_wire(K::error(result)?, K::WRITE);
        failure.may_retry(K::WRITE).then_some(failure)
    }

    /// Gives a result that has come.
    fn give(&mut self, owner: usize, index: usize) -> K::Result {
        let Some(ready) = self.parts[owner].pop() else {
            return self.fail(index, Failure::of_lag("the result was lost").error());
        };
        debug_assert_eq!(ready.index, index);
        match K::error(&ready.result) {
            Some(error) => {
                let failure = Failure::of_wire(error, K::WRITE);
                self.note(index, failure.error());
            }
            None => self.plan.progressed(),
        }
        ready.result
    }

    fn fail(&mut self, index: usize, error: &Error) -> K::Result {
        self.note(index, error);
        K::failed(error.to_wire())
    }

    /// Remembers a write whose outcome is unknown.
    fn note(&mut self, index: usize, error: &Error) {
        if K::WRITE && error.is_unknown() {
            self.unresolved.insert(K::key(&self.ops[index]).clone());
        }
    }
}
