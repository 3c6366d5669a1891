//! A server as far as the orders of routers go: it remembers what it has decided, as a server's log
//! does, and fails as it is told to.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use vmemkv_proto::internal::v1::exec_split_response::{Done, Outcome, Refused};
use vmemkv_proto::internal::v1::node_server::{Node, NodeServer};
use vmemkv_proto::internal::v1::{
    ExecSplitRequest, ExecSplitResponse, MapChangedRequest, MapChangedResponse,
    ProposeSplitKeyRequest, ProposeSplitKeyResponse,
};

/// How an order is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meet {
    /// Executed, and answered.
    Obey,
    /// Durably refused, and answered.
    Refuse,
    /// Executed; the answer is lost.
    ObeyAndLose,
    /// Durably refused; the answer is lost.
    RefuseAndLose,
    /// Not executed: the order is lost.
    Lose,
}

#[derive(Default)]
pub struct Script {
    /// How the next orders are met; behind them: obeyed.
    pub meet: VecDeque<Meet>,
    /// The key that it proposes.
    pub key: Option<Vec<u8>>,
    /// All orders that came.
    pub orders: Vec<ExecSplitRequest>,
    /// What was decided, by operation.
    pub decided: BTreeMap<u64, bool>,
    /// Hints that came.
    pub hints: Vec<u64>,
}

/// A running fake; it ends with the runtime of its test.
#[derive(Clone)]
pub struct FakeNode {
    pub address: SocketAddr,
    script: Arc<Mutex<Script>>,
}

impl FakeNode {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let node = Self { address, script: Arc::default() };
        let service = NodeServer::new(node.clone());
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))),
        );
        node
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        change(&mut self.script.lock().unwrap())
    }

    /// How the next orders are met.
    pub fn meets(&self, meet: &[Meet]) {
        self.with(|script| script.meet = meet.iter().copied().collect());
    }

    /// How many orders have come.
    pub fn orders(&self) -> usize {
        self.with(|script| script.orders.len())
    }
}

#[tonic::async_trait]
impl Node for FakeNode {
    async fn propose_split_key(
        &self,
        _: Request<ProposeSplitKeyRequest>,
    ) -> Result<Response<ProposeSplitKeyResponse>, Status> {
        let key = self.with(|script| script.key.clone().map(Into::into));
        Ok(Response::new(ProposeSplitKeyResponse { key }))
    }

    async fn exec_split(
        &self,
        request: Request<ExecSplitRequest>,
    ) -> Result<Response<ExecSplitResponse>, Status> {
        let order = request.into_inner();
        self.with(|script| {
            let meet = script.meet.pop_front().unwrap_or(Meet::Obey);
            let id = order.operation_id;
            script.orders.push(order);
            if meet == Meet::Lose {
                return Err(Status::unavailable("lost"));
            }
            let obeys = matches!(meet, Meet::Obey | Meet::ObeyAndLose);
            // The first decision stays.
            let done = *script.decided.entry(id).or_insert(obeys);
            if matches!(meet, Meet::ObeyAndLose | Meet::RefuseAndLose) {
                return Err(Status::unavailable("the answer is lost"));
            }
            let reason = "no room".to_owned();
            let outcome =
                if done { Outcome::Done(Done {}) } else { Outcome::Refused(Refused { reason }) };
            Ok(Response::new(ExecSplitResponse { outcome: Some(outcome) }))
        })
    }

    async fn map_changed(
        &self,
        request: Request<MapChangedRequest>,
    ) -> Result<Response<MapChangedResponse>, Status> {
        self.with(|script| script.hints.push(request.into_inner().map_version));
        Ok(Response::new(MapChangedResponse {}))
    }
}
