//! [`MapSource`]: this router's own map, as the source of the proxy's routes.
//!
//! Invariants: what is handed out is committed here; a version that this router does not have yet is
//! waited for, with the leader's word. Only changes are followed: routes are looked up when they are
//! needed, so that the map is not held twice.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{StreamExt as _, unfold};
use vmemkv_client::Result;
use vmemkv_client::routes::{MapUpdates, RouteSource};
use vmemkv_proto::v1::watch_shard_map_response::Kind;
use vmemkv_proto::{ApiError, v1};

use crate::map_view::{MapUpdate, MapView};

/// How long a newer version of the map may take to get here.
const PATIENCE: Duration = Duration::from_secs(2);
/// When a caller may ask again for a key that no shard holds yet.
const RETRY_HINT_MS: u64 = 200;

/// The map of this router.
pub(super) struct MapSource {
    map: MapView,
}

impl MapSource {
    pub(super) fn new(map: MapView) -> Self {
        Self { map }
    }
}

impl fmt::Debug for MapSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MapSource(version {})", self.map.version())
    }
}

#[tonic::async_trait]
impl RouteSource for MapSource {
    async fn locate(&self, key: Bytes, min_version: u64) -> Result<v1::LocateResponse> {
        if min_version > self.map.version() {
            self.map.at_least(min_version, PATIENCE).await?;
        }
        let Some((shard, map_version)) = self.map.locate(&key) else {
            let message = "no server has registered yet: no shard holds the key";
            return Err(ApiError::unavailable(message, RETRY_HINT_MS).into());
        };
        Ok(v1::LocateResponse { shard: Some(shard), map_version })
    }

    async fn watch(&self, from_version: u64, _cluster_id: u64) -> Result<MapUpdates> {
        let map = self.map.clone();
        let versions = map.subscribe();
        // Who begins has nothing that could be old.
        let from = if from_version == 0 { map.version() } else { from_version };
        let first = delta(
            &map,
            from_version,
            v1::WatchShardMapResponse { map_version: from, ..Default::default() },
        );
        let changes = unfold((map, versions, from), |(map, mut versions, from)| async move {
            versions.wait_for(|version| *version > from).await.ok()?;
            let part = match map.since(from) {
                MapUpdate::Delta(part) => part,
                // Too much has changed: what is old is found by the servers' redirects.
                MapUpdate::Resync => return None,
            };
            let to = part.map_version.max(from);
            let update = delta(
                &map,
                from,
                v1::WatchShardMapResponse {
                    map_version: to,
                    shards: part.shards,
                    ..Default::default()
                },
            );
            Some((Ok(update), (map, versions, to)))
        });
        Ok(futures::stream::once(async { Ok(first) }).chain(changes).boxed())
    }
}

fn delta(
    map: &MapView,
    from_version: u64,
    update: v1::WatchShardMapResponse,
) -> v1::WatchShardMapResponse {
    v1::WatchShardMapResponse {
        kind: Kind::Delta as i32,
        from_version,
        done: true,
        cluster_id: map.cluster_id(),
        ..update
    }
}
