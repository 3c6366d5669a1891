//! What operators see: lists, status, health, reflection, the HTTP port.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{TestRouter, TestServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServiceResponse};
use vmemkv_proto::v1;
use vmemkv_router::Config;

async fn with_shards(cuts: &str) -> (TestRouter, TestServer) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), cuts).unwrap();
    let path = file.path().to_owned();
    let router =
        TestRouter::start_with(|config| Config { initial_boundaries: Some(path), ..config }).await;
    let mut server = TestServer::new(1);
    server.register(&router).await.unwrap();
    (router, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_and_shards_come_in_pages() {
    let (router, _) = with_shards("62\n64\n66\n68").await;
    for node_id in [5, 3, 9] {
        TestServer::new(node_id).register(&router).await.unwrap();
    }
    let mut ids = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListNodesRequest { page_token, page_size: 3 };
        let page = router.admin().list_nodes(request).await.unwrap().into_inner();
        assert!(page.nodes.len() <= 3);
        ids.extend(page.nodes.iter().map(|node| (node.node_id, node.shards)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(ids, [(1, 5), (3, 0), (5, 0), (9, 0)]);

    for (node_id, expected) in [(0, 5), (1, 5), (3, 0)] {
        let mut starts = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListShardsRequest { page_token, page_size: 2, node_id };
            let page = router.admin().list_shards(request).await.unwrap().into_inner();
            starts.extend(page.shards.iter().map(|shard| shard.start.clone()));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(starts, ["", "b", "d", "f", "h"][..expected]);
    }
    let request = v1::ListNodesRequest { page_token: "s61".to_owned(), page_size: 0 };
    let refused = router.admin().list_nodes(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("page_token"));
}

#[tokio::test(flavor = "multi_thread")]
async fn loads_and_figures_are_as_reported() {
    use vmemkv_proto::internal::v1::{HeartbeatRequest, ShardLoad};
    let (router, server) = with_shards("62").await;
    let map = router.locate("a", 0).await.shard.unwrap();
    let load = ShardLoad {
        shard_id: map.shard_id,
        keys: 7,
        live_bytes: 70,
        requests_per_second: 1.5,
        ..Default::default()
    };
    let heartbeat = HeartbeatRequest {
        node_id: 1,
        incarnation: server.incarnation,
        cluster_id: server.cluster_id,
        generation: server.generation,
        loads: vec![load],
        map_version: 2,
        disk_used_bytes: 5,
        capacity_bytes: 50,
        engine_state: "disk-full".to_owned(),
        ..Default::default()
    };
    router.control().heartbeat(heartbeat).await.unwrap();
    let nodes = router.admin().list_nodes(v1::ListNodesRequest::default()).await.unwrap();
    let node = &nodes.into_inner().nodes[0];
    assert_eq!((node.keys, node.live_bytes, node.requests_per_second), (7, 70, 1.5));
    assert_eq!((node.disk_used_bytes, node.capacity_bytes), (5, 50));
    assert_eq!((node.state(), node.map_version), (v1::NodeState::Up, 2));
    assert!(node.last_heartbeat_ms_ago.unwrap() < 5_000);
    assert_eq!(node.labels["zone"], "a");

    let status = router.admin().get_cluster_status(v1::GetClusterStatusRequest {}).await.unwrap();
    let status = status.into_inner();
    assert_eq!((status.cluster_id, status.shards, status.keys), (server.cluster_id, 2, 7));
    assert_eq!(status.nodes.unwrap().up, 1);
    assert!(!status.healthy && status.problems[0].contains("disk-full"), "{status:?}");
    assert_eq!(status.routers.len(), 1);
    assert_eq!(status.routers[0].router_id, status.leader_router_id);
    assert_eq!(status.routers[0].address, router.router.addresses().grpc.to_string());
    let calls = |name: &str| status.methods.iter().find(|m| m.method == name).map(|m| m.calls);
    assert_eq!(calls("vmemkv.v1.Router/Locate"), Some(1));
    assert_eq!(calls("vmemkv.internal.v1.Control/Heartbeat"), Some(1));

    // It falls silent.
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    let status = router.admin().get_cluster_status(v1::GetClusterStatusRequest {}).await.unwrap();
    let status = status.into_inner();
    assert_eq!(status.nodes.unwrap().down, 1);
    assert!(status.problems[0].contains("no heartbeat"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_the_cluster_is_not_built() {
    let router = TestRouter::start().await;
    let mut admin = router.admin();
    let codes = [
        admin.merge_shards(v1::MergeShardsRequest::default()).await.unwrap_err().code(),
        admin.move_shard(v1::MoveShardRequest::default()).await.unwrap_err().code(),
        admin.drain_node(v1::DrainNodeRequest::default()).await.unwrap_err().code(),
        admin.undrain_node(v1::UndrainNodeRequest::default()).await.unwrap_err().code(),
        admin.remove_node(v1::RemoveNodeRequest::default()).await.unwrap_err().code(),
        admin.cancel_operation(v1::CancelOperationRequest::default()).await.unwrap_err().code(),
        admin.add_router(v1::AddRouterRequest::default()).await.unwrap_err().code(),
        admin.remove_router(v1::RemoveRouterRequest::default()).await.unwrap_err().code(),
    ];
    assert!(codes.iter().all(|code| *code == Code::Unimplemented), "{codes:?}");
    let operations = admin.list_operations(v1::ListOperationsRequest::default()).await.unwrap();
    assert!(operations.into_inner().operations.is_empty());
    let routers = admin.list_routers(v1::ListRoutersRequest::default()).await.unwrap();
    let routers = routers.into_inner().routers;
    assert!(routers.len() == 1 && routers[0].leader && routers[0].voter && routers[0].reachable);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_reflection_name_the_services() {
    let router = TestRouter::start().await;
    let mut health = HealthClient::new(router.channel.clone());
    for service in ["", "vmemkv.v1.Kv", "vmemkv.v1.Router", "vmemkv.v1.Admin"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let response = health.check(request).await.unwrap().into_inner();
        assert_eq!(
            response.status(),
            tonic_health::pb::health_check_response::ServingStatus::Serving
        );
    }
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(router.channel.clone());
    let requests = tokio_stream::iter([request]);
    let mut answers = reflection.server_reflection_info(requests).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let listed = |name: &str| list.service.contains(&ServiceResponse { name: name.to_owned() });
    assert!(listed("vmemkv.v1.Kv") && listed("vmemkv.v1.Router") && listed("vmemkv.v1.Admin"));
    assert!(listed("grpc.health.v1.Health") && !listed("vmemkv.internal.v1.Raft"), "{list:?}");
    assert!(!listed("vmemkv.v1.NodeAdmin"), "{list:?}");
}

async fn http(router: &TestRouter, path: &str) -> String {
    let address = router.router.addresses().http;
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_port_answers() {
    let router = TestRouter::start().await;
    for path in ["/livez", "/readyz", "/healthz"] {
        let text = http(&router, path).await;
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("ok\n"), "{path}: {text}");
    }
    let metrics = http(&router, "/metrics").await;
    assert!(metrics.contains("\nvmemkv_router_has_leader 1\n"), "{metrics}");
    let page = http(&router, "/").await;
    assert!(page.contains("no server has registered yet"), "{page}");
    assert!(http(&router, "/nothing").await.starts_with("HTTP/1.1 404"));
}
