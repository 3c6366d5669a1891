//! A shutdown ends, whatever clients do.

use std::time::{Duration, Instant};

use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use vmemkv_proto::v1;
use vmemkv_server::Server;

use crate::harness::{Fixture, channel, config, eventually, fill, get, put, ready, value};

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_end_with_unavailable() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    fill(&mut client, "k", 100, 256 << 10).await;
    let mut scan = client.scan(v1::ScanRequest::default()).await.unwrap().into_inner();
    scan.message().await.unwrap().unwrap();
    let mut batch = client.batch_get(tokio_stream::pending()).await.unwrap().into_inner();
    let began = Instant::now();
    let stopped = tokio::spawn(fixture.server.shutdown());
    let status = batch.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let status = loop {
        match scan.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the scan came to its end"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Unavailable);
    drop((scan, batch, client));
    stopped.await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_cut_after_the_grace() {
    let dir = tempfile::tempdir().unwrap();
    let router = crate::fake_router::FakeRouter::start(&[(1, "", "")]).await;
    let mut config = config(dir.path(), &router);
    config.grace_ms = 500;
    let server = Server::start(config.clone()).await.unwrap();
    let fixture = Fixture { router, server, dir };
    ready(&fixture.server).await;
    let mut client = fixture.client().await;
    fill(&mut client, "k", 100, 256 << 10).await;
    let mut scan = client.scan(v1::ScanRequest::default()).await.unwrap().into_inner();
    scan.message().await.unwrap().unwrap();
    // The stream stays open and unread.
    let began = Instant::now();
    fixture.server.shutdown().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drop(scan);

    // The engine was closed: the directory opens again at once, with everything in it.
    let server = Server::start(config).await.unwrap();
    ready(&server).await;
    let fixture = Fixture { server, ..fixture };
    assert!(value(&mut fixture.client().await, "k00099").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn run_until_ends_with_its_signal() {
    let fixture = Fixture::start().await;
    fixture.client().await.put(put("k", "v")).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(fixture.server.run_until(async move {
        let _ = stopped.await;
    }));
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn health_follows_the_data() {
    let fixture = Fixture::start().await;
    let health = HealthClient::new(channel(&fixture.server).await);
    let status = async |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        health.clone().check(request).await.unwrap().into_inner().status()
    };
    for service in ["", "vmemkv.v1.Kv", "vmemkv.v1.NodeAdmin"] {
        eventually(async || status(service).await == ServingStatus::Serving).await;
    }
    // While it shuts down, a watcher hears of it.
    let request = HealthCheckRequest { service: "vmemkv.v1.Kv".to_owned() };
    let mut watch = health.clone().watch(request).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let stopped = tokio::spawn(fixture.server.shutdown());
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    drop((watch, health));
    stopped.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_server_frees_its_ports_and_directory() {
    let fixture = Fixture::start().await;
    fixture.client().await.put(put("k", "v")).await.unwrap();
    let Fixture { router, server, dir } = fixture;
    let mut config = config(dir.path(), &router);
    config.listen = server.grpc_addr();
    drop(server);
    eventually(async || match Server::start(config.clone()).await {
        Ok(server) => {
            ready(&server).await;
            let mut client = v1::kv_client::KvClient::new(channel(&server).await);
            client.get(get("k")).await.unwrap().into_inner().value == Some("v".into())
        }
        Err(_) => false,
    })
    .await;
}
