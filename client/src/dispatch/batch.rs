//! Frames in, answers out: whole frames as a proxy passes them on ([`BatchGetAnswers`],
//! [`BatchPutAnswers`]), and endless streams of keys or operations cut into frames.
//!
//! Invariants: an answer stays below what stock clients accept, unless one value alone is larger; the
//! errors of one answer share a budget; at most [`FRAMES_IN_FLIGHT`] frames of a stream are sent
//! before the first of them has been read to its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, Fuse, Stream, StreamExt as _, unfold};
use futures::{FutureExt as _, future};
use tokio::task::JoinHandle;
use vmemkv_proto::limits::{
    ANSWER_MAX_BYTES, ANSWER_TARGET_BYTES, MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS,
};
use vmemkv_proto::status::ErrorBudget;
use vmemkv_proto::{ApiError, ErrorKind, v1};

use super::core::Core;
use super::frame::{FrameKind, FrameRun, Gets, Puts, PutsExtra};
use super::gate::{GateGuard, KeyGate};
use crate::deadline::Deadline;
use crate::error::Error;

/// Frames of one stream under way at once.
pub(crate) const FRAMES_IN_FLIGHT: usize = 8;

/// A frame that is answered in messages.
struct Answers<K: FrameKind> {
    id: u64,
    run: FrameRun<K>,
    /// A result that did not fit into the last message.
    held: Option<K::Result>,
    done: bool,
}

impl<K: FrameKind> Answers<K> {
    fn new(id: u64, run: FrameRun<K>) -> Self {
        Self { id, run, held: None, done: false }
    }

    /// Index of the first result, results, whether these are the last.
    async fn next(&mut self) -> Option<(u64, Vec<K::Result>, bool)> {
        if self.done {
            return None;
        }
        let first = self.run.index() - usize::from(self.held.is_some());
        let mut budget = ErrorBudget::new();
        let mut results = Vec::new();
        let mut bytes = 0;
        while bytes < ANSWER_TARGET_BYTES {
            let next = match self.held.take() {
                Some(held) => Some(held),
                None => self.run.next().await,
            };
            let Some(mut result) = next else { break };
            let more = K::result_bytes(&result);
            if !results.is_empty() && bytes + more > ANSWER_MAX_BYTES {
                self.held = Some(result);
                break;
            }
            bytes += more;
            if let Some(error) = K::error(&result) {
                result = K::failed(budget.encode(&ApiError::from(error.clone())));
            }
            results.push(result);
        }
        self.done = self.held.is_none() && self.run.index() >= self.run.len();
        Some((first as u64, results, self.done))
    }
}

/// The answers to a frame of BatchGet, in order.
pub struct BatchGetAnswers(Answers<Gets>);

impl BatchGetAnswers {
    pub(super) async fn start(
        core: &Arc<Core>,
        request: v1::BatchGetRequest,
        deadline: Deadline,
        step: Duration,
    ) -> Self {
        let run = FrameRun::start(core, request.keys, (), deadline, step).await;
        Self(Answers::new(request.id, run))
    }

    /// The next answer; none: the last one, which says that it is `done`, has been given.
    pub async fn next(&mut self) -> Option<v1::BatchGetResponse> {
        let (first, results, done) = self.0.next().await?;
        Some(v1::BatchGetResponse { id: self.0.id, first, results, done })
    }
}

impl fmt::Debug for BatchGetAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BatchGetAnswers({})", self.0.id)
    }
}

/// The answers to a frame of BatchPut, in order.
pub struct BatchPutAnswers(Answers<Puts>);

impl BatchPutAnswers {
    pub(super) async fn start(
        core: &Arc<Core>,
        request: v1::BatchPutRequest,
        deadline: Deadline,
        step: Duration,
    ) -> Self {
        let v1::BatchPutRequest { id, operations, atomic, request_id, routes: _ } = request;
        let extra = PutsExtra { atomic, request_id };
        let run = FrameRun::start(core, operations, extra, deadline, step).await;
        Self(Answers::new(id, run))
    }

    /// The next answer; none: the last one, which says that it is `done`, has been given.
    pub async fn next(&mut self) -> Option<v1::BatchPutResponse> {
        let (first, results, done) = self.0.next().await?;
        Some(v1::BatchPutResponse { id: self.0.id, first, results, done })
    }
}

impl fmt::Debug for BatchPutAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BatchPutAnswers({})", self.0.id)
    }
}

/// The results of an endless stream of keys, in order.
pub(crate) fn get_stream(
    core: &Arc<Core>,
    keys: BoxStream<'static, Bytes>,
    step: Duration,
) -> BoxStream<'static, v1::BatchGetResult> {
    let core = Arc::clone(core);
    frames::<Gets>(keys)
        .map(move |keys| {
            let core = Arc::clone(&core);
            Started::<Gets>::spawn(async move {
                (FrameRun::start(&core, keys, (), Deadline::none(), step).await, None)
            })
        })
        .buffered(FRAMES_IN_FLIGHT)
        .flat_map(results)
        .boxed()
}

/// The results of an endless stream of operations, in order. Frames that share a key follow one
/// another.
pub(crate) fn put_stream(
    core: &Arc<Core>,
    operations: BoxStream<'static, v1::BatchOperation>,
    step: Duration,
) -> BoxStream<'static, v1::BatchPutResult> {
    let core = Arc::clone(core);
    let gate = KeyGate::default();
    frames::<Puts>(operations)
        .then(move |operations| {
            let gate = gate.clone();
            async move { (gate.enter(&operations).await, operations) }
        })
        .map(move |(guard, operations)| {
            let core = Arc::clone(&core);
            Started::<Puts>::spawn(async move {
                let extra = PutsExtra::default();
                let run = FrameRun::start(&core, operations, extra, Deadline::none(), step).await;
                (run, Some(guard))
            })
        })
        .buffered(FRAMES_IN_FLIGHT)
        .flat_map(results)
        .boxed()
}

/// A frame whose sending goes on by itself; it stops when this is dropped.
struct Started<K: FrameKind>(JoinHandle<(FrameRun<K>, Option<GateGuard>)>);

impl<K: FrameKind> Started<K> {
    fn spawn(
        work: impl Future<Output = (FrameRun<K>, Option<GateGuard>)> + Send + 'static,
    ) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<K: FrameKind> Drop for Started<K> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<K: FrameKind> Future for Started<K> {
    type Output = Option<(FrameRun<K>, Option<GateGuard>)>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        self.0.poll_unpin(cx).map(Result::ok)
    }
}

/// The results of a frame that was sent; its keys are free once all are read.
fn results<K: FrameKind>(
    started: Option<(FrameRun<K>, Option<GateGuard>)>,
) -> impl Stream<Item = K::Result> + Send {
    match started {
        Some(started) => unfold(started, |(mut run, guard)| async move {
            let result = run.next().await?;
            Some((result, (run, guard)))
        })
        .boxed(),
        // Only when the runtime ends.
        None => {
            let error = Error::from(ApiError::new(ErrorKind::Cancelled, "the runtime ends"));
            futures::stream::once(future::ready(K::failed(error.to_wire()))).boxed()
        }
    }
}

/// Cuts a stream into frames: what is ready, within the limits; a larger operation goes alone.
fn frames<K: FrameKind>(ops: BoxStream<'static, K::Op>) -> impl Stream<Item = Vec<K::Op>> + Send {
    unfold((ops.fuse(), None), |(mut ops, mut carried)| async move {
        let frame = next_frame::<K>(&mut ops, &mut carried).await?;
        Some((frame, (ops, carried)))
    })
}

async fn next_frame<K: FrameKind>(
    ops: &mut Fuse<BoxStream<'static, K::Op>>,
    carried: &mut Option<K::Op>,
) -> Option<Vec<K::Op>> {
    let first = match carried.take() {
        Some(op) => op,
        None => ops.next().await?,
    };
    let mut bytes = K::op_bytes(&first);
    let mut frame = vec![first];
    while frame.len() < MAX_BATCH_OPERATIONS {
        let Some(Some(op)) = ops.next().now_or_never() else { break };
        bytes += K::op_bytes(&op);
        if bytes > MAX_BATCH_BYTES {
            *carried = Some(op);
            break;
        }
        frame.push(op);
    }
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sizes(lengths: &[usize]) -> Vec<usize> {
        let keys: Vec<_> = lengths.iter().map(|length| Bytes::from(vec![1; *length])).collect();
        frames::<Gets>(futures::stream::iter(keys).boxed()).map(|f| f.len()).collect().await
    }

    #[tokio::test]
    async fn frames_keep_to_the_limits() {
        assert_eq!(sizes(&[]).await, [0; 0]);
        assert_eq!(sizes(&[1; 5000]).await, [4096, 904]);
        let large = MAX_BATCH_BYTES + 1;
        assert_eq!(sizes(&[1, large, 1, 1]).await, [1, 1, 2]);
        assert_eq!(sizes(&[large, large]).await, [1, 1]);
        assert_eq!(sizes(&[MAX_BATCH_BYTES - 1, 1, 1]).await, [2, 1]);
    }
}
