//! A router in this process and servers that are only played, for tests over real gRPC.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "a module of several test programs")]
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod fake_node;

use std::path::Path;

use tempfile::TempDir;
use tonic::transport::Channel;
use vmemkv_proto::internal::v1::control_client::ControlClient;
use vmemkv_proto::internal::v1::{
    ConfirmShardsRequest, ConfirmedShard, HeartbeatRequest, HeartbeatResponse, RegisterRequest,
    RegisterResponse,
};
use vmemkv_proto::limits::MAX_MESSAGE_BYTES;
use vmemkv_proto::v1;
use vmemkv_proto::v1::admin_client::AdminClient;
use vmemkv_proto::v1::router_client::RouterClient;
use vmemkv_router::{Config, Router};

pub type Status = tonic::Status;

/// Settings for a router on free ports with short times.
pub fn config(data: &Path) -> Config {
    let any = "127.0.0.1:0".parse().unwrap();
    Config {
        listen: any,
        http_listen: any,
        raft_listen: any,
        data: data.to_owned(),
        lease_ms: 5_000,
        heartbeat_ms: 100,
        grace_ms: 2_000,
        raft_heartbeat_ms: 50,
        raft_election_ms: 200,
        ..Config::default()
    }
}

/// A router and where its data is.
pub struct TestRouter {
    pub router: Router,
    pub dir: TempDir,
    pub channel: Channel,
}

impl TestRouter {
    pub async fn start() -> Self {
        Self::start_with(|config| config).await
    }

    pub async fn start_with(change: impl FnOnce(Config) -> Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = change(config(&dir.path().join("data")));
        let router = Router::start(config).await.unwrap();
        let channel = connect(&router).await;
        Self { router, dir, channel }
    }

    /// Stops the router, and starts it again over the same data.
    pub async fn restart(self) -> Self {
        let Self { router, dir, channel } = self;
        drop(channel);
        router.shutdown().await.unwrap();
        let router = Router::start(config(&dir.path().join("data"))).await.unwrap();
        let channel = connect(&router).await;
        Self { router, dir, channel }
    }

    pub fn control(&self) -> ControlClient<Channel> {
        ControlClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    pub fn map(&self) -> RouterClient<Channel> {
        RouterClient::new(self.channel.clone())
    }

    pub fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.channel.clone())
    }

    pub async fn locate(&self, key: &'static str, min_version: u64) -> v1::LocateResponse {
        let request = v1::LocateRequest { key: key.into(), min_version };
        self.map().locate(request).await.unwrap().into_inner()
    }
}

pub async fn connect(router: &Router) -> Channel {
    let url = format!("http://{}", router.addresses().grpc);
    Channel::from_shared(url).unwrap().connect().await.unwrap()
}

/// A server as far as routers see it. The fields are what it has stored.
#[derive(Clone, Debug)]
pub struct TestServer {
    pub node_id: u64,
    pub address: String,
    pub boot_number: u64,
    pub nonce: u64,
    pub previous_nonce: u64,
    pub cluster_id: u64,
    pub generation: u64,
    pub incarnation: u64,
    pub map_version: u64,
}

impl TestServer {
    pub fn new(node_id: u64) -> Self {
        Self {
            node_id,
            address: format!("server-{node_id}:7410"),
            boot_number: 1,
            nonce: node_id * 1000 + 1,
            previous_nonce: 0,
            cluster_id: 0,
            generation: 0,
            incarnation: 0,
            map_version: 0,
        }
    }

    /// The next start over the same data.
    pub fn reboot(&mut self) {
        self.boot_number += 1;
        self.previous_nonce = self.nonce;
        self.nonce = self.node_id * 1000 + self.boot_number;
    }

    pub async fn register(&mut self, at: &TestRouter) -> Result<RegisterResponse, Status> {
        let request = RegisterRequest {
            node_id: self.node_id,
            cluster_id: self.cluster_id,
            generation: self.generation,
            boot_number: self.boot_number,
            nonce: self.nonce,
            previous_nonce: self.previous_nonce,
            address: self.address.clone(),
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            capacity_bytes: 1 << 40,
            version: "test".to_owned(),
            ..Default::default()
        };
        let response = at.control().register(request).await?.into_inner();
        self.cluster_id = response.cluster_id;
        self.generation = response.generation;
        self.incarnation = response.incarnation;
        self.map_version = response.map_version;
        Ok(response)
    }

    pub async fn heartbeat(&self, at: &TestRouter) -> Result<HeartbeatResponse, Status> {
        let request = HeartbeatRequest {
            node_id: self.node_id,
            incarnation: self.incarnation,
            cluster_id: self.cluster_id,
            generation: self.generation,
            map_version: self.map_version,
            engine_state: "healthy".to_owned(),
            ..Default::default()
        };
        Ok(at.control().heartbeat(request).await?.into_inner())
    }

    pub async fn confirm(&self, at: &TestRouter, shards: &[(u64, u64)]) -> Result<u64, Status> {
        let shards = shards
            .iter()
            .map(|(shard_id, epoch)| ConfirmedShard { shard_id: *shard_id, epoch: *epoch });
        let request = ConfirmShardsRequest {
            node_id: self.node_id,
            incarnation: self.incarnation,
            shards: shards.collect(),
        };
        Ok(at.control().confirm_shards(request).await?.into_inner().map_version)
    }
}
