//! Redirects, lagging servers, moved nodes, and how often routers are asked.

#![allow(clippy::unwrap_used)]

mod fake;

use std::time::{Duration, Instant};

use futures::future::join_all;
use vmemkv_client::proto::routing_error::Kind;
use vmemkv_client::{ApiError, Client, ErrorKind, proto};

use fake::{Fake, Fault};

#[tokio::test]
async fn a_missing_part_is_looked_up_once() {
    let fake = Fake::start(1, false).await;
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    let gets = (0..200).map(|n| {
        let client = client.clone();
        async move { client.get(format!("key{n}")).await.unwrap() }
    });
    join_all(gets).await;
    assert_eq!(fake.locates(), 1);
}

#[tokio::test]
async fn a_redirect_costs_one_hop_and_no_trip_to_the_router() {
    let fake = Fake::start(2, false).await;
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    client.put("k", "1").await.unwrap();
    let asked = fake.locates();
    fake.state.lock().move_shard(b"k", 2);
    client.put("k", "2").await.unwrap();
    assert_eq!((fake.calls("put"), fake.locates()), (3, asked));
    client.put("k", "3").await.unwrap();
    assert_eq!(fake.calls("put"), 4);
    fake.state.lock().split(b"j");
    fake.state.lock().split(b"x");
    client.put("a", "1").await.unwrap();
    client.put("k", "1").await.unwrap();
    client.put("z", "1").await.unwrap();
    assert_eq!(fake.locates(), asked);
    fake.state.lock().merge(b"a");
    client.get("k").await.unwrap();
    assert_eq!(fake.locates(), asked);
}

#[tokio::test]
async fn changes_come_by_the_watch() {
    let fake = Fake::start(2, true).await;
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    client.put("k", "1").await.unwrap();
    fake.state.lock().move_shard(b"k", 2);
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.put("k", "2").await.unwrap();
    assert_eq!(fake.calls("put"), 2);
}

#[tokio::test]
async fn a_lagging_server_is_given_time_then_the_router_is_asked() {
    let fake = Fake::start(1, false).await;
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    client.put("k", "1").await.unwrap();
    let asked = fake.locates();
    let old = proto::RoutingError {
        kind: Kind::StaleEpoch as i32,
        map_version: 0,
        shards: vec![proto::Shard { epoch: 0, ..fake.state.lock().shards[0].clone() }],
    };
    for _ in 0..4 {
        fake.fault("put", Fault::Refuse(ApiError::misrouted("old", old.clone()).to_status()));
    }
    client.put("k", "2").await.unwrap();
    assert_eq!((fake.calls("put"), fake.locates()), (6, asked + 1));
}

#[tokio::test]
async fn a_server_that_knows_nothing_makes_us_ask() {
    let fake = Fake::start(2, false).await;
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    client.put("k", "1").await.unwrap();
    fake.state.lock().mute = true;
    fake.state.lock().move_shard(b"k", 2);
    client.put("k", "2").await.unwrap();
    assert_eq!(fake.calls("put"), 3);
}

#[tokio::test]
async fn for_ever_wrong_ends_at_the_deadline() {
    let fake = Fake::start(1, true).await;
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    let wrong = proto::RoutingError { kind: Kind::NotServing as i32, ..Default::default() };
    for _ in 0..10_000 {
        fake.fault("get", Fault::Refuse(ApiError::misrouted("no lease", wrong.clone()).into()));
    }
    let began = Instant::now();
    let error = client.with_deadline(Duration::from_millis(400)).get("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.api().routing.is_some());
    assert!(began.elapsed() < Duration::from_secs(2));
    assert!(fake.calls("get") < 60, "{} attempts", fake.calls("get"));
}

#[tokio::test]
async fn a_node_at_a_new_address_is_found() {
    let mut fake = Fake::start(1, false).await;
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    client.put("k", "1").await.unwrap();
    // Nobody listens at the old address, and its connections hang.
    fake.fault("get", Fault::Hang);
    fake.restart(1).await;
    fake.kill(1);
    let began = Instant::now();
    assert_eq!(client.get("k").await.unwrap().unwrap(), "1");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    client.put("k", "2").await.unwrap();
}

#[tokio::test]
async fn two_nodes_that_swap_their_addresses_do_not_mix_up() {
    let fake = Fake::start(2, false).await;
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    client.put("k", "1").await.unwrap();
    {
        let mut state = fake.state.lock();
        let (one, two) = (state.addresses[&1].clone(), state.addresses[&2].clone());
        // Node 1 is now believed to be where node 2 answers: it refuses, for ever.
        state.move_node(1, two);
        state.move_node(2, one);
        state.mute = true;
    }
    let short = client.with_deadline(Duration::from_millis(300));
    // The cached address still leads to node 1; another client is sent to the wrong one.
    assert!(short.get("k").await.is_ok());
    let builder = Client::builder().addresses(fake.router.as_str());
    let other = builder.deadline(Duration::from_millis(300)).connect().await.unwrap();
    let error = other.get("k").await.unwrap_err();
    assert_eq!(error.api().routing.as_ref().unwrap().kind(), Kind::WrongNode);
}
