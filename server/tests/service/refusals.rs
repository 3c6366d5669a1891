//! What is refused: routes, what is not built, limits, ports and directories.

use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use vmemkv_proto::ErrorKind;
use vmemkv_proto::v1;
use vmemkv_proto::v1::routing_error::Kind;
use vmemkv_server::{Error, Server};

use crate::fake_router::FakeRouter;
use crate::harness::{Fixture, config, error, get, put};

#[tokio::test(flavor = "multi_thread")]
async fn routes_are_checked_before_data() {
    let fixture = Fixture::with_shards(&[(1, "", "m"), (2, "m", "t")]).await;
    let mut client = fixture.client().await;
    let node_id = fixture.server.node_id();
    let hint = |shard_id, epoch, node_id| Some(v1::RouteHint { shard_id, epoch, node_id });
    for (key, route, expected) in [
        ("a", hint(1, 1, node_id), None),
        ("a", hint(0, 0, 0), None),
        ("a", hint(1, 1, node_id ^ 1), Some(Kind::WrongNode)),
        ("a", hint(1, 2, node_id), Some(Kind::StaleEpoch)),
        ("a", hint(9, 1, node_id), Some(Kind::WrongShard)),
        ("p", hint(1, 1, node_id), Some(Kind::WrongShard)),
        ("x", None, Some(Kind::WrongShard)),
    ] {
        let read = client.get(v1::GetRequest { route, ..get(key) }).await.map(|_| ());
        let written = client.put(v1::PutRequest { route, ..put(key, "v") }).await.map(|_| ());
        for result in [read, written] {
            let Some(expected) = expected else {
                result.unwrap();
                continue;
            };
            let refused = error(result);
            assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
            assert!(refused.not_applied);
            let routing = refused.routing.unwrap();
            assert_eq!((routing.kind(), routing.map_version), (expected, 1), "{key} {route:?}");
            assert_eq!(routing.shards.is_empty(), key == "x");
        }
    }
    let refused = error(client.get(get("x")).await);
    assert!(refused.routing.is_some());
    assert!(fixture.metric("vmemkv_rpc_misrouted_total").await >= 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_built_is_refused_not_ignored() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let id = Some(v1::RequestId::default());
    let refused = |result: Result<(), tonic::Status>, what: &str| {
        let refused = error(result);
        assert_eq!(refused.kind, ErrorKind::Unimplemented, "{what}");
        assert!(refused.message.contains(what), "{refused}");
    };
    for ttl_ms in [Some(0), Some(1000)] {
        let request = v1::PutRequest { ttl_ms, ..put("k", "v") };
        refused(client.put(request).await.map(|_| ()), "ttl_ms");
    }
    let request = v1::PutRequest { request_id: id, ..put("k", "v") };
    refused(client.put(request).await.map(|_| ()), "request_id");
    let request = v1::DeleteRequest { key: "k".into(), request_id: id, ..Default::default() };
    refused(client.delete(request).await.map(|_| ()), "request_id");
    let request = v1::DeleteRangeRequest { request_id: id, ..Default::default() };
    refused(client.delete_range(request).await.map(|_| ()), "request_id");
    refused(client.increment(v1::IncrementRequest::default()).await.map(|_| ()), "Increment");
    refused(client.watch(v1::WatchRequest::default()).await.map(|_| ()), "Watch");
    assert_eq!(client.get(get("k")).await.unwrap().into_inner().value, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_named() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let refused = error(client.get(get("")).await);
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    let long = "k".repeat(4097);
    let refused = error(client.put(put(&long, "v")).await);
    assert!(refused.message.contains("key") && refused.message.contains("4096"), "{refused}");
    let refused = error(client.put(put("k", vec![0; (8 << 20) + 1])).await);
    assert!(refused.message.contains("value") && refused.message.contains("8388608"), "{refused}");
    // Beyond the transport's limit.
    let status = client.put(put("k", vec![0; 17 << 20])).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    assert!(status.message().contains("limit"), "{status}");
    client.put(put("k", "v")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_limit_are_shed() {
    let dir = tempfile::tempdir().unwrap();
    let router = FakeRouter::start(&[(1, "", "")]).await;
    let mut config = config(dir.path(), &router);
    config.limits.max_concurrent_calls = 2;
    let server = Server::start(config).await.unwrap();
    let fixture = Fixture { router, server, dir };
    crate::harness::ready(&fixture.server).await;
    let mut client = fixture.client().await;
    // Each call lasts as long as its stream of frames.
    let (frames, more) = (tokio::sync::mpsc::channel(1), tokio::sync::mpsc::channel(1));
    client.batch_get(ReceiverStream::new(frames.1)).await.unwrap();
    client.batch_get(ReceiverStream::new(more.1)).await.unwrap();
    let refused = error(client.get(get("k")).await);
    assert_eq!(refused.kind, ErrorKind::ResourceExhausted);
    assert!(refused.not_applied && refused.retry_after_ms.is_some());
    drop((frames.0, more.0));
    crate::harness::eventually(async || client.clone().get(get("k")).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_and_directories_are_named() {
    let fixture = Fixture::start().await;
    let other = tempfile::tempdir().unwrap();

    let mut taken = config(other.path(), &fixture.router);
    taken.listen = fixture.server.grpc_addr();
    let failed = Server::start(taken).await.err().unwrap().to_string();
    assert!(failed.contains(&fixture.server.grpc_addr().to_string()), "{failed}");

    let mut taken = config(other.path(), &fixture.router);
    taken.http_listen = fixture.server.http_addr();
    let failed = Server::start(taken).await.err().unwrap().to_string();
    assert!(failed.contains("http_listen"), "{failed}");

    let same = config(fixture.dir.path(), &fixture.router);
    let failed = Server::start(same.clone()).await.err().unwrap();
    assert!(matches!(failed, Error::DataInUse { .. }), "{failed:?}");
    assert!(failed.to_string().contains(&same.data.display().to_string()), "{failed}");

    let foreign = config(other.path(), &fixture.router);
    std::fs::create_dir(&foreign.data).unwrap();
    std::fs::write(foreign.data.join("holiday.jpg"), b"not ours").unwrap();
    let failed = Server::start(foreign.clone()).await.err().unwrap();
    assert!(failed.to_string().contains(&foreign.data.display().to_string()), "{failed}");
    assert!(matches!(failed, Error::DataForeign { .. }), "{failed:?}");
}
