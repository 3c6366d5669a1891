//! Scan and BatchScan: order, bounds, limits, parts.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;
use vmemkv_proto::v1;
use vmemkv_proto::{ApiError, ErrorKind};

use crate::harness::{Fixture, error, fill, put};

async fn scan(
    fixture: &Fixture,
    request: v1::ScanRequest,
) -> Result<Vec<v1::ScanResponse>, tonic::Status> {
    let mut parts = fixture.client().await.scan(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(part) = parts.message().await? {
        assert!(part.encoded_len() < 4 << 20);
        all.push(part);
    }
    assert!(all.last().unwrap().done);
    assert_eq!(all.iter().filter(|part| part.done).count(), 1);
    Ok(all)
}

fn keys(parts: &[v1::ScanResponse]) -> Vec<Bytes> {
    parts.iter().flat_map(|part| &part.entries).map(|entry| entry.key.clone()).collect()
}

fn range(start: &'static str, end: &'static str) -> v1::ScanRequest {
    v1::ScanRequest { start: start.into(), end: end.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn bounds_prefix_limit_and_direction() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    for key in ["a", "a\0", "ab", "abc", "b", "ba", "c"] {
        client.put(put(key, format!("value of {key}"))).await.unwrap();
    }
    let all = scan(&fixture, range("", "")).await.unwrap();
    assert_eq!(keys(&all), ["a", "a\0", "ab", "abc", "b", "ba", "c"]);
    assert_eq!(all[0].entries[2].value, "value of ab");
    assert_eq!(all.last().unwrap().covered_to, "");

    let some = scan(&fixture, range("ab", "ba")).await.unwrap();
    assert_eq!(keys(&some), ["ab", "abc", "b"]);
    assert_eq!(some.last().unwrap().covered_to, "ba");

    let prefixed = v1::ScanRequest { prefix: "a".into(), ..range("a\0", "abc") };
    let prefixed = scan(&fixture, prefixed).await.unwrap();
    assert_eq!(keys(&prefixed), ["a\0", "ab"]);

    let reverse = v1::ScanRequest { reverse: true, ..range("ab", "") };
    let reverse = scan(&fixture, reverse).await.unwrap();
    assert_eq!(keys(&reverse), ["c", "ba", "b", "abc", "ab"]);
    assert_eq!(reverse.last().unwrap().covered_to, "ab");

    let limited = v1::ScanRequest { limit: 2, keys_only: true, ..range("", "") };
    let limited = scan(&fixture, limited).await.unwrap();
    assert_eq!(keys(&limited), ["a", "a\0"]);
    assert!(limited[0].entries.iter().all(|entry| entry.value.is_empty()));
    assert_eq!(limited.last().unwrap().covered_to, "a\0\0");

    let limited = v1::ScanRequest { limit: 2, reverse: true, ..range("", "") };
    let limited = scan(&fixture, limited).await.unwrap();
    assert_eq!(keys(&limited), ["c", "ba"]);
    assert_eq!(limited.last().unwrap().covered_to, "ba");

    for empty in [range("b", "a"), range("x", "y")] {
        assert!(keys(&scan(&fixture, empty).await.unwrap()).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_values_come_in_parts_that_cover_the_range() {
    let fixture = Fixture::start().await;
    fill(&mut fixture.client().await, "k", 64, 256 << 10).await;
    for reverse in [false, true] {
        let parts = scan(&fixture, v1::ScanRequest { reverse, ..range("", "") }).await.unwrap();
        assert!(parts.len() > 4);
        assert_eq!(keys(&parts).len(), 64);
        for part in &parts[..parts.len() - 1] {
            let last = &part.entries.last().unwrap().key;
            let within = if reverse { part.covered_to <= last } else { part.covered_to > last };
            assert!(within, "{part:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_entries_and_every_way_to_stop() {
    let fixture = Fixture::start().await;
    fill(&mut fixture.client().await, "k", 40_000, 0).await;
    let names: BTreeMap<Bytes, ()> =
        (0..40_000).map(|index| (Bytes::from(format!("k{index:05}")), ())).collect();
    for reverse in [false, true] {
        let mut expected: Vec<_> = names.keys().cloned().collect();
        if reverse {
            expected.reverse();
        }
        for limit in [0, 1, 16_383, 16_384, 16_385, 32_768, 39_999, 40_000, 50_000] {
            let request =
                v1::ScanRequest { keys_only: true, limit, reverse, ..v1::ScanRequest::default() };
            let parts = scan(&fixture, request).await.unwrap();
            let count = if limit == 0 { 40_000 } else { limit.min(40_000) as usize };
            assert_eq!(keys(&parts), expected[..count], "limit {limit}, reverse {reverse}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_of_one_stream_fail_alone() {
    let fixture = Fixture::with_shards(&[(1, "a", "m")]).await;
    let mut client = fixture.client().await;
    fill(&mut client, "k", 64, 256 << 10).await;
    let of = |id, scan| v1::BatchScanRequest { id, scan };
    let requests = vec![
        of(1, Some(range("a", "m"))),
        of(2, Some(range("a", "z"))),
        of(3, None),
        of(4, Some(v1::ScanRequest { limit: 3, reverse: true, ..range("a", "m") })),
    ];
    let mut parts = client.batch_scan(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let mut counts: BTreeMap<u64, Result<usize, ApiError>> = BTreeMap::new();
    let mut done = Vec::new();
    while let Some(part) = parts.message().await.unwrap() {
        assert!(part.encoded_len() < 4 << 20);
        let count = counts.entry(part.id).or_insert(Ok(0));
        match (part.error, count) {
            (Some(error), count) => *count = Err(error.into()),
            (None, Ok(count)) => *count += part.entries.len(),
            (None, Err(error)) => panic!("{error} was not the last word"),
        }
        if part.done {
            done.push(part.id);
        }
    }
    done.sort_unstable();
    assert_eq!(done, [1, 2, 3, 4]);
    assert_eq!(counts[&1], Ok(64));
    assert_eq!(counts[&2].as_ref().unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert_eq!(counts[&3].as_ref().unwrap_err().kind, ErrorKind::InvalidArgument);
    assert_eq!(counts[&4], Ok(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_range_is_told_before_the_stream() {
    let fixture = Fixture::with_shards(&[(1, "a", "m")]).await;
    let refused = error(scan(&fixture, range("", "")).await);
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
    let routing = refused.routing.unwrap();
    assert_eq!(routing.shards.len(), 1);
    assert_eq!(routing.shards[0].shard_id, 1);
    let refused = error(scan(&fixture, range("b", "z")).await);
    assert!(refused.not_applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_scan_of_a_stream_says_that_it_covered_nothing() {
    let fixture = Fixture::with_shards(&[(1, "a", "m")]).await;
    let long = Bytes::from(vec![1; 5000]);
    let reverse = v1::ScanRequest { reverse: true, ..range("b", "z") };
    let scans = vec![
        range("b", "z"),
        reverse.clone(),
        v1::ScanRequest { prefix: long.clone(), ..range("b", "z") },
        v1::ScanRequest { prefix: long, ..reverse },
    ];
    let requests: Vec<_> =
        (0..).zip(scans).map(|(id, scan)| v1::BatchScanRequest { id, scan: Some(scan) }).collect();
    let mut client = fixture.client().await;
    let mut parts = client.batch_scan(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let mut covered = BTreeMap::new();
    while let Some(part) = parts.message().await.unwrap() {
        assert!(part.done && part.error.is_some());
        covered.insert(part.id, part.covered_to);
    }
    assert_eq!(covered.into_values().collect::<Vec<_>>(), ["b", "z", "b", "z"]);
}
