//! BatchScan: many scans over one stream.
//!
//! Invariants: an error ends the scan of its id only; at most `frames_in_flight` scans run per
//! stream, further ones wait in the transport; all share one bounded queue, so a slow reader
//! stalls this stream and nothing else.

use std::sync::Arc;

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
    let places = Arc::new(Semaphore::new(caller.node.config.limits.frames_in_flight));
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
                let scan = {
                    let (caller, out) = (caller.clone(), out.clone());
                    async move {
                        run(caller, request, out).await;
                        drop(place);
                    }
                };
                tokio::spawn(guarded(scan, out.clone()));
            }
            Ok(Ok(None)) => return,
            Ok(Err(status)) => {
                let _ = out.send(Err(status)).await;
                return;
            }
            Err(error) => return caller.fail(&out, &error).await,
        }
    }
}

async fn run(caller: Caller, request: v1::BatchScanRequest, out: Out) {
    let id = request.id;
    let scan = request.scan.ok_or_else(|| invalid("scan", "is missing")).and_then(Scan::try_from);
    let (error, covered_to) = match scan {
        Ok(scan) => {
            let mut run = ScanRun::new(caller.clone(), scan);
            let delivered = run.deliver(&out, |part| v1::BatchScanResponse {
                id,
                entries: part.entries,
                covered_to: part.covered_to,
                done: part.done,
                error: None,
            });
            match delivered.await {
                Ok(()) => return,
                Err(Stop::Gone) => return caller.count_gone(),
                Err(Stop::Failed(error)) => (error, run.covered_to()),
            }
        }
        Err(error) => (error, bytes::Bytes::new()),
    };
    if is_of_stream(&caller, &error) {
        return caller.fail(&out, &error).await;
    }
    let last = v1::BatchScanResponse {
        id,
        covered_to,
        done: true,
        error: Some(error.to_wire()),
        ..Default::default()
    };
    if out.send(Ok(last)).await.is_err() {
        caller.count_gone();
    }
}

/// Whether it ends the stream rather than one scan.
fn is_of_stream(caller: &Caller, error: &ApiError) -> bool {
    caller.node.stopping.is_cancelled() || error.kind == vmemkv_proto::ErrorKind::DeadlineExceeded
}
