//! The shard map for clients, over real gRPC: copies, changes, look-ups.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{TestRouter, TestServer};
use tonic::{Code, Streaming};
use vmemkv_proto::v1;
use vmemkv_proto::v1::watch_shard_map_response::Kind;
use vmemkv_router::Config;

type Changes = Streaming<v1::WatchShardMapResponse>;

async fn watch(router: &TestRouter, from_version: u64, cluster_id: u64) -> Changes {
    let request = v1::WatchShardMapRequest { from_version, cluster_id };
    router.map().watch_shard_map(request).await.unwrap().into_inner()
}

async fn next(changes: &mut Changes) -> v1::WatchShardMapResponse {
    let wait = tokio::time::timeout(Duration::from_secs(5), changes.message());
    wait.await.unwrap().unwrap().unwrap()
}

async fn silent(changes: &mut Changes) {
    let wait = tokio::time::timeout(Duration::from_millis(200), changes.message());
    assert!(wait.await.is_err());
}

async fn map(router: &TestRouter, start: &str, end: &str) -> Vec<v1::GetShardMapResponse> {
    let bound = |text: &str| text.as_bytes().to_vec().into();
    let request = v1::GetShardMapRequest { start: bound(start), end: bound(end) };
    let mut stream = router.map().get_shard_map(request).await.unwrap().into_inner();
    let mut parts = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        parts.push(part);
    }
    parts
}

/// A router whose first server gets shards cut at these keys.
async fn cut(keys: impl IntoIterator<Item = String>) -> (TestRouter, TestServer) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), keys.into_iter().collect::<Vec<_>>().join("\n")).unwrap();
    let path = file.path().to_owned();
    let router =
        TestRouter::start_with(|config| Config { initial_boundaries: Some(path), ..config }).await;
    let mut server = TestServer::new(1);
    server.register(&router).await.unwrap();
    (router, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_there_is_no_map() {
    let router = TestRouter::start().await;
    let error = router.map().get_shard_map(v1::GetShardMapRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let error = router.map().locate(v1::LocateRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(vmemkv_proto::ApiError::from(error).retry_after_ms.is_some());

    // A watcher waits, and learns of the first shard.
    let mut changes = watch(&router, 0, 0).await;
    let empty = next(&mut changes).await;
    assert!(empty.kind() == Kind::Full && empty.done && empty.shards.is_empty());
    TestServer::new(1).register(&router).await.unwrap();
    let delta = next(&mut changes).await;
    assert_eq!((delta.kind(), delta.shards.len()), (Kind::Delta, 1));
    assert_eq!((delta.from_version, delta.done), (empty.map_version, true));
    router.router.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_the_map_is_what_meets_the_range() {
    let (router, _) = cut(["62", "64", "66"].map(str::to_owned)).await;
    let starts = async |start: &str, end: &str| {
        let parts = map(&router, start, end).await;
        assert!(parts.len() == 1 && parts[0].done);
        let starts = parts[0].shards.iter().map(|shard| shard.start.clone());
        starts.map(|start| String::from_utf8(start.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(starts("", "").await, ["", "b", "d", "f"]);
    assert_eq!(starts("b", "d").await, ["b"]);
    assert_eq!(starts("a", "b\0").await, ["", "b"]);
    assert_eq!(starts("e", "").await, ["d", "f"]);
    assert_eq!(starts("c", "c").await, [""; 0]);
    assert_eq!(router.locate("c", 0).await.shard.unwrap().start, "b");
    assert_eq!(router.locate("", 0).await.shard.unwrap().start, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_map_comes_in_messages_of_a_megabyte() {
    // 3000 shards with keys of 1000 bytes.
    let keys = (0..3000).map(|at| format!("{at:08x}{}", "ab".repeat(996)));
    let (router, _) = cut(keys).await;
    let parts = map(&router, "", "").await;
    assert!(parts.len() > 3);
    let mut end = bytes::Bytes::new();
    for (at, part) in parts.iter().enumerate() {
        assert!(prost::Message::encoded_len(part) <= 1 << 20);
        assert_eq!(part.done, at + 1 == parts.len());
        assert_eq!(part.map_version, parts[0].map_version);
        for shard in &part.shards {
            assert_eq!(shard.start, end);
            end = shard.end.clone();
        }
    }
    assert!(end.is_empty());

    let mut changes = watch(&router, 0, 0).await;
    let mut shards = 0;
    loop {
        let part = next(&mut changes).await;
        assert_eq!((part.kind(), part.map_version), (Kind::Full, parts[0].map_version));
        shards += part.shards.len();
        if part.done {
            break;
        }
    }
    assert_eq!(shards, 3001);
    router.router.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_get_deltas_from_their_version() {
    let (router, mut server) = cut(["6d".to_owned()]).await;
    let mut changes = watch(&router, 0, 0).await;
    let full = next(&mut changes).await;
    assert_eq!((full.kind(), full.shards.len(), full.done), (Kind::Full, 2, true));
    let mut current = watch(&router, full.map_version, full.cluster_id).await;
    silent(&mut current).await;

    // One shard changes: one shard is told.
    let shard = &full.shards[1];
    let version = server.confirm(&router, &[(shard.shard_id, shard.epoch)]).await.unwrap();
    for stream in [&mut changes, &mut current] {
        let delta = next(stream).await;
        assert_eq!(delta.kind(), Kind::Delta);
        assert_eq!((delta.from_version, delta.map_version), (full.map_version, version));
        assert_eq!(delta.shards, std::slice::from_ref(shard));
    }

    // The server moves to another address: both of its shards are told, at the same epoch.
    server.reboot();
    server.address = "new:7410".to_owned();
    server.register(&router).await.unwrap();
    let delta = next(&mut changes).await;
    assert_eq!(delta.from_version, version);
    assert!(delta.shards.iter().all(|shard| shard.address == "new:7410"));
    assert_eq!(delta.shards.len(), 2);

    // A watcher that was away gets all of it at once.
    let mut late = watch(&router, full.map_version, 0).await;
    let both = next(&mut late).await;
    assert_eq!((both.kind(), both.shards.len()), (Kind::Delta, 2));
    assert_eq!(both.map_version, delta.map_version);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_of_another_cluster_or_out_of_reach_gets_a_full_copy() {
    let (router, _) = cut(["6d".to_owned()]).await;
    let mut changes = watch(&router, 1000, 4711).await;
    let full = next(&mut changes).await;
    assert_eq!((full.kind(), full.shards.len()), (Kind::Full, 2));

    // A restarted router has no deltas of its past; who is up to date needs none.
    let router = router.restart().await;
    let mut old = watch(&router, full.map_version - 1, full.cluster_id).await;
    assert_eq!(next(&mut old).await, full);
    let mut current = watch(&router, full.map_version, full.cluster_id).await;
    silent(&mut current).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locate_waits_for_the_version_that_is_asked_for() {
    let (router, server) = cut(["6d".to_owned()]).await;
    let now = router.locate("z", 0).await;
    let shard = now.shard.clone().unwrap();
    assert_eq!(router.locate("z", now.map_version).await, now);

    let waits = router.locate("z", now.map_version + 1);
    let change = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.confirm(&router, &[(shard.shard_id, shard.epoch)]).await.unwrap()
    };
    let (then, version) = tokio::join!(waits, change);
    assert_eq!((then.map_version, version), (version, now.map_version + 1));
    let long = v1::LocateRequest { key: vec![0; 4098].into(), min_version: 0 };
    assert_eq!(router.map().locate(long).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_stops_ends_its_watchers() {
    let (router, _) = cut(["6d".to_owned()]).await;
    let mut changes = watch(&router, 0, 0).await;
    next(&mut changes).await;
    let started = std::time::Instant::now();
    router.router.shutdown().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2));
    let ended = tokio::time::timeout(Duration::from_secs(1), changes.message()).await.unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
}
