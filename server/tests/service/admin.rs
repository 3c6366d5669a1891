//! NodeAdmin, reflection, metrics.

use std::sync::{Arc, Mutex};

use tonic::transport::Channel;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::{v1 as reflection, v1alpha};
use vmemkv_proto::ErrorKind;
use vmemkv_proto::v1;
use vmemkv_proto::v1::node_admin_client::NodeAdminClient;
use vmemkv_server::{Server, StartOptions};

use crate::fake_router::FakeRouter;
use crate::harness::{Fixture, channel, config, error, eventually, fill, http, put, ready, value};

async fn admin(fixture: &Fixture) -> NodeAdminClient<Channel> {
    NodeAdminClient::new(channel(&fixture.server).await)
}

/// A server whose engine does nothing by itself.
async fn without_background() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let router = FakeRouter::start(&[(1, "", "")]).await;
    let mut config = config(dir.path(), &router);
    config.engine.background = false;
    let server = Server::start(config).await.unwrap();
    let fixture = Fixture { router, server, dir };
    ready(&fixture.server).await;
    fixture
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_and_statistics() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    fill(&mut client, "k", 500, 100).await;
    assert!(value(&mut client, "k00001").await.is_some());
    let mut admin = admin(&fixture).await;

    let done = admin.reorganize(v1::ReorganizeRequest { shard_id: 0 }).await.unwrap().into_inner();
    assert_eq!(done.shards, 1);
    let unknown = admin.reorganize(v1::ReorganizeRequest { shard_id: 99 }).await;
    assert_eq!(error(unknown).kind, ErrorKind::NotFound);
    let done = admin.checkpoint(v1::CheckpointRequest {}).await.unwrap().into_inner();
    assert!(done.checkpoint_lsn > 0);
    let report = admin.verify(v1::VerifyRequest::default()).await.unwrap().into_inner();
    assert_eq!((report.problems.len(), report.records_checked), (0, 500));

    let stats = admin.get_stats(v1::GetStatsRequest::default()).await.unwrap().into_inner();
    assert_eq!(stats.state, "healthy");
    let operations = stats.operations.unwrap();
    assert_eq!(operations.puts, 500);
    assert!(operations.get_hits >= 1);
    assert!(stats.checkpoint.unwrap().count >= 1);
    assert!(stats.lsn.unwrap().checkpoint > 0);
    assert!(stats.disk.unwrap().capacity_bytes > 0);
    assert_eq!(stats.shards.len(), 1);
    assert_eq!((stats.shards[0].keys, stats.shards[0].state.as_str()), (500, "own"));
    let bare = admin.get_stats(v1::GetStatsRequest { omit_shards: true }).await.unwrap();
    assert!(bare.into_inner().shards.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_bytes_are_reclaimed_by_call() {
    let fixture = without_background().await;
    let mut client = fixture.client().await;
    let mut admin = admin(&fixture).await;
    let checkpoint = async |admin: &mut NodeAdminClient<Channel>| {
        admin.checkpoint(v1::CheckpointRequest {}).await.unwrap();
    };
    fill(&mut client, "k", 500, 100_000).await;
    checkpoint(&mut admin).await;
    for number in (0..500).filter(|number| number % 8 == 0) {
        // An eighth of each segment.
        client.put(put(&format!("k{number:05}"), "short, not inline")).await.unwrap();
    }
    checkpoint(&mut admin).await;
    let request = |min_dead_ratio| v1::DefragmentRequest { min_dead_ratio, ..<_>::default() };
    let done = admin.defragment(request(0.5)).await.unwrap().into_inner();
    assert_eq!((done.segments, done.bytes_moved), (0, 0));
    let done = admin.defragment(request(0.05)).await.unwrap().into_inner();
    assert!(done.segments >= 1 && done.bytes_moved > 10 << 20, "{done:?}");
    assert!(done.bytes_freed > 1 << 20, "{done:?}");
    for wrong in [-0.1, 1.1, f64::NAN] {
        let refused = error(admin.defragment(request(wrong)).await);
        assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    }
    assert_eq!(value(&mut client, "k00001").await.unwrap().len(), 100_000);
    checkpoint(&mut admin).await;
    let stats = admin.get_stats(v1::GetStatsRequest::default()).await.unwrap().into_inner();
    let defragment = stats.defragment.unwrap();
    assert!(defragment.cycles >= 2 && defragment.records_moved > 100, "{defragment:?}");
    assert!(defragment.segments_freed >= done.segments, "{defragment:?}");
    assert!(stats.shards[0].live_bytes > 40 << 20, "{:?}", stats.shards);
    let disk = stats.disk.unwrap();
    assert!(disk.soft_reserve_bytes > disk.hard_reserve_bytes && disk.hard_reserve_bytes > 0);
    let report = admin.verify(v1::VerifyRequest::default()).await.unwrap().into_inner();
    assert_eq!((report.problems.len(), report.records_checked), (0, 500));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_put_in_order_by_call() {
    let fixture = without_background().await;
    let mut client = fixture.client().await;
    let mut admin = admin(&fixture).await;
    fill(&mut client, "k", 4000, 900).await;
    // From here on a new value gets a new place.
    admin.checkpoint(v1::CheckpointRequest {}).await.unwrap();
    for number in (0..4000).step_by(8) {
        client.put(put(&format!("k{number:05}"), vec![7; 900])).await.unwrap();
    }
    // Fills the open segment up, which is left alone: with values that are not written once.
    fill(&mut client, "z", 100, 60_000).await;
    let z = v1::DeleteRangeRequest { start: "z".into(), ..<_>::default() };
    client.delete_range(z).await.unwrap();
    admin.checkpoint(v1::CheckpointRequest {}).await.unwrap();
    let request = v1::DefragmentRequest { in_order: true, ..<_>::default() };
    let done = admin.defragment(request).await.unwrap().into_inner();
    assert!(done.bytes_moved > 4000 * 900 && !done.short_of_space, "{done:?}");
    let stats = admin.get_stats(v1::GetStatsRequest::default()).await.unwrap().into_inner();
    let defragment = stats.defragment.unwrap();
    assert_eq!((defragment.order_runs, defragment.order_bytes), (1, done.bytes_moved));
    assert!(defragment.order_last_us > 0 && defragment.bytes_moved >= defragment.order_bytes);
    assert_eq!(fixture.metric("vmemkv_engine_order_bytes_total").await, done.bytes_moved);
    let again = admin.defragment(request).await.unwrap().into_inner();
    assert_eq!(again.bytes_moved, 0, "{again:?}");
    assert_eq!(value(&mut client, "k00008").await.unwrap(), vec![7; 900]);
    let wrong = v1::DefragmentRequest { min_dead_ratio: 0.5, ..request };
    assert_eq!(error(admin.defragment(wrong).await).kind, ErrorKind::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_defragment_ends_when_its_caller_leaves() {
    let fixture = without_background().await;
    let mut client = fixture.client().await;
    let mut admin = admin(&fixture).await;
    fill(&mut client, "k", 800, 100_000).await;
    admin.checkpoint(v1::CheckpointRequest {}).await.unwrap();
    for number in (0..800).step_by(8) {
        client.put(put(&format!("k{number:05}"), "short, not inline")).await.unwrap();
    }
    admin.checkpoint(v1::CheckpointRequest {}).await.unwrap();
    // While others work it takes a fifth of the time.
    let mut other = fixture.client().await;
    let reader = tokio::spawn(async move { while value(&mut other, "k00001").await.is_some() {} });
    let all = v1::DefragmentRequest { min_dead_ratio: 0.001, ..<_>::default() };
    let mut leaves = admin.clone();
    // Refused while the look of below runs.
    let call = tokio::spawn(async move { while leaves.defragment(all).await.is_err() {} });
    let nothing = v1::DefragmentRequest { min_dead_ratio: 1.0, ..<_>::default() };
    while admin.defragment(nothing).await.is_ok() {
        assert!(!call.is_finished(), "it was too fast for this test");
    }
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    eventually(async || fixture.metric("vmemkv_rpc_stopped_by_caller_total").await == 1).await;
    reader.abort();
    // Another one may begin, and finds what is left.
    let done = admin.defragment(all).await.unwrap().into_inner();
    assert!(done.segments > 0, "{done:?}");
    let report = admin.verify(v1::VerifyRequest::default()).await.unwrap().into_inner();
    assert_eq!((report.problems.len(), report.records_checked), (0, 800));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_built_is_refused() {
    let fixture = Fixture::start().await;
    let mut admin = admin(&fixture).await;
    let refused = error(admin.backup(v1::BackupRequest::default()).await.map(|_| ()));
    assert_eq!(refused.kind, ErrorKind::Unimplemented);
    let refused = error(admin.verify(v1::VerifyRequest { bytes_per_second: 1 }).await);
    assert_eq!(refused.kind, ErrorKind::Unimplemented);
    let refused = error(admin.set_log_level(v1::SetLogLevelRequest::default()).await);
    assert_eq!(refused.kind, ErrorKind::Unimplemented);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_filter_is_set_by_whoever_started_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let router = FakeRouter::start(&[(1, "", "")]).await;
    let current = Mutex::new("info".to_owned());
    let set = move |filter: &str| match filter {
        "" => Err("is empty".to_owned()),
        filter => Ok(std::mem::replace(&mut *current.lock().unwrap(), filter.to_owned())),
    };
    let options = StartOptions { set_log_filter: Some(Arc::new(set)) };
    let server = Server::start_with(config(dir.path(), &router), options).await.unwrap();
    let fixture = Fixture { router, server, dir };
    let mut admin = admin(&fixture).await;
    let request = |filter: &str| v1::SetLogLevelRequest { filter: filter.to_owned() };
    assert_eq!(admin.set_log_level(request("debug")).await.unwrap().into_inner().previous, "info");
    assert_eq!(admin.set_log_level(request("warn")).await.unwrap().into_inner().previous, "debug");
    let refused = error(admin.set_log_level(request("")).await);
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_speaks_both_versions() {
    let fixture = Fixture::start().await;
    let list = MessageRequest::ListServices(String::new());
    let request =
        reflection::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut client = ServerReflectionClient::new(channel(&fixture.server).await);
    let stream = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
    let answer = stream.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(services)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let names: Vec<_> = services.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["vmemkv.v1.Kv", "vmemkv.v1.NodeAdmin", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(!names.contains(&"vmemkv.v1.Admin"), "{names:?}");

    let channel = channel(&fixture.server).await;
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
                "vmemkv.v1.Kv".to_owned(),
            ),
        ),
    };
    let stream = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
    let answer = stream.into_inner().message().await.unwrap().unwrap();
    assert!(matches!(
        answer.message_response,
        Some(v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_calls_and_errors() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    client.put(put("k", "v")).await.unwrap();
    let _ = client.put(put("", "v")).await.unwrap_err();
    let text = http(&fixture.server, "/metrics").await.1;
    let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    has("vmemkv_rpc_calls_total{method=\"vmemkv.v1.Kv/Put\"} 2");
    has("vmemkv_rpc_errors_total{method=\"vmemkv.v1.Kv/Put\"} 1");
    has("vmemkv_engine_puts_total 1");
    has("vmemkv_ready 1");
    assert_eq!(http(&fixture.server, "/healthz").await.0, 200);
}
