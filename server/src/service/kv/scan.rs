//! Scan: a range as a stream.
//!
//! Invariants: between two parts nothing of the engine is held; the next part is read only when
//! there is room for it, so a slow reader holds about two messages and no lock; every part is
//! admitted anew; `covered_to` of each message is where a caller may go on.

use std::num::NonZeroU64;

use bytes::Bytes;
use tokio::sync::mpsc::{self, Permit, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use vmemkv_engine::{KeyRange as EngineRange, ScanChunk, ScanOptions};
use vmemkv_proto::convert::{KeyRange, Scan};
use vmemkv_proto::limits::{ANSWER_TARGET_BYTES, ENTRY_OVERHEAD_BYTES};
use vmemkv_proto::{ApiError, v1};

use super::caller::{Caller, Stop};
use super::pipeline::guarded;
use crate::engine_error::{self, Effect};
use crate::io_pool::Class;

/// Most entries that are asked of the engine at a time: small ones cost more than their bytes.
const CHUNK_ENTRIES_MAX: u64 = 16_384;
/// Messages that wait for the transport.
const MESSAGES_WAITING: usize = 1;

/// Starts a scan.
pub(super) fn serve(
    caller: Caller,
    request: v1::ScanRequest,
) -> Result<ReceiverStream<Result<v1::ScanResponse, Status>>, ApiError> {
    let scan = Scan::try_from(request)?;
    // A wrong route is told at once, before the stream begins.
    caller.node.ownership.admit_range(&scan.range, scan.route.as_ref())?;
    let (out, parts) = mpsc::channel(MESSAGES_WAITING);
    tokio::spawn(guarded(
        {
            let out = out.clone();
            async move {
                let mut run = ScanRun::new(caller.clone(), scan);
                let result = run.deliver(&out, |part| v1::ScanResponse {
                    entries: part.entries,
                    covered_to: part.covered_to,
                    done: part.done,
                });
                match result.await {
                    Ok(()) => {}
                    Err(Stop::Gone) => caller.count_gone(),
                    Err(Stop::Failed(error)) => caller.fail(&out, &error).await,
                }
            }
        },
        out,
    ));
    Ok(ReceiverStream::new(parts))
}

/// A part of a scan, for one message.
pub(super) struct ScanPart {
    /// Entries in the order of the scan.
    pub(super) entries: Vec<v1::Entry>,
    /// How far the scan has come.
    pub(super) covered_to: Bytes,
    /// Nothing follows.
    pub(super) done: bool,
}

/// A scan under way.
pub(super) struct ScanRun {
    caller: Caller,
    scan: Scan,
    /// What has not been delivered.
    rest: KeyRange,
    /// How many entries may still come; none: any number.
    left: Option<u64>,
}

impl ScanRun {
    /// A scan that has delivered nothing.
    pub(super) fn new(caller: Caller, scan: Scan) -> Self {
        let (rest, left) = (scan.range.clone(), scan.limit.map(NonZeroU64::get));
        Self { caller, scan, rest, left }
    }

    /// How far it has come, as `covered_to` of a message says it.
    pub(super) fn covered_to(&self) -> Bytes {
        if self.scan.reverse {
            self.rest.end().cloned().unwrap_or_default()
        } else {
            self.rest.start().clone()
        }
    }

    /// Delivers all of it to `out`.
    pub(super) async fn deliver<T: Send>(
        &mut self,
        out: &Sender<Result<T, Status>>,
        message: impl Fn(ScanPart) -> T,
    ) -> Result<(), Stop> {
        loop {
            let mut permit = self.room(out).await?;
            let (chunk, done) = if self.rest.is_empty() {
                (ScanChunk::default(), true)
            } else {
                self.next_chunk().await?
            };
            let mut part = Vec::new();
            let mut bytes = 0;
            for (key, value) in chunk.entries {
                let size = key.len() + value.len() + ENTRY_OVERHEAD_BYTES;
                if !part.is_empty() && bytes + size > ANSWER_TARGET_BYTES {
                    let entries = std::mem::take(&mut part);
                    let covered_to = self.behind(&entries);
                    self.advance(&covered_to);
                    permit.send(Ok(message(ScanPart { entries, covered_to, done: false })));
                    permit = self.room(out).await?;
                    bytes = 0;
                }
                bytes += size;
                part.push(v1::Entry { key: key.into(), value: value.into() });
            }
            let covered_to = Bytes::from(chunk.covered_to);
            if done {
                let covered_to = self.end_of_scan(covered_to);
                permit.send(Ok(message(ScanPart { entries: part, covered_to, done })));
                return Ok(());
            }
            if !self.advance(&covered_to) {
                return Err(ApiError::internal("the scan does not advance").into());
            }
            permit.send(Ok(message(ScanPart { entries: part, covered_to, done })));
        }
    }

    /// Waits until the caller has taken what was sent before.
    async fn room<'a, T: Send>(
        &self,
        out: &'a Sender<Result<T, Status>>,
    ) -> Result<Permit<'a, Result<T, Status>>, Stop> {
        self.caller.unless_stopped(out.reserve()).await?.map_err(|_| Stop::Gone)
    }

    /// The next entries, and whether they are the last ones.
    async fn next_chunk(&mut self) -> Result<(ScanChunk, bool), ApiError> {
        let node = &self.caller.node;
        let admission = node.ownership.admit_range(&self.rest, self.scan.route.as_ref())?;
        let engine = node.engine()?;
        let limit = self.left.unwrap_or(u64::MAX).min(CHUNK_ENTRIES_MAX);
        let options = ScanOptions {
            range: engine_range(&self.rest),
            reverse: self.scan.reverse,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            keys_only: self.scan.keys_only,
            max_bytes: ANSWER_TARGET_BYTES,
        };
        let job = move || {
            let chunk = engine.scan(&options);
            drop(admission);
            chunk
        };
        let chunk =
            node.pool.run(Class::Read, job).await?.map_err(|error| {
                engine_error::to_api(&error, Effect::None, &node.ownership.table())
            })?;
        node.ownership.require_lease()?;
        let count = chunk.entries.len() as u64;
        self.left = self.left.map(|left| left.saturating_sub(count));
        let range_done = chunk.done && count < limit || self.covers_rest(&chunk.covered_to);
        Ok((chunk, range_done || self.left == Some(0)))
    }

    fn covers_rest(&self, covered_to: &[u8]) -> bool {
        if self.scan.reverse {
            covered_to <= self.rest.start().as_ref()
        } else {
            covered_to.is_empty() || self.rest.end().is_some_and(|end| covered_to >= end.as_ref())
        }
    }

    /// What the last message says: the limit may have ended the scan before its range.
    fn end_of_scan(&self, covered_to: Bytes) -> Bytes {
        let (start, end) = self.scan.range.clone().into_wire();
        let limit_ended_it = self.left == Some(0) && !self.covers_rest(&covered_to);
        match (limit_ended_it, self.scan.reverse) {
            (true, _) => covered_to,
            (false, true) => start,
            (false, false) => end,
        }
    }

    /// Where a caller goes on behind these entries.
    fn behind(&self, entries: &[v1::Entry]) -> Bytes {
        let Some(last) = entries.last() else { return self.covered_to() };
        if self.scan.reverse {
            return last.key.clone();
        }
        let mut next = Vec::with_capacity(last.key.len() + 1);
        next.extend_from_slice(&last.key);
        next.push(0);
        next.into()
    }

    /// Leaves out what has been covered; false: that was nothing.
    fn advance(&mut self, covered_to: &Bytes) -> bool {
        let before = self.covered_to();
        let (start, end) = self.rest.clone().into_wire();
        self.rest = if self.scan.reverse {
            KeyRange::new(start, covered_to.clone())
        } else {
            KeyRange::new(covered_to.clone(), end)
        };
        *covered_to != before
    }
}

/// The range as the engine has it.
pub(super) fn engine_range(range: &KeyRange) -> EngineRange {
    EngineRange::new(
        range.start().to_vec(),
        range.end().map(|end| end.to_vec()).unwrap_or_default(),
    )
}
