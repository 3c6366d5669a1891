//! Merges commute, are idempotent, and keep the greatest epoch per key.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use vmemkv_proto::v1;

use super::*;

fn route(id: u64, start: &str, end: &str, epoch: u64, version: u64) -> Arc<Route> {
    let shard = v1::Shard {
        shard_id: id,
        start: start.to_owned().into(),
        end: end.to_owned().into(),
        epoch,
        node_id: id % 3,
        address: format!("node-{}:7410", id % 3),
    };
    Arc::new(Route::new(&shard, version))
}

fn owner(cache: &ShardCache, key: &str) -> Option<u64> {
    cache.get(key.as_bytes()).map(|route| route.shard().shard_id)
}

#[test]
fn a_split_replaces_its_parent() {
    let mut cache = ShardCache::default();
    assert_eq!(owner(&cache, "a"), None);
    assert!(cache.merge(&route(1, "", "", 1, 1)));
    assert!(!cache.merge(&route(1, "", "", 1, 1)));
    assert!(cache.merge(&route(2, "", "m", 2, 2)));
    assert_eq!((owner(&cache, "a"), owner(&cache, "m")), (Some(2), Some(1)));
    assert!(cache.merge(&route(3, "m", "", 2, 2)));
    assert!(!cache.merge(&route(1, "", "", 1, 9)));
    assert_eq!((owner(&cache, "a"), owner(&cache, "m")), (Some(2), Some(3)));
    assert_eq!(cache.len(), 2);
}

#[test]
fn a_merge_of_shards_needs_the_greater_epoch_everywhere() {
    let mut cache = ShardCache::default();
    cache.merge(&route(1, "", "m", 5, 1));
    cache.merge(&route(2, "m", "", 1, 1));
    cache.merge(&route(3, "", "", 2, 2));
    assert_eq!((owner(&cache, "a"), owner(&cache, "z")), (Some(1), Some(3)));
    cache.merge(&route(4, "", "", 6, 3));
    assert_eq!((owner(&cache, "a"), owner(&cache, "z")), (Some(4), Some(4)));
    assert_eq!(cache.len(), 1);
}

#[test]
fn gaps_are_known() {
    let mut cache = ShardCache::default();
    assert_eq!(cache.gap_start(b"k"), Bytes::new());
    cache.merge(&route(1, "b", "d", 1, 1));
    assert_eq!(cache.gap_start(b"a"), Bytes::new());
    assert_eq!(cache.gap_start(b"d"), Bytes::from("d"));
    assert_eq!((owner(&cache, "a"), owner(&cache, "d")), (None, None));
    assert!(cache.merge(&route(1, "b", "d", 1, 1)) || cache.len() == 1);
    assert!(cache.merge(&route(9, "a", "z", 1, 1)));
}

#[test]
fn an_address_changes_within_an_epoch_by_version() {
    let mut cache = ShardCache::default();
    let old = route(1, "", "", 1, 1);
    let moved = v1::Shard { address: "elsewhere:1".to_owned(), ..old.shard().clone() };
    let moved = Arc::new(Route::new(&moved, 2));
    assert!(cache.merge(&moved));
    assert!(!cache.merge(&old));
    assert_eq!(cache.get(b"k").unwrap().shard().address, "elsewhere:1");
}

#[test]
fn merges_commute() {
    let keys: Vec<String> = (0u8..26).map(|n| char::from(b'a' + n).to_string()).collect();
    for seed in 0..300 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut routes: Vec<_> = (0..12)
            .map(|id| {
                let (a, b) = (rng.random_range(0..26usize), rng.random_range(0..26usize));
                let start = if a.min(b) == 0 { "" } else { &keys[a.min(b)] };
                let end = if a.max(b) == 25 { "" } else { &keys[a.max(b)] };
                route(id, start, end, rng.random_range(1..8), rng.random_range(1..4))
            })
            .collect();
        let expected: Vec<_> = keys
            .iter()
            .map(|key| {
                let holders = routes.iter().filter(|route| route.shard().contains(key.as_bytes()));
                holders.max_by(|a, b| a.rank().cmp(&b.rank())).map(|route| route.shard().shard_id)
            })
            .collect();
        for _ in 0..3 {
            routes.shuffle(&mut rng);
            let mut cache = ShardCache::default();
            for route in routes.iter().chain(&routes[..4]) {
                cache.merge(route);
                check(&cache);
            }
            let found: Vec<_> = keys.iter().map(|key| owner(&cache, key)).collect();
            assert_eq!(found, expected, "seed {seed}");
        }
    }
}

/// Pieces are in order, not empty, and do not overlap.
fn check(cache: &ShardCache) {
    let mut last: Option<&Piece> = None;
    for (start, piece) in &cache.pieces {
        assert_eq!(start, &piece.start);
        assert!(below(start, &piece.end));
        if let Some(last) = last {
            assert!(!last.end.is_empty() && last.end <= *start);
        }
        last = Some(piece);
    }
}
