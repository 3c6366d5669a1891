//! Starting, stopping and starting again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{TestRouter, TestServer, config};
use tokio::net::TcpStream;
use tonic::Code;
use vmemkv_proto::v1;
use vmemkv_router::{Config, Error, Router};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_everything() {
    let mut router = TestRouter::start().await;
    let cluster_id = router.router.cluster_id();
    let mut server = TestServer::new(1);
    let first = server.register(&router).await.unwrap();
    let shard = first.shards[0].shard.clone().unwrap();
    server.confirm(&router, &[(shard.shard_id, shard.epoch)]).await.unwrap();
    let mut version = router.locate("k", 0).await.map_version;
    let id = |router: v1::ListRoutersResponse| router.routers[0].router_id;
    let list = v1::ListRoutersRequest::default();
    let router_id = id(router.admin().list_routers(list.clone()).await.unwrap().into_inner());

    for _ in 0..5 {
        let started = Instant::now();
        router = router.restart().await;
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        assert_eq!(router.router.cluster_id(), cluster_id);
        assert_eq!(
            id(router.admin().list_routers(list.clone()).await.unwrap().into_inner()),
            router_id
        );
        let now = router.locate("k", version).await;
        assert_eq!((now.map_version, now.shard), (version, Some(shard.clone())));
        // The run goes on where it was; nothing was born again.
        server.map_version = version;
        assert!(!server.heartbeat(&router).await.unwrap().shards_included);
        server.reboot();
        let again = server.register(&router).await.unwrap();
        assert!(again.incarnation > first.incarnation && !again.shards[0].born);
        version = again.map_version;
    }
    router.router.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_router_shows_no_older_map() {
    let router = TestRouter::start().await;
    let mut server = TestServer::new(1);
    let mut version = server.register(&router).await.unwrap().map_version;
    for round in 0..5 {
        // Each move to another address is a new version of the map.
        server.reboot();
        server.address = format!("moved-{round}:7410");
        version = server.register(&router).await.unwrap().map_version.max(version + 1);
        // What a kill leaves: the file as it is now, never closed.
        let dir = tempfile::tempdir().unwrap();
        let file = router.dir.path().join("data/router.redb");
        std::fs::copy(file, dir.path().join("router.redb")).unwrap();
        let prepared = Router::prepare(config(dir.path())).await.unwrap();
        assert_eq!(prepared.cluster_id(), router.router.cluster_id());
        let revived = prepared.serve().await.unwrap();
        let request = v1::LocateRequest { key: "k".into(), min_version: 0 };
        let channel = common::connect(&revived).await;
        let mut map = v1::router_client::RouterClient::new(channel);
        let located = map.locate(request).await.unwrap().into_inner();
        assert_eq!(located.map_version, version);
        assert_eq!(located.shard.unwrap().address, server.address);
        revived.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_length_of_leases_follows_the_settings() {
    let router = TestRouter::start_with(|config| Config { lease_ms: 9_000, ..config }).await;
    let mut server = TestServer::new(1);
    assert_eq!(server.register(&router).await.unwrap().lease_ms, 9_000);
    let router = router.restart().await;
    assert_eq!(server.heartbeat(&router).await.unwrap().lease_ms, 5_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_router_registers_servers_before_it_opens_its_port() {
    let dir = tempfile::tempdir().unwrap();
    let prepared = Router::prepare(config(dir.path())).await.unwrap();
    let addresses = prepared.addresses();
    assert!(TcpStream::connect(addresses.grpc).await.is_err());
    let url = format!("http://{}", addresses.raft);
    let request = vmemkv_proto::internal::v1::RegisterRequest {
        node_id: 1,
        boot_number: 1,
        nonce: 1,
        address: "server:7410".to_owned(),
        ..Default::default()
    };
    let mut control =
        vmemkv_proto::internal::v1::control_client::ControlClient::connect(url).await.unwrap();
    let answer = control.register(request).await.unwrap().into_inner();
    assert_eq!((answer.cluster_id, answer.shards.len()), (prepared.cluster_id(), 1));
    let router = prepared.serve().await.unwrap();
    assert_eq!(router.addresses(), addresses);
    common::connect(&router).await;
    router.shutdown().await.unwrap();
    assert!(TcpStream::connect(addresses.grpc).await.is_err());

    // A port that was taken in the meantime is an error, and lets go of the data.
    let prepared = Router::prepare(config(dir.path())).await.unwrap();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(prepared.addresses().grpc).unwrap();
    let _taken = socket.listen(1).unwrap();
    let error = prepared.serve().await.err().unwrap();
    assert!(matches!(error, Error::Listen { .. }), "{error}");

    // A prepared router that is not served lets go of its data as well.
    let prepared = Router::prepare(config(dir.path())).await.unwrap();
    prepared.shutdown().await.unwrap();
    Router::start(config(dir.path())).await.unwrap().shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_started_is_said_and_changes_nothing() {
    let router = TestRouter::start().await;
    let in_use = config(&router.dir.path().join("data"));
    let error = Router::start(in_use).await.err().unwrap();
    assert!(matches!(error, Error::DataInUse(_)), "{error}");

    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let routers = vec!["a:1".to_owned(), "b:1".to_owned(), "c:1".to_owned()];
    let several = Config { routers, ..config(&data) };
    let error = Router::start(several).await.err().unwrap();
    assert!(matches!(error, Error::NotBuilt(_)), "{error}");
    for taken in [router.router.addresses().grpc, router.router.addresses().http] {
        let error = Router::start(Config { listen: taken, ..config(&data) }).await.err().unwrap();
        let port = format!("port {} is taken", taken.port());
        assert!(error.to_string().contains(&port), "{error}");
    }
    assert!(!data.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_raft_member_that_is_not_one_are_refused() {
    use vmemkv_proto::internal::v1 as internal;
    let router = TestRouter::start().await;
    let url = format!("http://{}", router.router.addresses().raft);
    let mut raft = internal::raft_client::RaftClient::connect(url).await.unwrap();
    let probe = raft.probe(internal::ProbeRequest::default()).await.unwrap().into_inner();
    assert_eq!((probe.empty, probe.cluster_id), (false, router.router.cluster_id()));
    assert_eq!(probe.leader_id, probe.router_id);
    let right = internal::VoteRequest {
        sender_id: 5,
        target_id: probe.router_id,
        cluster_id: probe.cluster_id,
        payload: Default::default(),
    };
    for wrong in [
        internal::VoteRequest { target_id: 6, ..right.clone() },
        internal::VoteRequest { sender_id: probe.router_id, ..right.clone() },
        internal::VoteRequest { cluster_id: probe.cluster_id + 1, ..right.clone() },
    ] {
        let refused = raft.vote(wrong).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    }
    assert_eq!(raft.vote(right).await.unwrap_err().code(), Code::InvalidArgument);
}
