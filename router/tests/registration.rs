//! Servers register, keep their lease and confirm shards, over real gRPC.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{TestRouter, TestServer};
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn the_first_server_gets_everything_the_second_nothing() {
    let router = TestRouter::start().await;
    let mut first = TestServer::new(1);
    let answer = first.register(&router).await.unwrap();
    assert_eq!(answer.cluster_id, router.router.cluster_id());
    assert!(answer.cluster_id != 0 && answer.generation == 1 && answer.incarnation != 0);
    assert_eq!((answer.lease_ms, answer.heartbeat_ms), (5_000, 100));
    assert_eq!(answer.shards.len(), 1);
    let shard = answer.shards[0].shard.clone().unwrap();
    assert!(answer.shards[0].born && shard.start.is_empty() && shard.end.is_empty());
    assert_eq!((shard.node_id, shard.address.as_str()), (1, "server-1:7410"));

    let mut second = TestServer::new(2);
    assert!(second.register(&router).await.unwrap().shards.is_empty());
    let heartbeat = second.heartbeat(&router).await.unwrap();
    assert_eq!(heartbeat.lease_ms, 5_000);
    assert!(!heartbeat.shards_included);
    assert_eq!(router.locate("k", 0).await.shard, Some(shard));
    router.router.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn boundaries_cut_the_first_shards() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "61\n6d\n").unwrap();
    let path = file.path().to_owned();
    let router = TestRouter::start_with(|config| vmemkv_router::Config {
        initial_boundaries: Some(path),
        ..config
    })
    .await;
    let answer = TestServer::new(1).register(&router).await.unwrap();
    let mut ranges: Vec<_> = answer
        .shards
        .into_iter()
        .map(|assigned| assigned.shard.unwrap())
        .map(|shard| (shard.start, shard.end))
        .collect();
    ranges.sort();
    let expected = [("", "a"), ("a", "m"), ("m", "")].map(|(a, b)| (a.into(), b.into()));
    assert_eq!(ranges, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_shard_is_not_born_any_more() {
    let router = TestRouter::start().await;
    let mut server = TestServer::new(1);
    let answer = server.register(&router).await.unwrap();
    let shard = answer.shards[0].shard.clone().unwrap();

    let stale = server.confirm(&router, &[(shard.shard_id, shard.epoch + 1)]).await;
    assert_eq!(stale.unwrap_err().code(), Code::FailedPrecondition);
    let unknown = server.confirm(&router, &[(999, 1)]).await;
    assert_eq!(unknown.unwrap_err().code(), Code::NotFound);

    let version = server.confirm(&router, &[(shard.shard_id, shard.epoch)]).await.unwrap();
    assert_eq!(version, answer.map_version + 1);
    // A retry changes nothing.
    assert_eq!(server.confirm(&router, &[(shard.shard_id, shard.epoch)]).await.unwrap(), version);
    let heartbeat = server.heartbeat(&router).await.unwrap();
    assert!(heartbeat.shards_included && !heartbeat.shards[0].born);
    assert_eq!(heartbeat.map_version, version);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_repeated_and_a_restart_is_a_new_run() {
    let router = TestRouter::start().await;
    let mut server = TestServer::new(1);
    let first = server.register(&router).await.unwrap();
    let again = server.register(&router).await.unwrap();
    assert_eq!(again, first);

    let old = server.clone();
    server.reboot();
    let restarted = server.register(&router).await.unwrap();
    assert!(restarted.incarnation > first.incarnation);
    assert_eq!(restarted.shards, first.shards);
    server.heartbeat(&router).await.unwrap();
    let refused = old.heartbeat(&router).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("register again"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_registration_never_arrived_breaks_no_chain() {
    let router = TestRouter::start().await;
    let mut server = TestServer::new(1);
    server.register(&router).await.unwrap();
    // The second start got no answer; the third keeps its nonce and the one before it.
    server.reboot();
    server.boot_number += 1;
    server.register(&router).await.unwrap();
    // The answer to the fourth start was lost, though it was registered.
    server.reboot();
    server.clone().register(&router).await.unwrap();
    server.boot_number += 1;
    server.register(&router).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_copy_of_a_data_directory_gets_no_lease() {
    let router = TestRouter::start().await;
    let mut server = TestServer::new(1);
    server.register(&router).await.unwrap();
    let mut copy = server.clone();
    server.reboot();
    server.register(&router).await.unwrap();
    copy.reboot();
    copy.nonce += 77;
    copy.address = "elsewhere:7410".to_owned();
    let refused = copy.register(&router).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("copy"), "{refused}");
    server.heartbeat(&router).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_beside_the_running_original_gets_no_lease() {
    let router = TestRouter::start().await;
    let mut server = TestServer::new(1);
    server.register(&router).await.unwrap();
    server.heartbeat(&router).await.unwrap();
    let mut copy = server.clone();
    copy.reboot();
    copy.address = "elsewhere:7410".to_owned();
    let beats = async {
        loop {
            server.heartbeat(&router).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let refused = tokio::select! {
        () = beats => unreachable!(),
        answer = copy.register(&router) => answer.unwrap_err(),
    };
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("copy"), "{refused}");
    server.heartbeat(&router).await.unwrap();

    // The original has ended: the same start is let in, after a short silence.
    let started = Instant::now();
    copy.register(&router).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_comes_first_to_a_restarted_router_gets_no_lease() {
    let router = TestRouter::start().await;
    let mut server = TestServer::new(1);
    server.register(&router).await.unwrap();
    server.heartbeat(&router).await.unwrap();
    let mut copy = server.clone();
    copy.reboot();
    copy.address = "elsewhere:7410".to_owned();
    let router = router.restart().await;
    // The router has heard nobody yet; the original is a little late.
    let beats = async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        loop {
            server.heartbeat(&router).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let refused = tokio::select! {
        () = beats => unreachable!(),
        answer = copy.register(&router) => answer.unwrap_err(),
    };
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("copy"), "{refused}");
    server.heartbeat(&router).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_other_clusters_are_refused() {
    let router = TestRouter::start().await;
    let mut server = TestServer::new(1);
    server.register(&router).await.unwrap();

    for change in [
        |server: &mut TestServer| server.cluster_id += 1,
        |server: &mut TestServer| server.generation += 1,
        |server: &mut TestServer| server.node_id = 9,
    ] {
        let mut other = server.clone();
        change(&mut other);
        let refused = other.register(&router).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let refused = other.heartbeat(&router).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    }
    let mut nobody = TestServer::new(0);
    assert_eq!(nobody.register(&router).await.unwrap_err().code(), Code::InvalidArgument);
}
