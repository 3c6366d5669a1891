//! [`Route`]: one shard as somebody knew it at a version of the map.
//!
//! Invariants: routes for a key are totally ordered by [`Route::rank`]; the greatest is the newest.

use bytes::Bytes;
use vmemkv_proto::v1;

/// A shard, and the version of the map that it was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    shard: v1::Shard,
    version: u64,
}

impl Route {
    /// Keeps copies of the bytes, so that no message's buffer stays alive for them.
    pub fn new(shard: &v1::Shard, version: u64) -> Self {
        let shard = v1::Shard {
            start: Bytes::copy_from_slice(&shard.start),
            end: Bytes::copy_from_slice(&shard.end),
            ..shard.clone()
        };
        Self { shard, version }
    }

    /// The shard.
    pub fn shard(&self) -> &v1::Shard {
        &self.shard
    }

    /// The version of the map that this was read from.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What a request along this route says; none: it goes to whom it may concern.
    pub fn hint(&self) -> Option<v1::RouteHint> {
        Some(self.shard.hint()).filter(v1::RouteHint::is_set)
    }

    /// What a newer route has more of. Within an epoch the version decides (a node may have moved to
    /// another address); the rest only makes the order total.
    pub(crate) fn rank(&self) -> (u64, u64, u64, u64, &str) {
        let shard = &self.shard;
        (shard.epoch, self.version, shard.shard_id, shard.node_id, &shard.address)
    }

    /// Whether it leads elsewhere, or to the same place by another name.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        self.shard != other.shard
    }
}
