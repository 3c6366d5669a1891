//! Splits through a router, with a server that loses, repeats and refuses.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::fake_node::{FakeNode, Meet};
use common::{TestRouter, TestServer};
use tonic::Code;
use vmemkv_proto::internal::v1::{HeartbeatRequest, SplitCandidate};
use vmemkv_proto::v1;

/// A router, and a server with one confirmed shard that covers everything.
struct Cluster {
    router: TestRouter,
    server: TestServer,
    node: FakeNode,
}

impl Cluster {
    async fn start() -> Self {
        let (router, node) = (TestRouter::start().await, FakeNode::start().await);
        let mut server = TestServer::new(1);
        server.address = node.address.to_string();
        server.register(&router).await.unwrap();
        let cluster = Self { router, server, node };
        let shard = cluster.shards().await.remove(0);
        cluster.server.confirm(&cluster.router, &[(shard.shard_id, shard.epoch)]).await.unwrap();
        cluster
    }

    async fn restart(self) -> Self {
        let Self { router, server, node } = self;
        Self { router: router.restart().await, server, node }
    }

    /// The map, which must be a partition of the key space.
    async fn shards(&self) -> Vec<v1::ShardStatus> {
        let list = self.router.admin().list_shards(v1::ListShardsRequest::default()).await;
        let shards = list.unwrap().into_inner().shards;
        let mut from = bytes::Bytes::new();
        for (at, shard) in shards.iter().enumerate() {
            assert_eq!(shard.start, from, "{shards:?}");
            assert_eq!(shard.end.is_empty(), at + 1 == shards.len(), "{shards:?}");
            from = shard.end.clone();
        }
        shards
    }

    async fn split(&self, shard_id: u64, key: &str) -> Result<u64, tonic::Status> {
        let key = Some(key.as_bytes().to_vec().into()).filter(|_| !key.is_empty());
        let request = v1::SplitShardRequest { shard_id, key };
        Ok(self.router.admin().split_shard(request).await?.into_inner().operation_id)
    }

    async fn operation(&self, operation_id: u64) -> v1::Operation {
        let request = v1::ListOperationsRequest::default();
        let operations = self.router.admin().list_operations(request).await.unwrap();
        let operations = operations.into_inner().operations;
        operations.into_iter().find(|known| known.operation_id == operation_id).unwrap()
    }

    async fn ended(&self, operation_id: u64) -> v1::Operation {
        for _ in 0..500 {
            let operation = self.operation(operation_id).await;
            self.shards().await;
            if operation.finished {
                return operation;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not ended: {:?}", self.operation(operation_id).await);
    }

    async fn orders(&self, at_least: usize) {
        for _ in 0..500 {
            if self.node.orders() >= at_least {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} orders", self.node.orders());
    }

    async fn report(&self, candidates: Vec<SplitCandidate>) {
        let heartbeat = HeartbeatRequest {
            node_id: self.server.node_id,
            incarnation: self.server.incarnation,
            cluster_id: self.server.cluster_id,
            generation: self.server.generation,
            engine_state: "healthy".into(),
            split_candidates: candidates,
            ..Default::default()
        };
        self.router.control().heartbeat(heartbeat).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_by_hand_ends_with_both_halves_in_the_map() {
    let cluster = Cluster::start().await;
    let mut map = cluster.router.map();
    let watched = v1::WatchShardMapRequest::default();
    let mut map = map.watch_shard_map(watched).await.unwrap().into_inner();
    map.message().await.unwrap().unwrap();
    let parent = cluster.shards().await.remove(0);
    let operation = cluster.split(parent.shard_id, "m").await.unwrap();
    let ended = cluster.ended(operation).await;
    assert_eq!(
        (ended.phase.as_str(), ended.progress, ended.shard_id),
        ("done", 1.0, parent.shard_id)
    );
    assert_eq!((&ended.key[..], ended.source_node_id, ended.attempt), (&b"m"[..], 1, 1));
    let shards = cluster.shards().await;
    assert_eq!(shards.iter().map(|s| s.shard_id).collect::<Vec<_>>(), ended.new_shard_ids);
    assert!(shards.iter().all(|shard| shard.epoch == parent.epoch + 1 && !shard.born));
    assert_eq!(shards[0].end, "m");
    // Whoever watches sees both at once.
    let delta = map.message().await.unwrap().unwrap();
    assert_eq!(delta.shards.iter().map(|s| s.shard_id).collect::<Vec<_>>(), ended.new_shard_ids);
    // The server is told at once, and may forget the operation.
    cluster.orders(1).await;
    let order = cluster.node.with(|script| script.orders[0].clone());
    let to = order.to.unwrap();
    assert_eq!((to.node_id, to.incarnation), (1, cluster.server.incarnation));
    assert_eq!((order.shard_id, order.epoch), (parent.shard_id, parent.epoch));
    for _ in 0..100 {
        if cluster.node.with(|script| !script.hints.is_empty()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(cluster.node.with(|script| script.hints.clone()), [delta.map_version]);
    assert!(
        cluster.server.heartbeat(&cluster.router).await.unwrap().operations_ended_below > operation
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn m11_whatever_is_lost_the_servers_decision_is_the_end() {
    use Meet::{Lose, Obey, ObeyAndLose, Refuse, RefuseAndLose};
    let cases: [(&[Meet], &str); 6] = [
        (&[Lose, Lose, Obey], "done"),
        (&[ObeyAndLose, Obey], "done"),
        // The server has decided; that it would now decide otherwise does not count.
        (&[ObeyAndLose, ObeyAndLose, Refuse], "done"),
        (&[Lose, Refuse], "failed"),
        (&[RefuseAndLose, Obey], "failed"),
        (&[RefuseAndLose, Lose, ObeyAndLose, Obey], "failed"),
    ];
    let cluster = Cluster::start().await;
    for (meet, phase) in cases {
        let before = cluster.shards().await;
        let shard = before.last().unwrap();
        let key = String::from_utf8(shard.start.to_vec()).unwrap() + "m";
        cluster.node.meets(meet);
        let operation = cluster.split(shard.shard_id, &key).await.unwrap();
        let ended = cluster.ended(operation).await;
        assert_eq!(ended.phase, phase, "{meet:?}");
        let after = cluster.shards().await;
        assert_eq!(after.len(), before.len() + usize::from(phase == "done"), "{meet:?}");
        if phase == "failed" {
            assert_eq!(ended.reason, "no room");
            assert_eq!(after.last().unwrap().shard_id, shard.shard_id);
            assert_eq!(after.last().unwrap().operation_id, 0);
        }
        // Every order of the operation was the same.
        let orders = cluster.node.with(|script| script.orders.clone());
        let orders: Vec<_> = orders.iter().filter(|o| o.operation_id == operation).collect();
        assert_eq!(orders.len(), meet.len(), "{meet:?}");
        assert!(orders.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn m11_a_restarted_router_goes_on_at_every_step() {
    // Before the order, after it, and after an answer that got lost; executed or refused.
    for first in [Meet::Lose, Meet::ObeyAndLose, Meet::RefuseAndLose] {
        let cluster = Cluster::start().await;
        let shard = cluster.shards().await.remove(0);
        cluster.node.meets(&[first; 100]);
        let operation = cluster.split(shard.shard_id, "m").await.unwrap();
        cluster.orders(1).await;
        let waiting = cluster.operation(operation).await;
        assert!(!waiting.finished && waiting.phase == "begin", "{waiting:?}");
        let cluster = cluster.restart().await;
        let listed = cluster.shards().await.remove(0);
        assert_eq!((listed.shard_id, listed.operation_id), (shard.shard_id, operation));
        cluster.orders(cluster.node.orders() + 1).await;
        assert!(!cluster.operation(operation).await.finished);
        let waits = cluster.operation(operation).await.reason;
        assert!(waits.contains("lost"), "{waits}");
        cluster.node.meets(&[]);
        let ended = cluster.ended(operation).await;
        let done = first != Meet::RefuseAndLose;
        assert_eq!(ended.phase, if done { "done" } else { "failed" });
        assert_eq!(cluster.shards().await.len(), 1 + usize::from(done));
        // And once more, with nothing left to do.
        let orders = cluster.node.orders();
        let cluster = cluster.restart().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(cluster.node.orders(), orders);
        assert_eq!(cluster.operation(operation).await.phase, ended.phase);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_anew_gets_the_order_under_its_new_name() {
    let mut cluster = Cluster::start().await;
    let shard = cluster.shards().await.remove(0);
    cluster.node.meets(&[Meet::ObeyAndLose; 100]);
    let operation = cluster.split(shard.shard_id, "m").await.unwrap();
    cluster.orders(1).await;
    // It comes back elsewhere.
    let decided = cluster.node.with(|script| script.decided.clone());
    let node = FakeNode::start().await;
    node.with(|script| script.decided = decided);
    cluster.server.address = node.address.to_string();
    cluster.server.reboot();
    let old = cluster.server.incarnation;
    cluster.server.register(&cluster.router).await.unwrap();
    cluster.node = node;
    assert_eq!(cluster.ended(operation).await.phase, "done");
    let order = cluster.node.with(|script| script.orders[0].clone());
    assert!(order.to.unwrap().incarnation > old);
}

#[tokio::test(flavor = "multi_thread")]
async fn m14_a_shard_that_is_held_gets_no_second_operation() {
    let cluster = Cluster::start().await;
    let shard = cluster.shards().await.remove(0);
    cluster.node.meets(&[Meet::Lose; 1000]);
    let operation = cluster.split(shard.shard_id, "m").await.unwrap();
    for key in ["c", ""] {
        let refused = cluster.split(shard.shard_id, key).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(&format!("operation {operation}")), "{refused}");
    }
    cluster.node.meets(&[]);
    cluster.ended(operation).await;
    let refused = cluster.split(shard.shard_id, "c").await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_split_is_said_clearly() {
    let cluster = Cluster::start().await;
    let shard = cluster.shards().await.remove(0);
    let operation = cluster.split(shard.shard_id, "m").await.unwrap();
    cluster.ended(operation).await;
    let left = cluster.shards().await.remove(0);
    let refused = cluster.split(77, "m").await.unwrap_err();
    assert!(refused.code() == Code::NotFound && refused.message().contains("77"), "{refused}");
    for outside in ["m", "z"] {
        let refused = cluster.split(left.shard_id, outside).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with("key: "), "{refused}");
    }
    let empty = v1::SplitShardRequest { shard_id: left.shard_id, key: Some("".into()) };
    let refused = cluster.router.admin().split_shard(empty).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    // The server finds no key.
    let refused = cluster.split(left.shard_id, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("no key splits"), "{refused}");
    // It finds one.
    cluster.node.with(|script| script.key = Some(b"g".to_vec()));
    let operation = cluster.split(left.shard_id, "").await.unwrap();
    assert_eq!(cluster.ended(operation).await.key, "g");
    // It proposes nonsense.
    let left = cluster.shards().await.remove(0);
    let refused = cluster.split(left.shard_id, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    // Nobody is there.
    let mut lost = TestServer::new(1);
    lost.address = "127.0.0.1:1".to_owned();
    (lost.cluster_id, lost.generation) = (cluster.server.cluster_id, cluster.server.generation);
    lost.nonce = cluster.server.nonce;
    lost.register(&cluster.router).await.unwrap();
    let refused = cluster.split(left.shard_id, "").await.unwrap_err();
    assert!(refused.code() == Code::Unavailable && refused.message().contains("127.0.0.1:1"));
    assert_eq!(cluster.shards().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_that_are_too_large_are_split() {
    let cluster = Cluster::start().await;
    let shard = cluster.shards().await.remove(0);
    let candidate = |shard: &v1::ShardStatus, key: Option<&'static str>| SplitCandidate {
        shard_id: shard.shard_id,
        epoch: shard.epoch,
        bytes: 1 << 30,
        entries: 9,
        key: key.map(Into::into),
    };
    // One that no key splits is left alone, and an operator can see why.
    cluster.report(vec![candidate(&shard, None)]).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let listed = cluster.shards().await.remove(0);
    assert!(listed.note.contains("no key splits it"), "{listed:?}");
    assert_eq!(cluster.node.orders(), 0);

    // A node gets one at a time.
    let operation = cluster.split(shard.shard_id, "m").await.unwrap();
    cluster.ended(operation).await;
    let shards = cluster.shards().await;
    cluster.node.meets(&[Meet::Lose; 4]);
    let both = vec![candidate(&shards[0], Some("c")), candidate(&shards[1], Some("x"))];
    cluster.report(both).await;
    let mut most = 0;
    for _ in 0..500 {
        let active = v1::ListOperationsRequest { active_only: true, ..Default::default() };
        let list = cluster.router.admin().list_operations(active).await.unwrap();
        most = most.max(list.into_inner().operations.len());
        if cluster.shards().await.len() == 4 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((cluster.shards().await.len(), most), (4, 1));

    // One whose split the server refuses is not tried again and again.
    let shards = cluster.shards().await;
    cluster.node.meets(&[Meet::Refuse; 100]);
    let orders = cluster.node.orders();
    cluster.report(vec![candidate(&shards[0], Some("b"))]).await;
    cluster.orders(orders + 1).await;
    for _ in 0..5 {
        cluster.report(vec![candidate(&shards[0], Some("b"))]).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(cluster.node.orders(), orders + 1);
    let note = cluster.shards().await.remove(0).note;
    assert!(note.contains("its split has failed"), "{note}");
}

#[tokio::test(flavor = "multi_thread")]
async fn splits_by_size_can_be_turned_off() {
    let router =
        TestRouter::start_with(|config| vmemkv_router::Config { split_by_size: false, ..config })
            .await;
    let node = FakeNode::start().await;
    let mut server = TestServer::new(1);
    server.address = node.address.to_string();
    server.register(&router).await.unwrap();
    let cluster = Cluster { router, server, node };
    let shard = cluster.shards().await.remove(0);
    cluster.server.confirm(&cluster.router, &[(shard.shard_id, shard.epoch)]).await.unwrap();
    let large = SplitCandidate {
        shard_id: shard.shard_id,
        epoch: shard.epoch,
        bytes: 1 << 40,
        entries: 9,
        key: Some("m".into()),
    };
    cluster.report(vec![large]).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!((cluster.shards().await.len(), cluster.node.orders()), (1, 0));
}
