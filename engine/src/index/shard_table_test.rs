//! The shard table: gaps, bounds, overlaps, replacing.

use std::sync::Arc;

use super::shard::Shard;
use super::shard_table::ShardTable;
use super::sorted_region::SortedRegion;
use crate::error::ErrorKind;
use crate::types::{InstanceId, KeyRange, ShardId};

fn shard(id: u64, start: &str, end: &str) -> Arc<Shard> {
    let range = KeyRange::new(start, end);
    let empty = SortedRegion::empty();
    Arc::new(Shard::new(ShardId(id), InstanceId(id), 1, range, empty, 8192, true))
}

#[test]
fn finds_the_shard_of_a_key() {
    let table = ShardTable::new(vec![shard(3, "m", ""), shard(1, "", "c"), shard(2, "c", "k")]);
    let table = table.unwrap();
    let at = |key: &str| table.find(key.as_bytes()).map(|shard| shard.id.0);
    assert_eq!(
        [at("a"), at("b\u{7f}"), at("c"), at("j"), at("k"), at("l"), at("m"), at("z")],
        [Some(1), Some(1), Some(2), Some(2), None, None, Some(3), Some(3)]
    );
    let covering = |start: &str, end: &str| -> Vec<u64> {
        table.covering(&KeyRange::new(start, end)).iter().map(|shard| shard.id.0).collect()
    };
    assert_eq!(covering("", ""), [1, 2, 3]);
    assert_eq!(covering("b", "c"), [1]);
    assert_eq!(covering("b", "c\0"), [1, 2]);
    assert_eq!(covering("k", "m"), [0; 0]);
    assert_eq!(covering("l", ""), [3]);
    assert_eq!(covering("d", "d"), [0; 0]);
    assert_eq!(ShardTable::default().covering(&KeyRange::all()).len(), 0);
    assert!(ShardTable::default().find(b"a").is_none());
    assert_eq!((table.stats().shards, table.stats().sorted_entries), (3, 0));
}

#[test]
fn refuses_overlaps_and_replaces_in_one_step() {
    let table = ShardTable::default().insert(shard(1, "c", "k")).unwrap();
    for (start, end) in [("", ""), ("d", "e"), ("c", "k"), ("j", ""), ("", "c\0"), ("x", "x")] {
        let error = table.insert(shard(2, start, end)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let table = table.insert(shard(2, "k", "")).unwrap();
    let children = [shard(3, "c", "e"), shard(4, "e", "k")];
    let table = table.replace(&[InstanceId(1)], children).unwrap();
    let ids: Vec<_> = table.shards().iter().map(|shard| shard.id.0).collect();
    assert_eq!(ids, [3, 4, 2]);
    assert!(table.get(ShardId(4)).is_some() && table.get(ShardId(1)).is_none());
}
