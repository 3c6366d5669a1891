//! Work ends with the caller's deadline, or when the caller leaves.

use std::time::{Duration, Instant};

use tonic::{Code, Request};
use vmemkv_proto::v1;

use crate::harness::{Fixture, eventually, fill};

fn within<T>(timeout: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_ends_with_its_deadline() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    fill(&mut client, "k", 200, 256 << 10).await;
    let request = within(Duration::from_millis(300), v1::ScanRequest::default());
    let began = Instant::now();
    let mut parts = client.scan(request).await.unwrap().into_inner();
    parts.message().await.unwrap().unwrap();
    // The caller stops to read, but does not leave: only the deadline can end the work.
    eventually(async || fixture.metric("vmemkv_rpc_stopped_by_deadline_total").await == 1).await;
    assert!(began.elapsed() >= Duration::from_millis(290));
    let ended = loop {
        match parts.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the scan came to its end"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::DeadlineExceeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_ends_when_its_caller_leaves() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    fill(&mut client, "k", 200, 256 << 10).await;
    let mut parts = client.scan(v1::ScanRequest::default()).await.unwrap().into_inner();
    parts.message().await.unwrap().unwrap();
    drop(parts);
    eventually(async || fixture.metric("vmemkv_rpc_stopped_by_caller_total").await == 1).await;
    eventually(async || fixture.metric("vmemkv_rpc_in_flight").await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checksum_ends_with_its_deadline() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    fill(&mut client, "k", 60_000, 200).await;
    let request = within(Duration::from_millis(1), v1::ChecksumRequest::default());
    let status = client.checksum(request).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    eventually(async || fixture.metric("vmemkv_rpc_in_flight").await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_stream_ends_with_its_deadline() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let request = within(Duration::from_millis(100), tokio_stream::pending());
    let mut answers = client.batch_get(request).await.unwrap().into_inner();
    let status = answers.message().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}
