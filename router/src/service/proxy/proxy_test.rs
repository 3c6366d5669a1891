//! The proxy over fake servers: a client at one address sees one server.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{StreamExt as _, iter, pending};
use parking_lot::Mutex;
use tonic::transport::Channel;
use tonic::{Code, Request};
use vmemkv_client::routes::MapUpdates;
use vmemkv_client::{Client, ErrorKind, Operation};
use vmemkv_proto::ApiError;
use vmemkv_proto::v1::kv_client::KvClient;
use vmemkv_proto::v1::{batch_get_result, batch_put_result};

use super::*;

#[path = "../../../../client/tests/fake/mod.rs"]
mod fake;

use fake::{Fake, Fault, State};

/// The fake cluster's map, at hand.
struct Map(Arc<Mutex<State>>);

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Map")
    }
}

#[async_trait]
impl RouteSource for Map {
    async fn locate(&self, key: Bytes, _: u64) -> vmemkv_client::Result<v1::LocateResponse> {
        let state = self.0.lock();
        let shard = Some(state.shards[state.shard(&key)].clone());
        Ok(v1::LocateResponse { shard, map_version: state.version })
    }

    async fn watch(&self, _: u64, _: u64) -> vmemkv_client::Result<MapUpdates> {
        Ok(pending().boxed())
    }
}

struct Set {
    fake: Fake,
    kv: KvClient<Channel>,
    client: Client,
    stop: Stop,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Set {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Three servers with 200 keys in five shards, and a proxy before them.
async fn set() -> Set {
    let fake = Fake::start(3, false).await;
    fake.fill(200);
    fake.cut(&["key00020", "key00090", "key00091", "key00150"]);
    let map = Arc::new(Map(Arc::clone(&fake.state)));
    let proxy = Proxy::over(map, Arc::new(|| (7, 9)));
    let stop = proxy.stop.clone();
    let (address, task) = fake::serve(proxy).await;
    let kv = KvClient::connect(format!("http://{address}")).await.unwrap();
    let builder = Client::builder().address(address.to_string()).through_proxy();
    let client = builder.connect().await.unwrap();
    Set { fake, kv, client, stop, task }
}

fn key(n: usize) -> String {
    format!("key{n:05}")
}

#[tokio::test]
async fn single_calls() {
    let mut set = set().await;
    let client = &set.client;
    assert_eq!(client.get("key00100").await.unwrap().unwrap(), "value of key00100");
    assert_eq!(client.get("none").await.unwrap(), None);
    assert!(!client.put_if_absent("key00100", "x").await.unwrap().applied);
    client.put("new", "1").await.unwrap();
    assert!(client.delete("new").await.unwrap());
    set.fake.state.lock().move_shard(b"key00100", 1);
    set.fake.state.lock().split(b"key00120");
    client.put("key00121", "2").await.unwrap();
    assert_eq!(client.count(..).await.unwrap(), 200);
    assert_eq!(client.delete_range("key00010".."key00180").await.unwrap(), 170);
    assert_eq!(client.count(..).await.unwrap(), 30);
    let info = set.kv.get_info(v1::GetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.role.as_str(), info.cluster_id, info.node_id), ("router", 7, 9));
    assert_eq!(info.max_batch_operations, 4096);
}

#[tokio::test]
async fn scans_are_whole_while_shards_change() {
    for churn in [0, 1] {
        let set = set().await;
        set.fake.state.lock().churn = churn;
        let names: Vec<_> = (0..200).map(key).collect();
        for limit in [0, 1, 7, 1000] {
            for reverse in [false, true] {
                let scan = set.client.scan(..).limit(limit);
                let scan = if reverse { scan.reverse() } else { scan };
                let found = scan.collect().await.unwrap();
                let mut expected = names.clone();
                if reverse {
                    expected.reverse();
                }
                if limit > 0 {
                    expected.truncate(usize::try_from(limit).unwrap());
                }
                let found: Vec<_> = found.iter().map(|entry| entry.key.clone()).collect();
                assert_eq!(found, expected, "limit {limit}, reverse {reverse}, churn {churn}");
            }
        }
    }
}

#[tokio::test]
async fn a_scan_says_what_it_covered() {
    let mut set = set().await;
    for (limit, last) in [(0, Bytes::from("key00160")), (10, Bytes::from("key00024\0"))] {
        let (start, end) = ("key00015".into(), "key00160".into());
        let request = v1::ScanRequest { start, end, limit, ..Default::default() };
        let mut answers = set.kv.scan(request).await.unwrap().into_inner();
        let mut covered = Bytes::from("key00015");
        let mut done = false;
        while let Some(answer) = answers.message().await.unwrap() {
            assert!(!done);
            for entry in &answer.entries {
                assert!(entry.key >= covered && entry.key < answer.covered_to);
            }
            covered = answer.covered_to;
            done = answer.done;
        }
        assert!(done);
        assert_eq!(covered, last);
    }
    let request = v1::ScanRequest { reverse: true, ..Default::default() };
    let answers = set.kv.scan(request).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    assert!(answers.last().unwrap().done && answers.last().unwrap().covered_to.is_empty());
}

#[tokio::test]
async fn frames_are_answered_in_order() {
    let mut set = set().await;
    let frames: Vec<_> = (0..20u64)
        .map(|id| v1::BatchGetRequest {
            id: 100 - id,
            keys: (0..50).map(|n| Bytes::from(key((n * 37 + 11) % 220))).collect(),
            routes: vec![v1::RouteHint { shard_id: 999, epoch: 1, node_id: 5 }],
        })
        .collect();
    let mut answers = set.kv.batch_get(iter(frames)).await.unwrap().into_inner();
    for id in 0..20u64 {
        let mut results = Vec::new();
        loop {
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!((answer.id, answer.first), (100 - id, results.len() as u64));
            results.extend(answer.results);
            if answer.done {
                break;
            }
        }
        assert_eq!(results.len(), 50);
        for (n, result) in results.into_iter().enumerate() {
            let n = (n * 37 + 11) % 220;
            match result.result.unwrap() {
                batch_get_result::Result::Value(value) => {
                    assert_eq!(value, format!("value of {}", key(n)));
                }
                batch_get_result::Result::Missing(_) => assert!(n >= 200),
                batch_get_result::Result::Error(error) => panic!("{error:?}"),
            }
        }
    }
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn large_answers_come_in_small_messages() {
    let mut set = set().await;
    let value = Bytes::from(vec![3; 256 << 10]);
    let puts = (0..64).map(|n| Operation::put(format!("big{n:02}"), value.clone()));
    assert!(set.client.batch_put(puts).await.iter().all(Result::is_ok));
    // A stock client: its limit is 4 MiB.
    let keys = (0..64).map(|n| Bytes::from(format!("big{n:02}"))).collect();
    let frame = v1::BatchGetRequest { id: 1, keys, routes: Vec::new() };
    let answers = set.kv.batch_get(iter([frame])).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    assert!(answers.len() > 8);
    assert_eq!(answers.iter().map(|answer| answer.results.len()).sum::<usize>(), 64);
}

#[tokio::test]
async fn writes_keep_their_order_per_key() {
    let mut set = set().await;
    let put = |n: u64| v1::BatchOperation {
        operation: Some(v1::batch_operation::Operation::Put(v1::PutOperation {
            key: key(usize::try_from(n % 3).unwrap() * 90).into(),
            value: n.to_string().into(),
            ..Default::default()
        })),
    };
    let frames: Vec<_> = (0..50u64)
        .map(|id| v1::BatchPutRequest {
            id,
            operations: (0..4).map(|n| put(id * 4 + n)).collect(),
            ..Default::default()
        })
        .collect();
    let answers = set.kv.batch_put(iter(frames)).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    assert!(answers.iter().map(|answer| answer.id).eq(0..50));
    for answer in &answers {
        assert!(answer.done && answer.results.len() == 4);
        for result in &answer.results {
            assert_eq!(result.result, Some(batch_put_result::Result::Applied(true)));
        }
    }
    let state = set.fake.state.lock();
    for n in [197u64, 198, 199] {
        let key = key(usize::try_from(n % 3).unwrap() * 90);
        assert_eq!(state.data[key.as_bytes()], n.to_string());
    }
}

#[tokio::test]
async fn refusals_are_those_of_a_server() {
    let mut set = set().await;
    let empty = set.kv.get(v1::GetRequest::default()).await.unwrap_err();
    assert_eq!((empty.code(), empty.message()), (Code::InvalidArgument, "key: must not be empty"));
    let put = |ttl_ms, request_id| v1::PutRequest {
        key: "k".into(),
        ttl_ms,
        request_id,
        ..Default::default()
    };
    for request in
        [put(Some(0), None), put(Some(5), None), put(None, Some(v1::RequestId::default()))]
    {
        let error = set.kv.put(request).await.unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
        assert!(ApiError::from(error).not_applied);
    }
    let error = set.kv.increment(v1::IncrementRequest { key: "k".into(), ..Default::default() });
    assert_eq!(error.await.unwrap_err().code(), Code::Unimplemented);
    let error = set.kv.watch(v1::WatchRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    let operations = vec![Operation::put("key00001", "x").into_wire()];
    let atomic = v1::BatchPutRequest { atomic: true, operations, ..Default::default() };
    let mut answers = set.kv.batch_put(iter([atomic])).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap_err().code(), Code::Unimplemented);
    let keys = vec![Bytes::from("k"); 4097];
    let many = v1::BatchGetRequest { keys, ..Default::default() };
    let mut answers = set.kv.batch_get(iter([many])).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn error_details_and_unknown_outcomes_are_kept() {
    let set = set().await;
    let full = ApiError::new(ErrorKind::ResourceExhausted, "disk").with_not_applied();
    set.fake.fault("put", Fault::Refuse(full.clone().to_status()));
    let error = set.client.put("k", "v").await.unwrap_err();
    assert_eq!(error.api(), &full);
    set.fake.fault("put", Fault::ApplyThen(ApiError::new(ErrorKind::Unavailable, "gone").into()));
    let error = set.client.put("k", "v").await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unavailable, true));
    assert_eq!(set.fake.calls("put"), 2);
}

#[tokio::test]
async fn the_caller_s_time_is_passed_on() {
    let mut set = set().await;
    let mut request = Request::new(v1::GetRequest { key: "k".into(), route: None });
    request.set_timeout(Duration::from_secs(3));
    set.kv.get(request).await.unwrap();
    let told = set.fake.state.lock().timeout.clone().unwrap();
    let (count, unit) = told.split_at(told.len() - 1);
    let count: u64 = count.parse().unwrap();
    let told = match unit {
        "n" => Duration::from_nanos(count),
        "u" => Duration::from_micros(count),
        _ => Duration::from_millis(count),
    };
    assert!(told < Duration::from_secs(3) && told > Duration::from_secs(1), "{told:?}");
    set.fake.fault("put", Fault::Hang);
    let mut request = Request::new(v1::PutRequest { key: "k".into(), ..Default::default() });
    request.set_timeout(Duration::from_millis(200));
    let began = Instant::now();
    set.kv.put(request).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_batch_scan_answers_each_by_its_id() {
    let mut set = set().await;
    let scan = |id, start: usize, end: usize, reverse| v1::BatchScanRequest {
        id,
        scan: Some(v1::ScanRequest {
            start: key(start).into(),
            end: key(end).into(),
            reverse,
            ..Default::default()
        }),
    };
    let long = v1::ScanRequest { prefix: vec![1; 5000].into(), ..Default::default() };
    let requests = vec![
        scan(1, 10, 100, false),
        scan(2, 50, 160, true),
        v1::BatchScanRequest { id: 3, scan: Some(long) },
        v1::BatchScanRequest { id: 4, scan: None },
    ];
    let answers = set.kv.batch_scan(iter(requests)).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    let keys = |id| -> Vec<_> {
        let of = answers.iter().filter(|answer| answer.id == id);
        of.flat_map(|answer| &answer.entries).map(|entry| entry.key.clone()).collect()
    };
    assert_eq!(keys(1), (10..100).map(key).collect::<Vec<_>>());
    assert_eq!(keys(2), (50..160).rev().map(key).collect::<Vec<_>>());
    for id in 1..=4 {
        let last = answers.iter().rfind(|answer| answer.id == id).unwrap();
        assert!(last.done);
        assert_eq!(last.error.is_some(), id > 2);
    }
}

#[tokio::test]
async fn long_streams_end_when_the_router_stops() {
    let mut set = set().await;
    let mut scan = set.kv.scan(v1::ScanRequest::default()).await.unwrap().into_inner();
    let requests = pending::<v1::BatchPutRequest>();
    let mut puts = set.kv.batch_put(requests).await.unwrap().into_inner();
    scan.message().await.unwrap();
    set.stop.now();
    let error = puts.message().await.unwrap_err();
    assert!(error.code() == Code::Unavailable && ApiError::from(error).not_applied);
    // What is on its way arrives first.
    let ended = async { while scan.message().await.is_ok_and(|answer| answer.is_some()) {} };
    tokio::time::timeout(Duration::from_secs(5), ended).await.unwrap();
}

#[tokio::test]
async fn nothing_behind_a_refused_frame_is_applied() {
    let mut set = set().await;
    let frame = |id, keys: Vec<String>, atomic| v1::BatchPutRequest {
        id,
        operations: keys.into_iter().map(|key| Operation::put(key, "x").into_wire()).collect(),
        atomic,
        ..Default::default()
    };
    for round in 0..20 {
        let (a, z) = (format!("a{round}"), format!("z{round}"));
        let (bad, code) = if round % 2 == 0 {
            (frame(2, vec!["b".to_owned()], true), Code::Unimplemented)
        } else {
            (frame(2, vec!["b".to_owned(); 4097], false), Code::InvalidArgument)
        };
        let frames = [frame(1, vec![a.clone()], false), bad, frame(3, vec![z.clone()], false)];
        let mut answers = set.kv.batch_put(iter(frames)).await.unwrap().into_inner();
        let first = answers.message().await.unwrap().unwrap();
        assert!(first.id == 1 && first.done);
        let error = answers.message().await.unwrap_err();
        assert!(error.code() == code && ApiError::from(error).not_applied);
        tokio::time::sleep(Duration::from_millis(20)).await;
        {
            let state = set.fake.state.lock();
            assert!(state.data.contains_key(a.as_bytes()));
            assert!(!state.data.contains_key(&b"b"[..]));
            assert!(!state.data.contains_key(z.as_bytes()), "round {round}");
        }

        let keys = |id, count| {
            let keys = vec![Bytes::from(a.clone()); count];
            v1::BatchGetRequest { id, keys, ..Default::default() }
        };
        let frames = [keys(1, 1), keys(2, 4097), keys(3, 1)];
        let mut answers = set.kv.batch_get(iter(frames)).await.unwrap().into_inner();
        let first = answers.message().await.unwrap().unwrap();
        assert!(first.id == 1 && first.done);
        assert_eq!(answers.message().await.unwrap_err().code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn an_expiry_of_a_batch_fails_its_put_only() {
    let mut set = set().await;
    let put = |key: &'static str, ttl_ms| v1::BatchOperation {
        operation: Some(v1::batch_operation::Operation::Put(v1::PutOperation {
            key: key.into(),
            ttl_ms,
            ..Default::default()
        })),
    };
    let operations = vec![put("a", None), put("b", Some(0)), put("c", None)];
    let frame = v1::BatchPutRequest { operations, ..Default::default() };
    let mut answers = set.kv.batch_put(iter([frame])).await.unwrap().into_inner();
    let results = answers.message().await.unwrap().unwrap().results;
    assert_eq!(results[0].result, Some(batch_put_result::Result::Applied(true)));
    let Some(batch_put_result::Result::Error(error)) = results[1].result.clone() else {
        panic!("{:?}", results[1]);
    };
    let error = ApiError::from(error);
    assert!(error.kind == ErrorKind::Unimplemented && error.not_applied);
    assert_eq!(results[2].result, Some(batch_put_result::Result::Applied(true)));
    assert!(!set.fake.state.lock().data.contains_key(&b"b"[..]));
}
