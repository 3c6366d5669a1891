//! BatchScan: many scans over one stream.
//!
//! Invariants: requests are checked in their order, and an error ends the scan of its id only; at
//! most `frames_in_flight` scans run per stream, further ones wait in the transport; all share one
//! bounded queue, so a slow reader stalls this stream and nothing else; a message that cannot be read
//! ends the stream, once the scans before it have ended.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use vmemkv_proto::check::invalid;
use vmemkv_proto::convert::Scan;
use vmemkv_proto::{ApiError, v1};

use super::caller::{Caller, Stop};
use super::pipeline::guarded;
use super::scan::ScanRun;

/// Messages that wait for the transport, of all scans together.
const MESSAGES_WAITING: usize = 2;

type Out = Sender<Result<v1::BatchScanResponse, Status>>;

/// Runs the scans of a stream.
pub(super) fn serve(
    caller: Caller,
    requests: Streaming<v1::BatchScanRequest>,
) -> ReceiverStream<Result<v1::BatchScanResponse, Status>> {
    let (out, parts) = mpsc::channel(MESSAGES_WAITING);
    tokio::spawn(guarded(read_requests(caller, requests, out.clone()), out));
    ReceiverStream::new(parts)
}

async fn read_requests(caller: Caller, mut requests: Streaming<v1::BatchScanRequest>, out: Out) {
    let limit = caller.node.config.limits.frames_in_flight;
    let places = Arc::new(Semaphore::new(limit));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let next = tokio::select! {
            biased;
            () = out.closed() => return,
            next = caller.unless_stopped(requests.message()) => next,
        };
        match next {
            Ok(Ok(Some(request))) => {
                let id = request.id;
                let (begin, scan) = checked(request);
                let scan = match scan {
                    Ok(scan) => scan,
                    Err(error) => {
                        send_error(&caller, &out, id, begin, &error).await;
                        continue;
                    }
                };
                let scan = {
                    let (caller, out) = (caller.clone(), out.clone());
                    async move {
                        run(caller, id, begin, scan, out).await;
                        drop(place);
                    }
                };
                tokio::spawn(guarded(scan, out.clone()));
            }
            Ok(Ok(None)) => return,
            Ok(Err(status)) => {
                drop(place);
                // The scans before it first: each of them ends, by itself or with its caller.
                let all = u32::try_from(limit).unwrap_or(u32::MAX);
                let _all = places.acquire_many(all).await;
                let _ = out.send(Err(status)).await;
                return;
            }
            Err(error) => return caller.fail(&out, &error).await,
        }
    }
}

/// Where the scan begins, as it was asked for, and the scan.
fn checked(request: v1::BatchScanRequest) -> (Bytes, Result<Scan, ApiError>) {
    let Some(scan) = request.scan else {
        return (Bytes::new(), Err(invalid("scan", "is missing")));
    };
    let begin = if scan.reverse { scan.end.clone() } else { scan.start.clone() };
    (begin, Scan::try_from(scan))
}

async fn run(caller: Caller, id: u64, begin: Bytes, scan: Scan, out: Out) {
    let mut run = ScanRun::new(caller.clone(), scan);
    let first = run.covered_to();
    let delivered = run.deliver(&out, |part| v1::BatchScanResponse {
        id,
        entries: part.entries,
        covered_to: part.covered_to,
        done: part.done,
        error: None,
    });
    match delivered.await {
        Ok(()) => {}
        Err(Stop::Gone) => caller.count_gone(),
        Err(Stop::Failed(error)) if is_of_stream(&caller, &error) => {
            caller.fail(&out, &error).await;
        }
        Err(Stop::Failed(error)) => {
            // Until something is delivered, the scan has come as far as its beginning.
            let now = run.covered_to();
            let covered_to = if now == first { begin } else { now };
            send_error(&caller, &out, id, covered_to, &error).await;
        }
    }
}

async fn send_error(caller: &Caller, out: &Out, id: u64, covered_to: Bytes, error: &ApiError) {
    let error = Some(error.to_wire());
    let last = v1::BatchScanResponse { id, entries: Vec::new(), covered_to, done: true, error };
    if out.send(Ok(last)).await.is_err() {
        caller.count_gone();
    }
}

/// Whether it ends the stream rather than one scan.
fn is_of_stream(caller: &Caller, error: &ApiError) -> bool {
    caller.node.stopping.is_cancelled() || error.kind == vmemkv_proto::ErrorKind::DeadlineExceeded
}
