//! A cluster in this process: servers and a router that share one state, speak the API over real
//! connections, and fail as they are told. Shards split and move when a test says so, or between
//! the answers of scans.

#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

mod kv;
mod router;
mod state;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use vmemkv_proto::limits::MAX_MESSAGE_BYTES;
use vmemkv_proto::v1::kv_server::{Kv, KvServer};
use vmemkv_proto::v1::router_server::RouterServer;

pub use self::kv::FakeKv;
pub use self::router::FakeRouter;
pub use self::state::{Fault, State};

/// The cluster; dropping it ends it.
pub struct Fake {
    pub state: Arc<Mutex<State>>,
    pub router: String,
    pub locates: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<()>>,
}

impl Fake {
    /// So many nodes, and one shard on the first; the map is watched only if `watched`.
    pub async fn start(nodes: u64, watched: bool) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let mut tasks = Vec::new();
        for node in 1..=nodes {
            let (address, task) = serve(FakeKv { node, state: Arc::clone(&state) }).await;
            state.lock().addresses.insert(node, address.to_string());
            tasks.push(task);
        }
        state.lock().first_shard();
        let locates = Arc::new(AtomicUsize::new(0));
        let router =
            FakeRouter { state: Arc::clone(&state), locates: Arc::clone(&locates), watched };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tasks.push(tokio::spawn(async move {
            let server = Server::builder().add_service(RouterServer::new(router));
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        }));
        Self { state, router: address.to_string(), locates, tasks }
    }

    pub fn locates(&self) -> usize {
        self.locates.load(Ordering::SeqCst)
    }

    /// Another server process for a node, at another address; the old one goes on.
    pub async fn restart(&mut self, node: u64) {
        let (address, task) = serve(FakeKv { node, state: Arc::clone(&self.state) }).await;
        self.tasks.push(task);
        self.state.lock().move_node(node, address.to_string());
    }

    /// Ends the first server process of a node, connections included.
    pub fn kill(&mut self, node: usize) {
        self.tasks[node - 1].abort();
    }

    pub fn fault(&self, method: &'static str, fault: Fault) {
        self.state.lock().faults.entry(method).or_default().push_back(fault);
    }

    pub fn calls(&self, method: &str) -> usize {
        self.state.lock().calls.get(method).copied().unwrap_or(0)
    }

    pub fn fill(&self, keys: usize) -> Vec<String> {
        let names: Vec<_> = (0..keys).map(|n| format!("key{n:05}")).collect();
        let mut state = self.state.lock();
        for name in &names {
            state.data.insert(name.clone().into_bytes(), format!("value of {name}").into());
        }
        names
    }

    /// Cuts before each of these keys; the parts go to the nodes in turn.
    pub fn cut(&self, keys: &[&str]) {
        let mut state = self.state.lock();
        for (turn, key) in keys.iter().enumerate() {
            state.split(key.as_bytes());
            let nodes = state.addresses.len() as u64;
            state.move_shard(key.as_bytes(), (turn as u64 + 1) % nodes + 1);
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Serves anything that speaks the API.
pub async fn serve(kv: impl Kv) -> (SocketAddr, JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = KvServer::new(kv)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let task = tokio::spawn(async move {
        let server = Server::builder().add_service(service);
        server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    (address, task)
}
