//! [`Part`]: the operations of a frame that one server answers.
//!
//! Invariants: results are taken in the order in which the operations were sent, which is that of the
//! frame; once the server has failed, the rest of the part has that failure.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::stream::StreamExt as _;
use vmemkv_proto::v1;

use super::kind::{Answers, FrameKind};
use crate::channel_pool::Connection;
use crate::deadline::Deadline;
use crate::dispatch::failure::Failure;
use crate::dispatch::plan::Plan;
use crate::routes::Route;

/// Operations that were sent to one server.
pub(crate) struct Part<K: FrameKind> {
    /// Indexes in the frame, ascending, with the route that each was sent along; without those
    /// whose results have come.
    waiting: VecDeque<(usize, Arc<Route>)>,
    /// Results that have come and were not taken.
    ready: VecDeque<Ready<K>>,
    source: Source<K>,
}

/// A result that has come.
pub(crate) struct Ready<K: FrameKind> {
    pub(crate) index: usize,
    pub(crate) route: Arc<Route>,
    pub(crate) result: K::Result,
}

enum Source<K: FrameKind> {
    Open { connection: Connection, answers: Answers<K::Result>, came: u64 },
    Failed(Failure),
}

impl<K: FrameKind> Part<K> {
    /// Sends operations; a failure to do so is that of the part.
    pub(crate) async fn send(
        plan: &Plan,
        members: Vec<(usize, Arc<Route>)>,
        ops: Vec<K::Op>,
        extra: K::Extra,
        total: Deadline,
    ) -> Self {
        let source = match Self::open(plan, &members, ops, extra, total).await {
            Ok((connection, answers)) => Source::Open { connection, answers, came: 0 },
            Err(failure) => Source::Failed(failure),
        };
        Self { waiting: members.into(), ready: VecDeque::new(), source }
    }

    async fn open(
        plan: &Plan,
        members: &[(usize, Arc<Route>)],
        ops: Vec<K::Op>,
        extra: K::Extra,
        total: Deadline,
    ) -> Result<(Connection, Answers<K::Result>), Failure> {
        let Some((_, first)) = members.first() else {
            return Err(Failure::of_lag("an empty part"));
        };
        let connection = plan.connect(first).await?;
        if plan.deadline().has_passed() {
            return Err(Failure::not_sent(Deadline::passed(K::NAME)));
        }
        let mut routes: Vec<v1::RouteHint> = Vec::new();
        for hint in members.iter().filter_map(|(_, route)| route.hint()) {
            if !routes.contains(&hint) {
                routes.push(hint);
            }
        }
        let sent = K::send(connection.channel(), ops, routes, extra, total);
        match plan.deadline().bound(sent).await {
            Some(Ok(answers)) => Ok((connection, answers)),
            Some(Err(status)) => {
                let failure = Failure::of_status(&status, K::WRITE);
                if failure.is_broken() {
                    connection.broken();
                }
                Err(failure)
            }
            None => Err(Failure::timed_out(K::NAME, K::WRITE)),
        }
    }

    /// Waits until the result of the next operation is there; the error is that of all the rest.
    pub(crate) async fn fill(&mut self, deadline: Deadline) -> Result<(), Failure> {
        while self.ready.is_empty() {
            let failure =
                match &mut self.source {
                    Source::Failed(failure) => return Err(failure.clone()),
                    Source::Open { connection, answers, came } => {
                        match deadline.bound(answers.next()).await {
                            Some(Some(Ok((first, results)))) => {
                                if first != *came || results.len() > self.waiting.len() {
                                    Self::nonsense()
                                } else {
                                    *came += results.len() as u64;
                                    let pairs = self.waiting.drain(..results.len()).zip(results);
                                    self.ready.extend(pairs.map(|((index, route), result)| {
                                        Ready { index, route, result }
                                    }));
                                    continue;
                                }
                            }
                            Some(Some(Err(status))) => {
                                let failure = Failure::of_status(&status, K::WRITE);
                                if failure.is_broken() {
                                    connection.broken();
                                }
                                failure.half_way(K::WRITE && *came > 0)
                            }
                            Some(None) => Self::nonsense(),
                            None => Failure::timed_out(K::NAME, K::WRITE),
                        }
                    }
                };
            self.source = Source::Failed(failure);
        }
        Ok(())
    }

    /// The next result, if it has come.
    pub(crate) fn peek(&self) -> Option<&Ready<K>> {
        self.ready.front()
    }

    pub(crate) fn pop(&mut self) -> Option<Ready<K>> {
        self.ready.pop_front()
    }

    /// Takes out what has come and is to be tried again.
    pub(crate) fn take_ready(&mut self, again: impl Fn(&Ready<K>) -> bool) -> Vec<usize> {
        let (again, keep): (VecDeque<_>, VecDeque<_>) = self.ready.drain(..).partition(again);
        self.ready = keep;
        again.into_iter().map(|ready| ready.index).collect()
    }

    /// Takes out all that is still waited for.
    pub(crate) fn take_waiting(&mut self) -> Vec<usize> {
        self.waiting.drain(..).map(|(index, _)| index).collect()
    }

    /// The next operation that is waited for has been answered otherwise.
    pub(crate) fn skip_waiting(&mut self) {
        self.waiting.pop_front();
    }

    /// The route of the next operation that is waited for.
    pub(crate) fn waiting_route(&self) -> Option<Arc<Route>> {
        self.waiting.front().map(|(_, route)| Arc::clone(route))
    }

    /// An end without all results, or results that do not fit: what happened is not known.
    fn nonsense() -> Failure {
        let broken = format!("{}: the server's answers end early or do not fit", K::NAME);
        Failure::of_status(&tonic::Status::from_error(broken.into()), K::WRITE)
    }
}
