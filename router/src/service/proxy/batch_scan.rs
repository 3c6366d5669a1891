//! BatchScan: many scans over one stream.
//!
//! Invariants: an error ends the scan of its id only; at most [`SCANS_IN_FLIGHT`] scans run per
//! stream, further ones wait in the transport; all share one bounded queue, so a slow reader stalls
//! this stream and nothing else.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::StreamExt as _;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use vmemkv_client::{Deadline, Dispatcher};
use vmemkv_proto::check::invalid;
use vmemkv_proto::v1;

use super::STEP;

/// Scans of one stream under way at once.
const SCANS_IN_FLIGHT: usize = 16;
/// Messages that wait for the transport, of all scans together.
const MESSAGES_WAITING: usize = 2;

type Out = Sender<Result<v1::BatchScanResponse, Status>>;

/// Runs the scans of a stream.
pub(super) fn serve(
    dispatcher: Dispatcher,
    mut requests: Streaming<v1::BatchScanRequest>,
    deadline: Deadline,
) -> ReceiverStream<Result<v1::BatchScanResponse, Status>> {
    let (out, answers) = channel(MESSAGES_WAITING);
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(SCANS_IN_FLIGHT));
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let next = tokio::select! {
                biased;
                () = out.closed() => return,
                next = requests.message() => next,
            };
            match next {
                Ok(Some(request)) => {
                    let (dispatcher, out) = (dispatcher.clone(), out.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = run(&dispatcher, request, deadline, &out) => {}
                            () = out.closed() => {}
                        }
                        drop(place);
                    });
                }
                Ok(None) => return,
                Err(status) => {
                    let _ = out.send(Err(status)).await;
                    return;
                }
            }
        }
    });
    ReceiverStream::new(answers)
}

async fn run(
    dispatcher: &Dispatcher,
    request: v1::BatchScanRequest,
    deadline: Deadline,
    out: &Out,
) {
    let id = request.id;
    let mut covered_to = Bytes::new();
    let error = match request.scan {
        None => invalid("scan", "is missing").to_wire(),
        Some(scan) => {
            // Until something is delivered, the scan has come as far as its beginning.
            covered_to = if scan.reverse { scan.end.clone() } else { scan.start.clone() };
            let mut chunks = dispatcher.scan(scan, deadline, STEP);
            loop {
                match chunks.next().await {
                    Some(Ok(chunk)) => {
                        covered_to.clone_from(&chunk.covered_to);
                        let v1::ScanResponse { entries, covered_to, done } = chunk;
                        let answer =
                            v1::BatchScanResponse { id, entries, covered_to, done, error: None };
                        if out.send(Ok(answer)).await.is_err() || done {
                            return;
                        }
                    }
                    Some(Err(error)) => break error.to_wire(),
                    None => return,
                }
            }
        }
    };
    let error = Some(error);
    let last = v1::BatchScanResponse { id, entries: Vec::new(), covered_to, done: true, error };
    let _ = out.send(Ok(last)).await;
}
