//! Registration, leases, assigned shards.

use std::time::{Duration, Instant};

use tonic::{Code, Status};
use vmemkv_proto::ErrorKind;
use vmemkv_proto::v1;
use vmemkv_proto::v1::node_admin_client::NodeAdminClient;
use vmemkv_proto::v1::routing_error::Kind;
use vmemkv_server::{Registration, Server};

use crate::fake_router::{FakeRouter, assigned};
use crate::harness::{
    Fixture, cannot_store_identity, channel, config, error, eventually, get, http, put, ready,
    value,
};

/// A server whose router fails from the beginning.
async fn refused_by(status: Status) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let router = FakeRouter::start(&[(1, "", "")]).await;
    router.with(|script| script.fail = Some(status));
    let server = Server::start(config(dir.path(), &router)).await.unwrap();
    Fixture { router, server, dir }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_served_before_registration() {
    let fixture = refused_by(Status::unavailable("no leader")).await;
    let mut client = fixture.client().await;
    let refused = error(client.get(get("k")).await);
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    assert!(refused.not_applied && refused.retry_after_ms.is_some());
    let scan = client.scan(v1::ScanRequest::default()).await.map(|_| ());
    assert_eq!(error(scan).kind, ErrorKind::Unavailable);
    client.get_info(v1::GetInfoRequest {}).await.unwrap();
    let mut admin = NodeAdminClient::new(channel(&fixture.server).await);
    admin.get_stats(v1::GetStatsRequest::default()).await.unwrap();
    assert_eq!(http(&fixture.server, "/livez").await.0, 200);
    eventually(async || http(&fixture.server, "/readyz").await.1.contains("no leader")).await;
    assert_eq!(http(&fixture.server, "/readyz").await.0, 503);

    fixture.router.with(|script| script.fail = None);
    ready(&fixture.server).await;
    client.put(put("k", "v")).await.unwrap();
    assert_eq!(fixture.router.with(|script| script.confirmed.clone()), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_router_is_tried() {
    let dir = tempfile::tempdir().unwrap();
    let router = FakeRouter::start(&[(1, "", "")]).await;
    let follower = FakeRouter::start(&[]).await;
    follower.with(|script| script.fail = Some(Status::unavailable("not the leader")));
    let mut config = config(dir.path(), &router);
    let closed = "127.0.0.1:1".to_owned();
    config.routers = vec![closed, follower.address.to_string(), router.address.to_string()];
    let server = Server::start(config).await.unwrap();
    ready(&server).await;
    assert!(!follower.with(|script| script.registered.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lease_requests_are_refused_and_it_comes_back() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    client.put(put("k", "v")).await.unwrap();
    fixture.router.with(|script| script.lease_ms = 400);
    // The long lease of the registration still counts: register anew with the short one.
    let fixture = restart(fixture).await;
    let mut client = fixture.client().await;
    assert_eq!(value(&mut client, "k").await, Some("v".into()));

    fixture.router.with(|script| script.fail = Some(Status::unavailable("gone")));
    let gone = Instant::now();
    eventually(async || client.clone().get(get("k")).await.is_err()).await;
    assert!(gone.elapsed() >= Duration::from_millis(250), "{:?}", gone.elapsed());
    let refused = error(client.put(put("k", "w")).await);
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    assert!(refused.not_applied && refused.retry_after_ms.is_some());
    assert_eq!(refused.routing.unwrap().kind(), Kind::NotServing);
    eventually(async || http(&fixture.server, "/readyz").await.0 == 503).await;

    fixture.router.with(|script| script.fail = None);
    ready(&fixture.server).await;
    assert_eq!(value(&mut client, "k").await, Some("v".into()));
}

async fn restart(fixture: Fixture) -> Fixture {
    let Fixture { router, server, dir } = fixture;
    server.shutdown().await.unwrap();
    let server = Server::start(config(dir.path(), &router)).await.unwrap();
    ready(&server).await;
    Fixture { router, server, dir }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_that_cannot_be_stored_takes_away_and_the_lease_goes_on() {
    let fixture = Fixture::with_shards(&[(1, "", "m"), (2, "m", "")]).await;
    let mut client = fixture.client().await;
    client.put(put("a", "v")).await.unwrap();
    client.put(put("z", "v")).await.unwrap();
    fixture.router.with(|script| script.lease_ms = 600);
    // The long lease of the registration still counts: register anew with the short one.
    let fixture = restart(fixture).await;
    cannot_store_identity(&fixture);
    fixture.router.with(|script| {
        script.shards.truncate(1);
        script.map_version = 2;
    });
    let mut client = fixture.client().await;
    let kind_of = async |key: &str| match client.clone().get(get(key)).await {
        Ok(_) => None,
        Err(status) => error::<()>(Err(status)).routing.map(|routing| routing.kind()),
    };
    eventually(async || kind_of("z").await == Some(Kind::WrongShard)).await;
    // Asked by state: a put that is under way as the log stops would make reads of its key fail.
    eventually(async || http(&fixture.server, "/healthz").await.0 != 200).await;
    let refused = error(client.put(put("a", "w")).await);
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    // Much longer than the lease.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(value(&mut client, "a").await, Some("v".into()));
    let told = fixture.router.with(|script| script.heartbeats.last().cloned()).unwrap();
    assert_eq!(told.map_version, 1, "the map is asked for again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_of_another_cluster_is_refused() {
    let fixture = Fixture::start().await;
    let other = FakeRouter::start(&[(1, "", "")]).await;
    other.with(|script| script.cluster_id = 43);
    let Fixture { server, dir, .. } = fixture;
    server.shutdown().await.unwrap();
    let server = Server::start(config(dir.path(), &other)).await.unwrap();
    let mut state = server.registration();
    let refused = state.wait_for(|state| matches!(state, Registration::Refused { .. }));
    let reason = match refused.await.unwrap().clone() {
        Registration::Refused { reason } => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason.contains("42") && reason.contains("43"), "{reason}");
    let fixture = Fixture { router: other, server, dir };
    assert_eq!(error(fixture.client().await.get(get("k")).await).kind, ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_without_its_data_is_not_served() {
    let fixture = Fixture::with_shards(&[(1, "", "m")]).await;
    fixture.router.with(|script| {
        script.shards.push(assigned(2, "m", "", false));
        script.map_version = 2;
    });
    let client = fixture.client().await;
    let kind_of = async |key: &str| match client.clone().get(get(key)).await {
        Ok(_) => None,
        Err(status) => error::<()>(Err(status)).routing.map(|routing| routing.kind()),
    };
    eventually(async || kind_of("z").await == Some(Kind::NotServing)).await;
    assert_eq!(kind_of("a").await, None);
    assert_eq!(fixture.router.with(|script| script.confirmed.clone()), [1]);

    // Born elsewhere in the map: it is made, confirmed and served.
    fixture.router.with(|script| {
        script.shards[1] = assigned(3, "m", "", true);
        script.map_version = 3;
    });
    eventually(async || kind_of("z").await.is_none()).await;
    assert_eq!(fixture.router.with(|script| script.confirmed.clone()), [1, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_at_another_epoch_is_not_the_same_data() {
    let fixture = Fixture::start().await;
    fixture.router.with(|script| {
        script.shards[0].shard.as_mut().unwrap().epoch = 2;
        script.map_version = 2;
    });
    let client = fixture.client().await;
    eventually(async || {
        matches!(client.clone().get(get("k")).await, Err(s) if s.code() == Code::Unavailable)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_carry_what_changes() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    client.put(put("k", vec![1; 100])).await.unwrap();
    let keys = |beat: &vmemkv_proto::internal::v1::HeartbeatRequest| {
        beat.loads.iter().map(|load| load.keys).collect::<Vec<_>>()
    };
    eventually(async || {
        fixture.router.with(|script| script.heartbeats.iter().any(|beat| keys(beat) == [1]))
    })
    .await;
    // Nothing changes any more, so nothing is said.
    eventually(async || {
        fixture.router.with(|script| script.heartbeats.last().unwrap().loads.is_empty())
    })
    .await;
    let beat = fixture.router.with(|script| script.heartbeats.last().unwrap().clone());
    assert_eq!((beat.cluster_id, beat.map_version), (42, 1));
    assert_eq!(beat.engine_state, "healthy");
    assert!(beat.capacity_bytes > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_the_router_heard_and_nobody_confirmed_is_found_again() {
    let fixture = Fixture::start().await;
    let Fixture { router, server, dir } = fixture;
    let first = router.with(|script| script.registered[0].nonce);
    server.shutdown().await.unwrap();
    // The next start is heard by no router; the one after it still names the first nonce.
    router.with(|script| script.fail = Some(Status::unavailable("down")));
    let server = Server::start(config(dir.path(), &router)).await.unwrap();
    eventually(async || router.with(|script| script.registered.len() > 1)).await;
    server.shutdown().await.unwrap();
    router.with(|script| {
        script.fail = None;
        script.expect_previous = Some(first);
    });
    let server = Server::start(config(dir.path(), &router)).await.unwrap();
    ready(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_not_known_registers_again() {
    let fixture = Fixture::start().await;
    fixture.router.with(|script| {
        script.fail = Some(Status::failed_precondition("unknown incarnation"));
    });
    eventually(async || fixture.router.with(|script| script.registered.len() > 1)).await;
    let state = fixture.server.registration();
    eventually(async || matches!(&*state.borrow(), Registration::Refused { .. })).await;
    fixture.router.with(|script| script.fail = None);
    ready(&fixture.server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_lags_or_is_of_an_old_generation_is_not_listened_to() {
    let fixture = Fixture::start().await;
    fixture.router.with(|script| (script.generation, script.map_version) = (5, 9));
    let fixture = restart(fixture).await;
    for (generation, map_version) in [(5, 8), (4, 10)] {
        fixture.router.with(|script| {
            (script.generation, script.map_version) = (generation, map_version);
            script.fail = Some(Status::failed_precondition("register again"));
        });
        let registered = fixture.router.with(|script| script.registered.len());
        eventually(async || fixture.router.with(|s| s.registered.len()) > registered).await;
        fixture.router.with(|script| script.fail = None);
        let state = fixture.server.registration();
        let what = if generation == 4 { "generation 4" } else { "version 8" };
        eventually(async || match &*state.borrow() {
            Registration::Waiting { reason } | Registration::Refused { reason } => {
                reason.contains(what)
            }
            Registration::Registered { .. } => false,
        })
        .await;
    }
}
