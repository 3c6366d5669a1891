//! A reader that stops to read stalls its own stream and nothing else.

use std::time::{Duration, Instant};

use vmemkv_proto::v1;

use crate::harness::{Fixture, fill, put, value};

#[tokio::test(flavor = "multi_thread")]
async fn other_calls_go_on() {
    let fixture = Fixture::start().await;
    let mut slow = fixture.client().await;
    fill(&mut slow, "k", 200, 256 << 10).await;
    // One stalled scan on this connection, and many on another one.
    let mut stalled = vec![slow.scan(v1::ScanRequest::default()).await.unwrap().into_inner()];
    let mut crowd = fixture.client().await;
    for _ in 0..50 {
        stalled.push(crowd.scan(v1::ScanRequest::default()).await.unwrap().into_inner());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut other = fixture.client().await;
    for client in [&mut slow, &mut other] {
        let began = Instant::now();
        assert_eq!(value(client, "k00007").await.unwrap().len(), 256 << 10);
        client.put(put("written", "meanwhile")).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
    // A stalled scan goes on where it was.
    let mut count = 0;
    while let Some(part) = stalled[0].message().await.unwrap() {
        count += part.entries.iter().filter(|entry| entry.key.starts_with(b"k")).count();
    }
    assert_eq!(count, 200);
}
