//! Splits that a router orders, from the order to the commit, with restarts in between.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tonic::transport::Channel;
use tonic::{Code, Status};
use vmemkv_proto::ErrorKind;
use vmemkv_proto::internal::v1::exec_split_response::Outcome;
use vmemkv_proto::internal::v1::node_client::NodeClient;
use vmemkv_proto::internal::v1::{
    Addressee, ExecSplitRequest, MapChangedRequest, ProposeSplitKeyRequest,
};
use vmemkv_proto::v1;
use vmemkv_proto::v1::RouteHint;
use vmemkv_proto::v1::kv_client::KvClient;
use vmemkv_proto::v1::routing_error::Kind;
use vmemkv_server::Server;

use crate::fake_router::assigned;
use crate::harness::{
    Fixture, cannot_store_identity, channel, config, error, eventually, fill, get, http, put,
    ready, value,
};

/// A server with shard 1, which covers everything, and some data.
async fn with_data() -> Fixture {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    for key in ["a", "c", "m", "t"] {
        client.put(put(key, key)).await.unwrap();
    }
    fixture
}

fn addressee(fixture: &Fixture) -> Addressee {
    let (node_id, incarnation) = fixture
        .router
        .with(|script| (script.registered[0].node_id, script.registered.len() as u64));
    Addressee { node_id, incarnation, cluster_id: 42, generation: 1 }
}

/// The order to split shard 1 at m into 11 and 12.
fn order(fixture: &Fixture, operation_id: u64) -> ExecSplitRequest {
    ExecSplitRequest {
        to: Some(addressee(fixture)),
        map_version: 1,
        operation_id,
        attempt: 1,
        shard_id: 1,
        epoch: 1,
        key: "m".into(),
        left_shard_id: 11,
        right_shard_id: 12,
    }
}

async fn node(server: &Server) -> NodeClient<Channel> {
    NodeClient::new(channel(server).await)
}

async fn exec(server: &Server, order: ExecSplitRequest) -> Result<Outcome, Status> {
    let answer = node(server).await.exec_split(order).await?;
    Ok(answer.into_inner().outcome.unwrap())
}

async fn executed(server: &Server, order: ExecSplitRequest) {
    let outcome = exec(server, order).await.unwrap();
    assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
}

async fn refused(server: &Server, order: ExecSplitRequest) -> String {
    match exec(server, order).await.unwrap() {
        Outcome::Refused(refused) => refused.reason,
        outcome @ Outcome::Done(_) => panic!("{outcome:?}"),
    }
}

/// The routers commit the split.
async fn commit(fixture: &Fixture) {
    fixture.router.with(|script| {
        let mut halves = [assigned(11, "", "m", false), assigned(12, "m", "", false)];
        for half in &mut halves {
            half.shard.as_mut().unwrap().epoch = 2;
        }
        script.shards = halves.into();
        script.map_version += 1;
    });
    let map_version = fixture.router.with(|script| script.map_version);
    node(&fixture.server).await.map_changed(MapChangedRequest { map_version }).await.unwrap();
    let node_id = addressee(fixture).node_id;
    let mut client = fixture.client().await;
    eventually(async || {
        let route = Some(RouteHint { shard_id: 1, epoch: 1, node_id });
        let asked = v1::GetRequest { key: "a".into(), route };
        client.clone().get(asked).await.is_err()
    })
    .await;
    assert_eq!(value(&mut client, "a").await, Some("a".into()));
}

async fn read(
    client: &mut KvClient<Channel>,
    key: &'static str,
    route: (u64, u64, u64),
) -> Result<Option<bytes::Bytes>, Status> {
    let (shard_id, epoch, node_id) = route;
    let route = Some(RouteHint { shard_id, epoch, node_id });
    let asked = v1::GetRequest { key: key.into(), route };
    Ok(client.get(asked).await?.into_inner().value)
}

/// What is true between the split and its commit: both names are served, and redirects tell of one.
async fn uncommitted(fixture: &Fixture) {
    let mut client = fixture.client().await;
    let node_id = addressee(fixture).node_id;
    for key in ["a", "c", "m", "t"] {
        assert_eq!(value(&mut client, key).await, Some(key.into()));
        let found = read(&mut client, key, (1, 1, node_id)).await.unwrap();
        assert_eq!(found, Some(key.into()));
        let half = if key < "m" { 11 } else { 12 };
        let found = read(&mut client, key, (half, 2, node_id)).await.unwrap();
        assert_eq!(found, Some(key.into()));
        for wrong in [(23 - half, 2, node_id), (half, 1, node_id), (1, 2, node_id), (9, 9, node_id)]
        {
            let refused = error(read(&mut client, key, wrong).await);
            let routing = refused.routing.unwrap();
            let named: Vec<_> = routing.shards.iter().map(|s| (s.shard_id, s.epoch)).collect();
            assert_eq!(named, [(1, 1)], "{key} by {wrong:?}");
            assert_eq!(routing.map_version, 1);
        }
    }
    let mut entries = Vec::new();
    let mut parts = client.scan(v1::ScanRequest::default()).await.unwrap().into_inner();
    while let Some(part) = parts.message().await.unwrap() {
        entries.extend(part.entries.into_iter().map(|entry| entry.key));
    }
    assert_eq!(entries, ["a", "c", "m", "t"]);
}

/// What is true once the commit is known.
async fn committed(fixture: &Fixture) {
    let mut client = fixture.client().await;
    let node_id = addressee(fixture).node_id;
    for key in ["a", "c", "m", "t"] {
        assert_eq!(value(&mut client, key).await, Some(key.into()));
        let half = if key < "m" { 11 } else { 12 };
        let found = read(&mut client, key, (half, 2, node_id)).await.unwrap();
        assert_eq!(found, Some(key.into()));
        let refused = error(read(&mut client, key, (1, 1, node_id)).await);
        assert!(refused.not_applied && refused.kind == ErrorKind::FailedPrecondition);
        let routing = refused.routing.unwrap();
        assert_eq!(routing.kind(), Kind::WrongShard);
        let named: Vec<_> = routing.shards.iter().map(|s| (s.shard_id, s.epoch)).collect();
        assert_eq!(named, [(11, 2), (12, 2)]);
    }
    client.put(put("b", "late")).await.unwrap();
    assert_eq!(value(&mut client, "b").await, Some("late".into()));
    client.delete(v1::DeleteRequest { key: "b".into(), ..Default::default() }).await.unwrap();
}

async fn restart(fixture: Fixture) -> Fixture {
    let Fixture { router, server, dir } = fixture;
    server.shutdown().await.unwrap();
    let server = Server::start(config(dir.path(), &router)).await.unwrap();
    ready(&server).await;
    Fixture { router, server, dir }
}

/// As after a `kill -9`: without a shutdown, so without a checkpoint.
async fn crash(fixture: Fixture) -> Fixture {
    let Fixture { router, server, dir } = fixture;
    drop(server);
    let mut started = Server::start(config(dir.path(), &router)).await;
    for _ in 0..100 {
        if started.is_ok() {
            break;
        }
        // The directory is in use until the last thread of the dropped server has let it go.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        started = Server::start(config(dir.path(), &router)).await;
    }
    let server = started.unwrap();
    ready(&server).await;
    Fixture { router, server, dir }
}

#[tokio::test(flavor = "multi_thread")]
async fn m12_halves_are_served_at_once_and_told_of_once_committed() {
    let fixture = with_data().await;
    executed(&fixture.server, order(&fixture, 5)).await;
    uncommitted(&fixture).await;
    // A heartbeat that brings the same map anew changes nothing.
    fixture.router.with(|script| script.heartbeats.clear());
    eventually(async || fixture.router.with(|script| script.heartbeats.len() > 2)).await;
    uncommitted(&fixture).await;
    commit(&fixture).await;
    committed(&fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m11_a_restart_between_split_and_commit_changes_nothing() {
    let mut fixture = with_data().await;
    executed(&fixture.server, order(&fixture, 5)).await;
    for clean in [true, false] {
        fixture = if clean { restart(fixture).await } else { crash(fixture).await };
        uncommitted(&fixture).await;
        let reported = fixture.router.with(|script| script.registered.last().cloned()).unwrap();
        let ids: Vec<_> = reported.instances.iter().map(|i| (i.shard_id, i.epoch)).collect();
        assert_eq!(ids, [(11, 2), (12, 2)]);
        // The router, which has heard nothing, asks again.
        executed(&fixture.server, order(&fixture, 5)).await;
        uncommitted(&fixture).await;
    }
    commit(&fixture).await;
    committed(&fixture).await;
    let fixture = crash(fixture).await;
    committed(&fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m11_a_commit_that_cannot_be_stored_does_not_stop_reads_of_the_halves() {
    let fixture = with_data().await;
    executed(&fixture.server, order(&fixture, 5)).await;
    cannot_store_identity(&fixture);
    fixture.router.with(|script| {
        let mut halves = [assigned(11, "", "m", false), assigned(12, "m", "", false)];
        for half in &mut halves {
            half.shard.as_mut().unwrap().epoch = 2;
        }
        script.shards = halves.into();
        script.map_version += 1;
    });
    // Asked by state and not by a put: one that is under way as the log stops is never proved, and
    // a read that meets its value is an error until a reopen.
    eventually(async || http(&fixture.server, "/healthz").await.0 != 200).await;
    uncommitted(&fixture).await;
    // The split itself is durable: a copy of the order is answered by a read-only engine too.
    executed(&fixture.server, order(&fixture, 5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m11_a_refusal_is_for_ever() {
    let mut fixture = with_data().await;
    // The right half would have no id of its own.
    let odd = ExecSplitRequest { right_shard_id: 1, ..order(&fixture, 5) };
    let reason = refused(&fixture.server, odd.clone()).await;
    assert!(!reason.is_empty());
    for clean in [true, false] {
        fixture = if clean { restart(fixture).await } else { crash(fixture).await };
        // Also if the same operation could be executed now.
        assert_eq!(refused(&fixture.server, order(&fixture, 5)).await, reason);
    }
    let mut client = fixture.client().await;
    let node_id = addressee(&fixture).node_id;
    let found = read(&mut client, "t", (1, 1, node_id)).await.unwrap();
    assert_eq!(found, Some("t".into()));
    // Another operation can.
    executed(&fixture.server, order(&fixture, 6)).await;
    uncommitted(&fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_come_twice_and_late_and_to_the_wrong_place() {
    let fixture = with_data().await;
    let right = order(&fixture, 5);
    let to = right.to.unwrap();
    for wrong in [
        Addressee { node_id: 1, ..to },
        Addressee { incarnation: to.incarnation + 1, ..to },
        Addressee { cluster_id: 1, ..to },
        Addressee { generation: 2, ..to },
    ] {
        let wrong = ExecSplitRequest { to: Some(wrong), ..right.clone() };
        let status = exec(&fixture.server, wrong).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
    }
    // A shard, or an epoch, that the map does not have (yet).
    for early in [
        ExecSplitRequest { shard_id: 7, ..right.clone() },
        ExecSplitRequest { epoch: 2, ..right.clone() },
    ] {
        let status = exec(&fixture.server, early).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
    }
    // Many at once: one is executed, the others see that or its end.
    let calls = (0..8).map(|_| {
        let order = right.clone();
        let server = &fixture.server;
        async move { exec(server, order).await }
    });
    for outcome in futures::future::join_all(calls).await {
        match outcome {
            Ok(outcome) => assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}"),
            Err(status) => assert_eq!(status.code(), Code::Unavailable),
        }
    }
    executed(&fixture.server, right.clone()).await;
    uncommitted(&fixture).await;
    commit(&fixture).await;
    // Once the routers say that it has ended, a late copy of the order is refused for what it is.
    fixture.router.with(|script| script.ended_below = 6);
    eventually(async || {
        let late = exec(&fixture.server, right.clone()).await;
        late.is_err_and(|status| status.message().contains("has ended"))
    })
    .await;
    committed(&fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_goes_on_under_writes() {
    // More writes of each half before the split, between it and its commit, and after that.
    const MORE: u64 = 30;
    let fixture = with_data().await;
    let stop = AtomicBool::new(false);
    // What was acknowledged on either side of the key.
    let acknowledged = [AtomicU64::new(0), AtomicU64::new(0)];
    let key = |half: usize, number: u64| format!("{}{number:05}", ["d", "w"][half]);
    let write = async |half: usize| {
        let mut client = fixture.client().await;
        while !stop.load(Ordering::SeqCst) {
            let key = key(half, acknowledged[half].load(Ordering::SeqCst));
            client.put(put(&key, key.clone())).await.unwrap();
            acknowledged[half].fetch_add(1, Ordering::SeqCst);
        }
    };
    let go_on = async || {
        let now = || [0, 1].map(|half: usize| acknowledged[half].load(Ordering::SeqCst));
        let before = now();
        eventually(async || now().iter().zip(before).all(|(now, before)| *now >= before + MORE))
            .await;
    };
    let split = async {
        go_on().await;
        executed(&fixture.server, order(&fixture, 5)).await;
        go_on().await;
        commit(&fixture).await;
        go_on().await;
        stop.store(true, Ordering::SeqCst);
    };
    futures::join!(write(0), write(1), split);
    let mut client = fixture.client().await;
    for (half, count) in acknowledged.iter().enumerate() {
        let count = count.load(Ordering::SeqCst);
        assert!(count >= 3 * MORE);
        for number in 0..count {
            let key = key(half, number);
            assert_eq!(value(&mut client, &key).await, Some(key.into()));
        }
    }
    let sum = client.checksum(v1::ChecksumRequest::default()).await.unwrap().into_inner();
    let written: u64 = acknowledged.iter().map(|half| half.load(Ordering::SeqCst)).sum();
    assert_eq!(sum.count, 4 + written);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_data_under_a_newer_map_is_not_served_and_does_not_stop_the_server() {
    // As after a restore of a data directory from before the split.
    let fixture = with_data().await;
    fixture.router.with(|script| {
        let mut halves = [assigned(11, "", "m", false), assigned(12, "m", "", false)];
        for half in &mut halves {
            half.shard.as_mut().unwrap().epoch = 2;
        }
        script.shards = halves.into();
        script.map_version += 1;
    });
    let mut client = fixture.client().await;
    eventually(async || client.clone().get(get("a")).await.is_err()).await;
    for key in ["a", "t"] {
        let refused = error(client.get(get(key)).await);
        assert_eq!(refused.routing.unwrap().kind(), Kind::NotServing);
    }
    // An order for it is refused for good: the data will not come by itself.
    let order = ExecSplitRequest {
        shard_id: 12,
        epoch: 2,
        key: "p".into(),
        left_shard_id: 21,
        right_shard_id: 22,
        ..order(&fixture, 9)
    };
    let reason = refused(&fixture.server, order).await;
    assert!(reason.contains("is missing"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_proposed_and_large_shards_are_reported() {
    let dir = tempfile::TempDir::new().unwrap();
    let router = crate::fake_router::FakeRouter::start(&[(1, "", "")]).await;
    let mut config = config(dir.path(), &router);
    config.engine.shard_max_bytes = 100_000;
    let server = Server::start(config).await.unwrap();
    let fixture = Fixture { router, server, dir };
    ready(&fixture.server).await;
    let propose = async |epoch| {
        let to = Some(addressee(&fixture));
        let request = ProposeSplitKeyRequest { to, shard_id: 1, epoch };
        Ok::<_, Status>(node(&fixture.server).await.propose_split_key(request).await?.into_inner())
    };
    assert_eq!(propose(1).await.unwrap().key, None);
    assert_eq!(propose(2).await.unwrap_err().code(), Code::FailedPrecondition);
    fill(&mut fixture.client().await, "k", 500, 1000).await;
    let key = propose(1).await.unwrap().key.unwrap();
    assert!(key > "k00100" && key < "k00400", "{key:?}");
    let reported = || {
        fixture.router.with(|script| {
            script.heartbeats.last().map(|beat| beat.split_candidates.clone()).unwrap_or_default()
        })
    };
    eventually(async || !reported().is_empty()).await;
    let candidate = reported().remove(0);
    assert_eq!((candidate.shard_id, candidate.epoch), (1, 1));
    assert!(candidate.bytes >= 400_000 && candidate.entries >= 500, "{candidate:?}");
    let key = candidate.key.unwrap();
    assert!(key > "k00100" && key < "k00400", "{key:?}");
}
