//! What becomes of calls that fail: retried, refused, or unknown.

#![allow(clippy::unwrap_used)]

mod fake;

use std::time::{Duration, Instant};

use tonic::Status;
use vmemkv_client::{ApiError, Client, DeleteOptions, ErrorKind, Outcome, PutOptions};

use fake::{Fake, Fault};

async fn one() -> (Fake, Client) {
    let fake = Fake::start(1, true).await;
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    (fake, client)
}

#[tokio::test]
async fn the_quick_tour() {
    let (_fake, client) = one().await;
    assert_eq!(client.get("k").await.unwrap(), None);
    client.put("k", "1").await.unwrap();
    assert_eq!(client.get("k").await.unwrap().unwrap(), "1");
    client.put("empty", "").await.unwrap();
    assert_eq!(client.get("empty").await.unwrap().unwrap(), "");
    let refused = client.put_if_absent("k", "2").await.unwrap();
    assert_eq!((refused.applied, refused.current.as_deref()), (false, Some(&b"1"[..])));
    assert!(client.put_if_value("k", "2", "1").await.unwrap().applied);
    assert!(!client.put_if_present("new", "1").await.unwrap().applied);
    let kept = client.delete_with("k", DeleteOptions::new().if_value("1")).await.unwrap();
    assert_eq!((kept.applied, kept.existed), (false, false));
    assert!(client.delete("k").await.unwrap());
    assert!(!client.delete("k").await.unwrap());
}

#[tokio::test]
async fn wrong_requests_are_refused_before_they_are_sent() {
    let (fake, client) = one().await;
    for error in [
        client.get("").await.unwrap_err(),
        client.put("", "v").await.unwrap_err(),
        client.put(vec![1; 4097], "v").await.unwrap_err(),
        client.put("k", vec![1; (8 << 20) + 1]).await.unwrap_err(),
        client.delete("").await.map(|_| ()).unwrap_err(),
        client.scan(..).prefix(vec![1; 4097]).collect().await.map(|_| ()).unwrap_err(),
        client.checksum(vec![1u8; 5000]..).await.map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert_eq!(error.outcome(), Outcome::NotApplied);
    }
    assert!(fake.state.lock().calls.is_empty());
}

#[tokio::test]
async fn a_write_is_retried_only_after_a_sure_refusal() {
    let (fake, client) = one().await;
    let refusal = ApiError::unavailable("no lease", 1).to_status();
    fake.fault("put", Fault::Refuse(refusal.clone()));
    fake.fault("put", Fault::Refuse(refusal.clone()));
    client.put("k", "1").await.unwrap();
    assert_eq!((fake.calls("put"), fake.state.lock().applied.len()), (3, 1));
    for fault in [
        Fault::Refuse(Status::unavailable("who knows")),
        Fault::ApplyThen(Status::unavailable("applied")),
        Fault::ApplyThen(Status::internal("bug")),
        Fault::ApplyThen(Status::cancelled("")),
    ] {
        let calls = fake.calls("put");
        fake.fault("put", fault);
        let error = client.put("k", "2").await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
        assert_eq!(fake.calls("put"), calls + 1);
    }
    let calls = fake.calls("put");
    fake.fault("put", Fault::Refuse(ApiError::new(ErrorKind::DataLoss, "").to_status()));
    assert_eq!(client.put("k", "2").await.unwrap_err().kind(), ErrorKind::DataLoss);
    assert_eq!(fake.calls("put"), calls + 1);
    fake.fault("delete", Fault::ApplyThen(Status::unavailable("")));
    assert!(client.delete("k").await.unwrap_err().is_unknown());
}

#[tokio::test]
async fn a_full_disk_is_waited_for_only_if_the_server_says_so() {
    let (fake, client) = one().await;
    let full = ApiError::new(ErrorKind::ResourceExhausted, "disk").with_not_applied();
    fake.fault("put", Fault::Refuse(full.clone().to_status()));
    let error = client.put("k", "1").await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::ResourceExhausted, false));
    fake.fault("put", Fault::Refuse(full.with_retry_after_ms(5).to_status()));
    client.put("k", "1").await.unwrap();
}

#[tokio::test]
async fn what_is_not_built_is_not_dropped() {
    let (_fake, client) = one().await;
    let options = PutOptions::new().ttl(Duration::from_secs(1));
    let error = client.put_with("k", "v", options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unimplemented);
    assert!(error.message().contains("ttl_ms") && !error.is_unknown());
}

#[tokio::test]
async fn reads_are_retried_freely() {
    let (fake, client) = one().await;
    client.put("k", "1").await.unwrap();
    for status in [Status::unavailable("a"), ApiError::unavailable("b", 3).to_status()] {
        fake.fault("get", Fault::Refuse(status));
    }
    assert_eq!(client.get("k").await.unwrap().unwrap(), "1");
    assert_eq!(fake.calls("get"), 3);
}

#[tokio::test]
async fn deadlines_are_kept_and_told() {
    let (fake, client) = one().await;
    client.get("k").await.unwrap();
    let told = fake.state.lock().timeout.clone().unwrap();
    assert!(told.ends_with(['u', 'm', 'S', 'n']), "{told}");
    let short = client.with_deadline(Duration::from_millis(100));
    fake.fault("put", Fault::Hang);
    let began = Instant::now();
    let error = short.put("k", "1").await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::DeadlineExceeded, true));
    assert!(began.elapsed() < Duration::from_secs(2));
    for _ in 0..50 {
        fake.fault("put", Fault::Refuse(ApiError::unavailable("no lease", 20).to_status()));
    }
    let error = short.put("k", "1").await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unavailable, false));
    assert_eq!(error.message(), "no lease");
    let options = PutOptions::new().deadline(Duration::ZERO);
    let error = client.put_with("k", "1", options).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::DeadlineExceeded, false));
}

#[tokio::test]
async fn a_server_that_is_gone_is_no_refusal() {
    let (mut fake, client) = one().await;
    client.put("k", "1").await.unwrap();
    let waiting = {
        fake.fault("put", Fault::Hang);
        let client = client.clone();
        tokio::spawn(async move { client.put("k", "2").await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    fake.kill(1);
    let restarted = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    // The connection may outlive the listener; then the deadline ends the call.
    if let Ok(joined) = restarted {
        assert!(joined.unwrap().unwrap_err().is_unknown());
    }
}

#[tokio::test]
async fn nobody_at_the_address() {
    let builder = Client::builder().address("127.0.0.1:1").deadline(Duration::from_millis(100));
    let error = builder.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("127.0.0.1:1"), "{error}");
    let none = Client::connect("").await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidArgument);
    let fake = Fake::start(1, true).await;
    let both = Client::connect(["127.0.0.1:1", fake.router.as_str()]).await.unwrap();
    both.put("k", "v").await.unwrap();
}
