//! Scans across shards: [`ScanChunks`].
//!
//! Invariants: the next server is asked from where the last one said it had covered; entries come
//! once and in order, whatever fails on the way; one answer is held at a time, and the next is only
//! read when it is asked for.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::ready;
use futures::stream::{BoxStream, Stream, StreamExt as _, once, try_unfold};
use tonic::Streaming;
use vmemkv_proto::convert::{KeyRange, Scan};
use vmemkv_proto::v1::kv_client::KvClient;
use vmemkv_proto::{ErrorKind, v1};

use super::core::Core;
use super::failure::Failure;
use super::plan::Plan;
use super::position::Position;
use crate::channel_pool::Connection;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::limited;
use crate::remote_routers::timed;
use crate::routes::Route;

/// The answers of a scan, as one server with every shard would give them. Ends after an error, or
/// after the answer that is `done`.
pub struct ScanChunks(BoxStream<'static, Result<v1::ScanResponse>>);

impl ScanChunks {
    /// The scan must have been checked. `deadline` bounds the whole, `step` the time to each answer
    /// that is waited for.
    pub(super) fn new(core: &Arc<Core>, scan: Scan, deadline: Deadline, step: Duration) -> Self {
        let run = Run {
            plan: Plan::new(core, deadline, false),
            position: Position::new(scan.range.clone(), scan.reverse),
            left: scan.limit.map(std::num::NonZeroU64::get),
            scan,
            deadline,
            step,
            open: None,
            ended: false,
        };
        let chunks =
            try_unfold(
                run,
                |mut run| async move { Ok(run.next().await?.map(|chunk| (chunk, run))) },
            );
        Self(chunks.boxed())
    }

    /// A scan that was refused.
    pub(super) fn failed(error: Error) -> Self {
        Self(once(ready(Err(error))).boxed())
    }
}

impl fmt::Debug for ScanChunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScanChunks")
    }
}

impl Stream for ScanChunks {
    type Item = Result<v1::ScanResponse>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

/// A scan under way.
struct Run {
    plan: Plan,
    scan: Scan,
    position: Position,
    /// Entries that may still come; none: any number.
    left: Option<u64>,
    deadline: Deadline,
    step: Duration,
    open: Option<Open>,
    ended: bool,
}

/// The part of a scan that one server answers.
struct Open {
    route: Arc<Route>,
    asked: KeyRange,
    connection: Connection,
    answers: Streaming<v1::ScanResponse>,
    /// It has covered something.
    useful: bool,
}

impl Run {
    async fn next(&mut self) -> Result<Option<v1::ScanResponse>> {
        if self.ended {
            return Ok(None);
        }
        self.plan.set_deadline(self.deadline.min(Deadline::within(self.step)));
        if self.position.finished() {
            return Ok(Some(self.last(Vec::new())));
        }
        loop {
            let Some(mut open) = self.open.take() else {
                self.open_next().await?;
                continue;
            };
            let deadline = self.plan.deadline();
            let failure = match deadline.bound(open.answers.message()).await {
                Some(Ok(Some(answer))) => {
                    if let Some(chunk) = self.take(open, answer)? {
                        return Ok(Some(chunk));
                    }
                    continue;
                }
                Some(Ok(None)) if open.useful => continue,
                Some(Ok(None)) => Failure::of_lag("scan: the server has covered nothing"),
                Some(Err(status)) => Failure::of_status(&status, false),
                None => Failure::timed_out("scan", false),
            };
            if failure.is_broken() {
                open.connection.broken();
            }
            self.plan.after(&self.position.key(), &open.route, &failure).await?;
        }
    }

    /// Asks the server of the next shard.
    async fn open_next(&mut self) -> Result<()> {
        let key = self.position.key();
        let route = self.plan.route(&key).await?;
        let asked = self.position.within(route.shard());
        match self.ask(&route, asked).await {
            Ok(open) => self.open = Some(open),
            Err(failure) => self.plan.after(&key, &route, &failure).await?,
        }
        Ok(())
    }

    async fn ask(&self, route: &Arc<Route>, asked: KeyRange) -> Result<Open, Failure> {
        let connection = self.plan.connect(route).await?;
        let (start, end) = asked.clone().into_wire();
        let request = v1::ScanRequest {
            start,
            end,
            prefix: bytes::Bytes::new(),
            limit: self.left.unwrap_or(0),
            reverse: self.scan.reverse,
            keys_only: self.scan.keys_only,
            route: route.hint(),
        };
        let mut client = limited!(KvClient::new(connection.channel()));
        let request = timed(request, self.deadline);
        let answered = self.plan.deadline().bound(client.scan(request)).await;
        match answered {
            Some(Ok(answer)) => Ok(Open {
                route: Arc::clone(route),
                asked,
                connection,
                answers: answer.into_inner(),
                useful: false,
            }),
            Some(Err(status)) => {
                let failure = Failure::of_status(&status, false);
                if failure.is_broken() {
                    connection.broken();
                }
                Err(failure)
            }
            None => Err(Failure::timed_out("scan", false)),
        }
    }

    /// Takes an answer; none: it brought nothing to tell.
    fn take(
        &mut self,
        mut open: Open,
        answer: v1::ScanResponse,
    ) -> Result<Option<v1::ScanResponse>> {
        let v1::ScanResponse { mut entries, covered_to, done } = answer;
        if !entries.iter().all(|entry| open.asked.contains(&entry.key)) {
            return Err(Error::refused(
                ErrorKind::Internal,
                "scan: the server sent a key that it was not asked for",
            ));
        }
        if let Some(left) = &mut self.left {
            entries.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= entries.len() as u64;
        }
        let last = entries.last().map(|entry| entry.key.clone());
        let full = self.left == Some(0);
        // A limit that is reached ends the scan where its last entry is.
        let (covered, done_here) =
            if full { (bytes::Bytes::new(), false) } else { (covered_to, done) };
        let further = self.position.advance(&open.asked, last.as_ref(), &covered, done_here);
        if further {
            open.useful = true;
            self.plan.progressed();
        }
        if full || self.position.finished() {
            return Ok(Some(self.last(entries)));
        }
        // Of the rest of what was asked for, if there is one.
        open.asked = self.position.within(open.route.shard());
        if !done {
            self.open = Some(open);
        } else if !open.useful {
            // The stream ends now; that it covered nothing is found there.
            self.open = Some(open);
        }
        let chunk =
            v1::ScanResponse { entries, covered_to: self.position.covered_to(), done: false };
        Ok(Some(chunk).filter(|chunk| further || !chunk.entries.is_empty()))
    }

    /// The last answer.
    fn last(&mut self, entries: Vec<v1::Entry>) -> v1::ScanResponse {
        self.ended = true;
        let covered_to = if self.position.finished() {
            self.position.far_bound()
        } else {
            self.position.covered_to()
        };
        v1::ScanResponse { entries, covered_to, done: true }
    }
}
