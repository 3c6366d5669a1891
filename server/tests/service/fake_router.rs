//! A router that says what a test wants it to say.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use vmemkv_proto::internal::v1::control_server::{Control, ControlServer};
use vmemkv_proto::internal::v1::{
    AssignedShard, ConfirmShardsRequest, ConfirmShardsResponse, HeartbeatRequest,
    HeartbeatResponse, RegisterRequest, RegisterResponse,
};
use vmemkv_proto::v1::Shard;

/// What the router says, and what it heard.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) cluster_id: u64,
    pub(crate) generation: u64,
    pub(crate) lease_ms: u64,
    pub(crate) map_version: u64,
    /// Shards of whoever registers; node id and address are filled in.
    pub(crate) shards: Vec<AssignedShard>,
    /// Answers every call.
    pub(crate) fail: Option<Status>,
    /// Answers Register with a refusal unless it names this previous nonce.
    pub(crate) expect_previous: Option<u64>,
    pub(crate) registered: Vec<RegisterRequest>,
    pub(crate) heartbeats: Vec<HeartbeatRequest>,
    pub(crate) confirmed: Vec<u64>,
    /// Every operation with a smaller id has ended.
    pub(crate) ended_below: u64,
}

/// A running router; it ends with the runtime of its test.
#[derive(Clone)]
pub(crate) struct FakeRouter {
    pub(crate) address: SocketAddr,
    script: Arc<Mutex<Script>>,
}

impl FakeRouter {
    /// A router of cluster 42 that gives these shards (id, start, end), all new.
    pub(crate) async fn start(shards: &[(u64, &str, &str)]) -> Self {
        let script = Script {
            cluster_id: 42,
            generation: 1,
            lease_ms: 60_000,
            map_version: 1,
            shards: shards.iter().map(|(id, start, end)| assigned(*id, start, end, true)).collect(),
            ..Script::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Self { address, script: Arc::new(Mutex::new(script)) };
        let service = ControlServer::new(router.clone());
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))),
        );
        router
    }

    /// Reads or changes the script.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        change(&mut self.script.lock().unwrap())
    }
}

/// A shard of the epoch 1.
pub(crate) fn assigned(shard_id: u64, start: &str, end: &str, born: bool) -> AssignedShard {
    let shard = Shard {
        shard_id,
        start: start.as_bytes().to_vec().into(),
        end: end.as_bytes().to_vec().into(),
        epoch: 1,
        ..Shard::default()
    };
    AssignedShard { shard: Some(shard), born }
}

impl Script {
    fn shards_of(&self, node_id: u64) -> Vec<AssignedShard> {
        let mut shards = self.shards.clone();
        for shard in shards.iter_mut().filter_map(|assigned| assigned.shard.as_mut()) {
            if shard.node_id == 0 {
                shard.node_id = node_id;
            }
        }
        shards
    }

    fn check(&self) -> Result<(), Status> {
        self.fail.clone().map_or(Ok(()), Err)
    }
}

#[tonic::async_trait]
impl Control for FakeRouter {
    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        self.with(|script| {
            let request = request.into_inner();
            let node_id = request.node_id;
            let previous = request.previous_nonce;
            script.registered.push(request);
            script.check()?;
            if script.expect_previous.is_some_and(|expected| expected != previous) {
                return Err(Status::failed_precondition("this directory is a copy"));
            }
            Ok(Response::new(RegisterResponse {
                cluster_id: script.cluster_id,
                generation: script.generation,
                lease_ms: script.lease_ms,
                map_version: script.map_version,
                shards: script.shards_of(node_id),
                incarnation: script.registered.len() as u64,
                heartbeat_ms: 30,
                operations_ended_below: script.ended_below,
            }))
        })
    }

    async fn heartbeat(
        &self,
        request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatResponse>, Status> {
        self.with(|script| {
            let request = request.into_inner();
            let included = request.map_version < script.map_version;
            let node_id = request.node_id;
            script.heartbeats.push(request);
            script.check()?;
            Ok(Response::new(HeartbeatResponse {
                lease_ms: script.lease_ms,
                map_version: script.map_version,
                shards: if included { script.shards_of(node_id) } else { Vec::new() },
                shards_included: included,
                operations_ended_below: script.ended_below,
            }))
        })
    }

    async fn confirm_shards(
        &self,
        request: Request<ConfirmShardsRequest>,
    ) -> Result<Response<ConfirmShardsResponse>, Status> {
        self.with(|script| {
            script.check()?;
            for confirmed in request.into_inner().shards {
                script.confirmed.push(confirmed.shard_id);
                for assigned in &mut script.shards {
                    if assigned.shard.as_ref().is_some_and(|s| s.shard_id == confirmed.shard_id) {
                        assigned.born = false;
                    }
                }
            }
            Ok(Response::new(ConfirmShardsResponse { map_version: script.map_version }))
        })
    }
}
