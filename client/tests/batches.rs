//! Batches: order, limits, failures of single operations, and shards that move meanwhile.

#![allow(clippy::unwrap_used)]

mod fake;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use tonic::Status;
use vmemkv_client::{ApiError, Client, ErrorKind, Operation};

use fake::{Fake, Fault};

async fn three() -> (Fake, Client) {
    let fake = Fake::start(3, false).await;
    fake.fill(1000);
    fake.cut(&["key00100", "key00400", "key00401", "key00900"]);
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    (fake, client)
}

#[tokio::test]
async fn results_are_in_the_order_of_the_keys() {
    let (fake, client) = three().await;
    // Not sorted, so that the answers of shards interleave.
    let keys: Vec<_> = (0..1200).map(|n| format!("key{:05}", n * 7 % 1200)).collect();
    for round in 0..3 {
        let found = client.batch_get(&keys).await;
        assert_eq!(found.len(), keys.len());
        for (key, value) in keys.iter().zip(found) {
            let expected = (key.as_str() < "key01000").then(|| format!("value of {key}"));
            assert_eq!(
                value.unwrap().map(|value| value.to_vec()),
                expected.map(String::into_bytes)
            );
        }
        let mut state = fake.state.lock();
        state.split(format!("key00{}50", round + 2).as_bytes());
        state.move_shard(b"key00500", round % 3 + 1);
        state.merge(b"key00100");
    }
    assert!(client.batch_get::<&str>([]).await.is_empty());
}

#[tokio::test]
async fn a_bad_operation_fails_alone() {
    let (_fake, client) = three().await;
    let results = client
        .batch_put([
            Operation::put("key00000", "a"),
            Operation::put("", "b"),
            Operation::put_if_absent("key00500", "c"),
            Operation::put("key00600", vec![0; (8 << 20) + 1]),
            Operation::delete("key00950"),
            Operation::delete("nothing"),
        ])
        .await;
    assert!(results[0].as_ref().unwrap().applied);
    assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let written = results[2].as_ref().unwrap();
    assert_eq!((written.applied, &written.current), (false, &Some("value of key00500".into())));
    assert_eq!(results[3].as_ref().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(results[4].as_ref().unwrap().existed);
    assert!(results[5].as_ref().unwrap().applied && !results[5].as_ref().unwrap().existed);
    let found = client.batch_get(["key00000", "", "key00950"]).await;
    assert_eq!(found[0].as_ref().unwrap().as_deref(), Some(&b"a"[..]));
    assert_eq!(found[1].as_ref().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(found[2].as_ref().unwrap(), &None);
}

#[tokio::test]
async fn operations_on_one_key_keep_their_order() {
    let (fake, client) = three().await;
    let operations =
        (0..10_000).map(|n| Operation::put(format!("key{:05}", n % 997), format!("{n}")));
    let mover = {
        let state = std::sync::Arc::clone(&fake.state);
        tokio::spawn(async move {
            for turn in 0.. {
                state.lock().move_shard(format!("key00{}00", turn % 10).as_bytes(), turn % 3 + 1);
                state.lock().split(format!("key00{}33", turn % 10).as_bytes());
                tokio::time::sleep(std::time::Duration::from_millis(3)).await;
            }
        })
    };
    let results = client.batch_put(operations).await;
    mover.abort();
    assert_eq!(results.len(), 10_000);
    for result in results {
        assert!(result.unwrap().applied);
    }
    let state = fake.state.lock();
    assert_eq!(state.applied.len(), 10_000);
    for n in 9_003..10_000 {
        let key = format!("key{:05}", n % 997);
        assert_eq!(state.data[key.as_bytes()], format!("{n}"), "{key}");
    }
}

#[tokio::test]
async fn refusals_are_retried_and_unknown_outcomes_are_not() {
    let (fake, client) = three().await;
    let refused = ApiError::unavailable("frozen", 1);
    fake.fault("batch_put", Fault::FailAll(refused.clone()));
    fake.fault("batch_put", Fault::Refuse(refused.to_status()));
    let results = client.batch_put((0..10).map(|n| Operation::put(format!("a{n}"), "x"))).await;
    assert!(results.iter().all(|result| result.as_ref().is_ok_and(|written| written.applied)));
    assert_eq!(fake.state.lock().applied.len(), 10);
    fake.fault("batch_put", Fault::ApplyThen(Status::unavailable("gone")));
    let twice = [Operation::put("a1", "y"), Operation::put("b", "y"), Operation::put("a1", "z")];
    let results = client.batch_put(twice).await;
    assert!(results[0].as_ref().unwrap_err().is_unknown());
    assert!(results[1].as_ref().unwrap_err().is_unknown());
    // Not sent: the write before it may still come.
    assert!(!results[2].as_ref().unwrap_err().is_unknown());
    assert_eq!(fake.state.lock().data[&b"a1"[..]], "y");
    fake.fault("batch_get", Fault::ApplyThen(Status::unavailable("gone")));
    fake.fault("batch_get", Fault::Refuse(Status::unavailable("gone")));
    assert_eq!(client.batch_get(["a1"]).await[0].as_ref().unwrap().as_deref(), Some(&b"y"[..]));
}

#[tokio::test]
async fn large_values_travel_in_frames_within_the_limits() {
    let (_fake, client) = three().await;
    let value = |n: u8| Bytes::from(vec![n; 1 << 20]);
    let mut puts: Vec<_> = (0..20).map(|n| Operation::put(format!("big{n}"), value(n))).collect();
    puts.push(Operation::put("huge", vec![9; 8 << 20]));
    let results = client.batch_put(puts).await;
    assert!(results.iter().all(Result::is_ok));
    let found = client.batch_get((0..20).map(|n| format!("big{n}"))).await;
    for (n, found) in (0..20).zip(found) {
        assert_eq!(found.unwrap().unwrap(), value(n));
    }
    assert_eq!(client.get("huge").await.unwrap().unwrap().len(), 8 << 20);
}

#[tokio::test]
async fn an_endless_stream_takes_a_bounded_part_ahead() {
    let (fake, client) = three().await;
    let taken = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = std::sync::Arc::clone(&taken);
    let endless = stream::iter(0..).map(move |n: u64| {
        counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Operation::put(format!("n{n}"), "x")
    });
    let mut results = client.batch_put_stream(endless);
    for _ in 0..100 {
        assert!(results.next().await.unwrap().unwrap().applied);
    }
    drop(results);
    let taken = taken.load(std::sync::atomic::Ordering::SeqCst);
    assert!(taken <= 10 * 4096, "{taken}");
    assert!(fake.calls("batch_put") > 0);
}
