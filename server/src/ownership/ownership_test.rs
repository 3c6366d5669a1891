//! Tests of admission: every kind of refusal, and the lease.

use std::time::Duration;

use bytes::Bytes;
use vmemkv_proto::v1::Shard;
use vmemkv_proto::v1::routing_error::Kind;

use super::*;
use crate::clock::ManualClock;

const NODE: u64 = 7;

fn owned(shard_id: u64, start: &'static str, end: &'static str, state: ShardState) -> OwnedShard {
    let shard = Shard {
        shard_id,
        start: start.into(),
        end: end.into(),
        epoch: 3,
        node_id: NODE,
        address: "here:1".to_owned(),
    };
    OwnedShard { shard, state, requests: Arc::default(), halves: Vec::new() }
}

/// Shards [b, d) and [d, f) are served, [f, h) is unconfirmed, [h, j) lacks its data, the rest is
/// elsewhere.
fn table() -> ShardTable {
    ShardTable::new(
        NODE,
        5,
        vec![
            owned(2, "d", "f", ShardState::Serving),
            owned(1, "b", "d", ShardState::Serving),
            owned(3, "f", "h", ShardState::Unconfirmed),
            owned(4, "h", "j", ShardState::WithoutData),
        ],
    )
}

fn hint(shard_id: u64, epoch: u64, node_id: u64) -> Option<RouteHint> {
    Some(RouteHint { shard_id, epoch, node_id })
}

fn key(key: &str, hint: Option<RouteHint>) -> Result<u64, Kind> {
    table().check_key(key.as_bytes(), hint.as_ref()).map(|owned| owned.shard.shard_id).map_err(kind)
}

fn range(start: &'static str, end: &'static str, hint: Option<RouteHint>) -> Result<(), Kind> {
    let range = KeyRange::new(Bytes::from(start), Bytes::from(end));
    table().check_range(&range, hint.as_ref()).map_err(kind)
}

fn kind(error: ApiError) -> Kind {
    assert!(error.not_applied);
    let routing = error.routing.unwrap();
    let expected = match routing.kind() {
        Kind::NotServing => ErrorKind::Unavailable,
        _ => ErrorKind::FailedPrecondition,
    };
    assert_eq!(error.kind, expected);
    assert_eq!(routing.map_version, 5);
    routing.kind()
}

#[test]
fn a_key_without_a_hint_is_checked_by_range() {
    assert_eq!(key("a", None), Err(Kind::WrongShard));
    assert_eq!(key("b", None), Ok(1));
    assert_eq!(key("czz", None), Ok(1));
    assert_eq!(key("d", None), Ok(2));
    assert_eq!(key("f", None), Err(Kind::NotServing));
    assert_eq!(key("h", None), Err(Kind::NotServing));
    assert_eq!(key("j", None), Err(Kind::WrongShard));
    assert_eq!(key("b", hint(0, 0, 0)), Ok(1));
}

#[test]
fn a_hint_is_checked_whole() {
    assert_eq!(key("b", hint(1, 3, NODE)), Ok(1));
    assert_eq!(key("b", hint(1, 3, 8)), Err(Kind::WrongNode));
    assert_eq!(key("b", hint(1, 2, NODE)), Err(Kind::StaleEpoch));
    assert_eq!(key("b", hint(9, 3, NODE)), Err(Kind::WrongShard));
    assert_eq!(key("d", hint(1, 3, NODE)), Err(Kind::WrongShard));
    let error = table().check_key(b"d", hint(1, 3, NODE).as_ref()).unwrap_err();
    let shards = error.routing.unwrap().shards;
    assert_eq!(shards.iter().map(|shard| shard.shard_id).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_frame_has_a_hint_per_shard() {
    let check = |key: &str, routes: &[RouteHint]| {
        table()
            .check_key_of_frame(key.as_bytes(), routes)
            .map(|owned| owned.shard.shard_id)
            .map_err(kind)
    };
    let routes = [hint(1, 3, NODE).unwrap(), hint(2, 2, NODE).unwrap()];
    assert_eq!(check("b", &[]), Ok(1));
    assert_eq!(check("b", &routes), Ok(1));
    assert_eq!(check("e", &routes), Err(Kind::StaleEpoch));
    assert_eq!(check("e", &routes[..1]), Err(Kind::WrongShard));
    assert_eq!(check("a", &routes), Err(Kind::WrongShard));
    assert_eq!(check("b", &[hint(8, 3, 9).unwrap()]), Err(Kind::WrongNode));
}

#[test]
fn a_range_must_be_owned_whole() {
    assert_eq!(range("b", "f", None), Ok(()));
    assert_eq!(range("bb", "e", None), Ok(()));
    assert_eq!(range("c", "c", None), Ok(()));
    assert_eq!(range("a", "c", None), Err(Kind::WrongShard));
    assert_eq!(range("b", "g", None), Err(Kind::NotServing));
    assert_eq!(range("", "", None), Err(Kind::WrongShard));
    assert_eq!(range("i", "", None), Err(Kind::NotServing));
    assert_eq!(range("k", "", None), Err(Kind::WrongShard));
    assert_eq!(range("b", "d", hint(1, 3, NODE)), Ok(()));
    assert_eq!(range("b", "e", hint(1, 3, NODE)), Err(Kind::WrongShard));
    assert_eq!(range("b", "d", hint(1, 4, NODE)), Err(Kind::StaleEpoch));
    let all = ShardTable::new(NODE, 1, vec![owned(1, "", "", ShardState::Serving)]);
    all.check_range(&KeyRange::all(), None).unwrap();
}

/// Shard 1 [b, d) has been split at c into 8 and 9, which the routers have not committed.
fn split_table() -> ShardTable {
    let half = |shard_id, start: &'static str, end: &'static str| Shard {
        epoch: 4,
        ..owned(shard_id, start, end, ShardState::Serving).shard
    };
    table().with_halves(1, 3, [half(8, "b", "c"), half(9, "c", "d")])
}

#[test]
fn m12_an_uncommitted_split_is_served_under_both_names_and_told_to_nobody() {
    let split = split_table();
    let key = |key: &str, hint: Option<RouteHint>| {
        let checked = split.check_key(key.as_bytes(), hint.as_ref());
        checked.map(|owned| owned.shard.shard_id).map_err(|error| {
            let shards = error.routing.clone().unwrap().shards;
            assert!(shards.iter().all(|shard| ![8, 9].contains(&shard.shard_id)), "{shards:?}");
            kind(error)
        })
    };
    for at in ["b", "bz", "c", "cz"] {
        assert_eq!(key(at, None), Ok(1));
        assert_eq!(key(at, hint(1, 3, NODE)), Ok(1));
    }
    assert_eq!(key("b", hint(8, 4, NODE)), Ok(1));
    assert_eq!(key("c", hint(9, 4, NODE)), Ok(1));
    assert_eq!(key("c", hint(8, 4, NODE)), Err(Kind::WrongShard));
    assert_eq!(key("b", hint(9, 4, NODE)), Err(Kind::WrongShard));
    assert_eq!(key("b", hint(8, 3, NODE)), Err(Kind::StaleEpoch));
    assert_eq!(key("b", hint(1, 4, NODE)), Err(Kind::StaleEpoch));
    assert_eq!(key("b", hint(7, 4, NODE)), Err(Kind::WrongShard));
    assert_eq!(key("b", hint(8, 4, 5)), Err(Kind::WrongNode));
    let range = |start: &'static str, end: &'static str, hint: Option<RouteHint>| {
        let range = KeyRange::new(Bytes::from(start), Bytes::from(end));
        split.check_range(&range, hint.as_ref()).map_err(kind)
    };
    assert_eq!(range("b", "d", hint(1, 3, NODE)), Ok(()));
    assert_eq!(range("b", "f", None), Ok(()));
    assert_eq!(range("b", "c", hint(8, 4, NODE)), Ok(()));
    assert_eq!(range("c", "d", hint(9, 4, NODE)), Ok(()));
    assert_eq!(range("b", "d", hint(8, 4, NODE)), Err(Kind::WrongShard));
    let frame = |key: &str, routes: &[RouteHint]| {
        let checked = split.check_key_of_frame(key.as_bytes(), routes);
        checked.map(|owned| owned.shard.shard_id).map_err(kind)
    };
    let halves = [hint(8, 4, NODE).unwrap(), hint(9, 4, NODE).unwrap()];
    for at in ["b", "c"] {
        assert_eq!(frame(at, &halves), Ok(1));
        assert_eq!(frame(at, &[hint(1, 3, NODE).unwrap()]), Ok(1));
    }
    assert_eq!(frame("c", &halves[..1]), Err(Kind::WrongShard));
    // Halves of another epoch of the shard are not its halves.
    let half = owned(8, "b", "c", ShardState::Serving).shard;
    let late = table().with_halves(1, 2, [half.clone(), half]);
    assert!(late.get(1).unwrap().halves.is_empty());
}

#[test]
fn who_has_missed_a_split_is_told_both_halves() {
    let mut shards = vec![owned(8, "b", "c", ShardState::Serving)];
    shards.push(owned(9, "c", "d", ShardState::Serving));
    shards.push(owned(2, "d", "f", ShardState::Serving));
    let table = ShardTable::new(NODE, 6, shards);
    let named = |error: ApiError| -> Vec<u64> {
        let routing = error.routing.unwrap();
        assert_eq!(routing.kind(), Kind::WrongShard);
        routing.shards.iter().map(|shard| shard.shard_id).collect()
    };
    let parent = hint(1, 3, NODE).unwrap();
    for key in ["b", "c"] {
        let told = named(table.check_key(key.as_bytes(), Some(&parent)).unwrap_err());
        assert!(told.contains(&8) && told.contains(&9), "{told:?}");
        let told = named(table.check_key_of_frame(key.as_bytes(), &[parent]).unwrap_err());
        assert!(told.contains(&8) && told.contains(&9), "{told:?}");
    }
    let range = KeyRange::new(Bytes::from("b"), Bytes::from("d"));
    let told = named(table.check_range(&range, Some(&parent)).unwrap_err());
    assert!(told.contains(&8) && told.contains(&9), "{told:?}");
    assert_eq!(table.check_key(b"c", None).unwrap().shard.shard_id, 9);
}

#[test]
fn nothing_is_admitted_without_registration_and_lease() {
    let clock = Arc::new(ManualClock::default());
    let ownership = Ownership::new(Arc::<ManualClock>::clone(&clock));
    let refused = |ownership: &Ownership| {
        let error = ownership.admit_key(b"b", None).map(|_| ()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.not_applied && error.retry_after_ms.is_some());
    };
    refused(&ownership);
    ownership.set_table(table());
    refused(&ownership);
    ownership.renew(clock.now(), 1000);
    ownership.admit_key(b"b", None).unwrap();
    ownership.still_leased().unwrap();
    clock.advance(Duration::from_secs(1));
    refused(&ownership);
    // After a write has been applied it must not look like a refusal.
    let lost = ownership.still_leased().unwrap_err();
    assert!(!lost.not_applied && lost.routing.is_none());
    ownership.renew(clock.now(), 1000);
    ownership.admit_key(b"b", None).unwrap();
}
