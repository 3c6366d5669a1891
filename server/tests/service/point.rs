//! Get, Put, Delete, DeleteRange, Checksum, GetInfo; and that a restart keeps the data.

use bytes::Bytes;
use vmemkv_proto::v1;
use vmemkv_proto::v1::condition::Condition as Is;
use vmemkv_server::Server;
use xxhash_rust::xxh3::xxh3_64;

use crate::harness::{Fixture, config, fill, get, put, ready, value};

fn condition(is: Is) -> Option<v1::Condition> {
    Some(v1::Condition { condition: Some(is) })
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_at_a_time() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    assert_eq!(value(&mut client, "a").await, None);
    let answer = client.put(put("a", "1")).await.unwrap().into_inner();
    assert_eq!(answer, v1::PutResponse { applied: true, current: None });
    client.put(put("empty", "")).await.unwrap();
    client.put(put("large", vec![7; 1 << 20])).await.unwrap();
    client.put(put("largest", vec![7; 8 << 20])).await.unwrap();
    assert_eq!(value(&mut client, "a").await, Some("1".into()));
    assert_eq!(value(&mut client, "empty").await, Some(Bytes::new()));
    assert_eq!(value(&mut client, "large").await.unwrap().len(), 1 << 20);
    let mut wide = fixture.client().await.max_decoding_message_size(16 << 20);
    assert_eq!(value(&mut wide, "largest").await.unwrap().len(), 8 << 20);

    let delete = |key: &'static str| v1::DeleteRequest { key: key.into(), ..Default::default() };
    let answer = client.delete(delete("a")).await.unwrap().into_inner();
    assert!(answer.applied && answer.existed);
    let answer = client.delete(delete("a")).await.unwrap().into_inner();
    assert!(answer.applied && !answer.existed);
    assert_eq!(value(&mut client, "a").await, None);
    fixture.server.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_that_does_not_hold_is_an_answer() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let put_if =
        |value: &'static str, is| v1::PutRequest { condition: condition(is), ..put("k", value) };
    let refused = client.put(put_if("1", Is::IfPresent(true))).await.unwrap().into_inner();
    assert_eq!(refused, v1::PutResponse { applied: false, current: None });
    assert!(client.put(put_if("1", Is::IfAbsent(true))).await.unwrap().into_inner().applied);
    let refused = client.put(put_if("2", Is::IfAbsent(true))).await.unwrap().into_inner();
    assert_eq!(refused, v1::PutResponse { applied: false, current: Some("1".into()) });
    let swap = put_if("2", Is::IfValueEquals("1".into()));
    assert!(client.put(swap).await.unwrap().into_inner().applied);
    let delete = v1::DeleteRequest {
        key: "k".into(),
        condition: condition(Is::IfValueEquals("1".into())),
        ..Default::default()
    };
    let answer = client.delete(delete).await.unwrap().into_inner();
    assert_eq!((answer.applied, answer.existed), (false, false));
    assert_eq!(answer.current, Some("2".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_deleted_in_parts() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    fill(&mut client, "r", 9000, 10).await;
    client.put(put("s", "stays")).await.unwrap();
    let (mut start, mut deleted) = (Bytes::from("r"), 0);
    loop {
        let request =
            v1::DeleteRangeRequest { start: start.clone(), end: "s".into(), ..Default::default() };
        let answer = client.delete_range(request).await.unwrap().into_inner();
        deleted += answer.deleted;
        if answer.done {
            assert_eq!(answer.covered_to, "s");
            break;
        }
        assert!(answer.covered_to > start);
        start = answer.covered_to;
    }
    assert_eq!(deleted, 9000);
    assert_eq!(value(&mut client, "r00017").await, None);
    assert_eq!(value(&mut client, "s").await, Some("stays".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checksum_is_the_sum_of_its_parts() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    client.put(put("a", "12345678")).await.unwrap();
    client.put(put("b", vec![9; 5000])).await.unwrap();
    let mut expected = 0;
    for (key, value) in [("a", b"12345678".to_vec()), ("b", vec![9; 5000])] {
        let mut bytes = (key.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(key.as_bytes());
        bytes.extend_from_slice(&value);
        expected ^= xxh3_64(&bytes);
    }
    let sum = client.checksum(v1::ChecksumRequest::default()).await.unwrap().into_inner();
    assert_eq!((sum.checksum, sum.count, sum.bytes), (expected, 2, 2 + 8 + 5000));
    let empty = v1::ChecksumRequest { start: "c".into(), end: "b".into(), route: None };
    let sum = client.checksum(empty).await.unwrap().into_inner();
    assert_eq!(sum, v1::ChecksumResponse::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn info_names_the_limits() {
    let fixture = Fixture::start().await;
    let info = fixture.client().await.get_info(v1::GetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.role, "server");
    assert_eq!(info.cluster_id, 42);
    assert_eq!(info.node_id, fixture.server.node_id());
    assert_eq!((info.max_key_bytes, info.max_value_bytes), (4096, 8 << 20));
    assert_eq!((info.max_message_bytes, info.max_batch_operations), (16 << 20, 4096));
    assert_eq!(info.durability, "sync");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_data_and_identity() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    client.put(put("k", "v")).await.unwrap();
    let node_id = fixture.server.node_id();
    drop(client);
    fixture.server.shutdown().await.unwrap();

    // The routers have confirmed the shard: it is not born any more, its data must be here.
    assert!(fixture.router.with(|script| !script.shards[0].born));
    let config = config(fixture.dir.path(), &fixture.router);
    let server = Server::start(config).await.unwrap();
    assert_eq!(server.node_id(), node_id);
    ready(&server).await;
    let fixture = Fixture { server, ..fixture };
    let mut client = fixture.client().await;
    assert_eq!(client.get(get("k")).await.unwrap().into_inner().value, Some("v".into()));
    let (first, second) =
        fixture.router.with(|script| (script.registered[0].clone(), script.registered[1].clone()));
    assert_eq!((first.boot_number, first.previous_nonce), (1, 0));
    assert_eq!((second.boot_number, second.previous_nonce), (2, first.nonce));
    assert_eq!(second.cluster_id, 42);
    assert_eq!(second.instances.len(), 1);
}
