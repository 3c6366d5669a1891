//! Three members over real connections: what is here for one router carries several.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tonic::service::RoutesBuilder;
use vmemkv_proto::internal::v1::raft_server::RaftServer;

use super::{RaftNode, RaftSettings, RouterAddress};
use crate::service::raft::RaftService;
use crate::state::{Action, Outcome, Registration};
use crate::transport::{Port, Served};

const PATIENCE: Duration = Duration::from_secs(10);

struct TestMember {
    node: RaftNode,
    address: RouterAddress,
    served: Served,
}

impl TestMember {
    async fn start(dir: &Path, listen: &str) -> Self {
        let settings = RaftSettings { heartbeat_ms: 50, election_ms: 300 };
        let node = RaftNode::open(dir, &settings).await.unwrap();
        let port = Port::bind("Raft", listen.parse().unwrap()).unwrap();
        let address = RouterAddress { raft: port.address().to_string(), ..Default::default() };
        let mut routes = RoutesBuilder::default();
        routes.add_service(RaftServer::new(RaftService::new(node.clone())));
        let served = Served::grpc(port, routes.routes(), Arc::default()).unwrap();
        Self { node, address, served }
    }

    async fn stop(self) {
        self.node.shutdown().await;
        self.served.shutdown(Duration::from_millis(100)).await;
    }

    /// Registers a node, if this member leads.
    async fn register(&self, node_id: u64) -> bool {
        let registration = Registration {
            node_id,
            nonce: 1,
            boot_number: 1,
            address: "a:1".to_owned(),
            ..Registration::default()
        };
        let outcome = self.node.propose(Action::RegisterNode(registration), PATIENCE).await;
        matches!(outcome, Ok(Outcome::Registered { .. }))
    }

    async fn knows(&self, node_id: u64) {
        let wait = async {
            while self.node.state().read(|state| state.nodes.get(node_id).is_none()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_three_survives_its_leader_and_takes_it_back() {
    let dirs: Vec<TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let mut members = Vec::new();
    for dir in &dirs {
        members.push(TestMember::start(dir.path(), "127.0.0.1:0").await);
    }
    let first = &members[0];
    first.node.bootstrap_alone(first.address.clone(), PATIENCE).await.unwrap();
    let create = Action::CreateCluster { cluster_id: 7, lease_ms: 1_000, boundaries: Vec::new() };
    first.node.propose(create, PATIENCE).await.unwrap();
    assert!(first.register(1).await);

    // The others can only get a snapshot: the log does not reach back.
    let raft = first.node.raft();
    raft.trigger().snapshot().await.unwrap();
    let wait = raft.wait(Some(PATIENCE));
    wait.metrics(|metrics| metrics.snapshot == metrics.last_applied, "a snapshot").await.unwrap();
    let last = raft.metrics().borrow().snapshot.unwrap().index;
    raft.trigger().purge_log(last).await.unwrap();
    let wait = raft.wait(Some(PATIENCE));
    wait.metrics(|metrics| metrics.purged.is_some_and(|id| id.index == last), "purged")
        .await
        .unwrap();
    for member in &members[1..] {
        raft.add_learner(member.node.id(), member.address.clone(), true).await.unwrap();
    }
    let ids: BTreeSet<u64> = members.iter().map(|member| member.node.id()).collect();
    raft.change_membership(ids, false).await.unwrap();
    for member in &members {
        member.knows(1).await;
        assert_eq!(member.node.state().read(|state| state.cluster.cluster_id), 7);
    }
    assert!(first.register(2).await);
    members[1].knows(2).await;
    assert!(!members[1].register(9).await, "a follower has answered for the group");
    members[1].node.linearizable(PATIENCE).await.unwrap_err();

    // The leader goes; the others go on.
    let listen = first.address.raft.clone();
    members.remove(0).stop().await;
    let elect = async {
        loop {
            for member in &members {
                if member.node.leads() && member.register(3).await {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, elect).await.unwrap();

    // It comes back under its id, and learns what it has missed.
    let back = TestMember::start(dirs[0].path(), &listen).await;
    back.knows(3).await;

    members.push(back);

    // A leader without a quorum answers nothing.
    let leads = async {
        loop {
            if let Some(at) = members.iter().position(|member| member.node.leads()) {
                return at;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let leader = tokio::time::timeout(PATIENCE, leads).await.unwrap();
    let leader = members.remove(leader);
    for member in members {
        member.stop().await;
    }
    leader.node.linearizable(Duration::from_millis(500)).await.unwrap_err();
    leader.stop().await;
}
