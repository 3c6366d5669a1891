//! [`RouteSource`]: who knows the shard map. Routers do, from afar; a router itself has it at hand.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use vmemkv_proto::v1;

use crate::error::Result;

/// Parts of the map as they come: a full copy in chunks, then each change.
pub type MapUpdates = BoxStream<'static, Result<v1::WatchShardMapResponse>>;

/// Who knows the shard map.
#[async_trait]
pub trait RouteSource: fmt::Debug + Send + Sync + 'static {
    /// The shard of a key, from `min_version` of the map or a later one. Bounded in time.
    async fn locate(&self, key: Bytes, min_version: u64) -> Result<v1::LocateResponse>;

    /// Follows the map from a version on; 0 asks for a full copy. The stream may end at any time:
    /// it is then asked for again. What it leaves out is found by `locate`, so a source with the
    /// map at hand need not send full copies.
    async fn watch(&self, from_version: u64, cluster_id: u64) -> Result<MapUpdates>;

    /// No connection could be made along a route that this source gave.
    fn unreachable(&self, _address: &str) {}
}
