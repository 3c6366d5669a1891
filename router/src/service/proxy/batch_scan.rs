//! BatchScan: many scans over one stream.
//!
//! Invariants: requests are checked in their order, and an error ends the scan of its id only; at
//! most [`SCANS_IN_FLIGHT`] scans run per stream, further ones wait in the transport; all share one
//! bounded queue, so a slow reader stalls this stream and nothing else; a message that cannot be read
//! ends the stream, once the scans before it have ended.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::StreamExt as _;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use vmemkv_client::{Deadline, Dispatcher};
use vmemkv_proto::check::invalid;
use vmemkv_proto::convert::Scan;
use vmemkv_proto::{ApiError, v1};

use super::STEP;

/// Scans of one stream under way at once.
const SCANS_IN_FLIGHT: u32 = 16;
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
        let places = Arc::new(Semaphore::new(SCANS_IN_FLIGHT as usize));
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
                    let id = request.id;
                    let (begin, scan) = checked(request);
                    let scan = match scan {
                        Ok(scan) => scan,
                        Err(error) => {
                            send_error(&out, id, begin, error.to_wire()).await;
                            continue;
                        }
                    };
                    let (dispatcher, out) = (dispatcher.clone(), out.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = run(&dispatcher, id, begin, scan, deadline, &out) => {}
                            () = out.closed() => {}
                        }
                        drop(place);
                    });
                }
                Ok(None) => return,
                Err(status) => {
                    drop(place);
                    // The scans before it first: each of them ends, by itself or with its caller.
                    let _all = places.acquire_many(SCANS_IN_FLIGHT).await;
                    let _ = out.send(Err(status)).await;
                    return;
                }
            }
        }
    });
    ReceiverStream::new(answers)
}

/// Where the scan begins, and the scan.
fn checked(request: v1::BatchScanRequest) -> (Bytes, Result<v1::ScanRequest, ApiError>) {
    let Some(scan) = request.scan else {
        return (Bytes::new(), Err(invalid("scan", "is missing")));
    };
    let begin = if scan.reverse { scan.end.clone() } else { scan.start.clone() };
    (begin, Scan::try_from(scan.clone()).map(|_| scan))
}

async fn run(
    dispatcher: &Dispatcher,
    id: u64,
    begin: Bytes,
    scan: v1::ScanRequest,
    deadline: Deadline,
    out: &Out,
) {
    // Until something is delivered, the scan has come as far as its beginning.
    let mut covered = begin;
    let mut chunks = dispatcher.scan(scan, deadline, STEP);
    while let Some(chunk) = chunks.next().await {
        let v1::ScanResponse { entries, covered_to, done } = match chunk {
            Ok(chunk) => chunk,
            Err(error) => return send_error(out, id, covered, error.to_wire()).await,
        };
        covered.clone_from(&covered_to);
        let answer = v1::BatchScanResponse { id, entries, covered_to, done, error: None };
        if out.send(Ok(answer)).await.is_err() || done {
            return;
        }
    }
}

async fn send_error(out: &Out, id: u64, covered_to: Bytes, error: v1::Error) {
    let error = Some(error);
    let last = v1::BatchScanResponse { id, entries: Vec::new(), covered_to, done: true, error };
    let _ = out.send(Ok(last)).await;
}
