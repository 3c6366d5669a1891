//! [`RouteTable`]: the cache of routes, filled on demand and kept fresh by a watch.
//!
//! Owns the cache, the look-ups under way and the task that follows the map. Invariants: a missing
//! part is looked up once however many calls wait for it; the task ends with the table.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _, Shared};
use futures::stream::StreamExt as _;
use parking_lot::{Mutex, RwLock};
use tokio::task::AbortHandle;
use vmemkv_proto::v1::watch_shard_map_response::Kind;
use vmemkv_proto::{ErrorKind, v1};

use super::{Route, RouteSource, ShardCache};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::retry::{Cause, Jitter, Retry};

/// A look-up that many wait for.
type Flight = Shared<BoxFuture<'static, Result<Arc<Route>>>>;

/// What a look-up is for: the start of the unknown part or shard, and the version asked for.
type FlightKey = (Bytes, u64);

/// The routes that are known, and how to learn more.
#[derive(Debug)]
pub(crate) struct RouteTable {
    shared: Arc<Inner>,
    watch: Option<AbortHandle>,
}

#[derive(Debug)]
struct Inner {
    source: Arc<dyn RouteSource>,
    cache: RwLock<ShardCache>,
    flights: Mutex<HashMap<FlightKey, Flight>>,
}

impl RouteTable {
    /// A table that follows its source; call it within a runtime.
    pub(crate) fn new(source: Arc<dyn RouteSource>, jitter: Jitter) -> Self {
        let shared =
            Arc::new(Inner { source, cache: RwLock::default(), flights: Mutex::default() });
        let task = tokio::spawn(follow(Arc::downgrade(&shared), jitter));
        Self { shared, watch: Some(task.abort_handle()) }
    }

    /// The newest route that is known for a key.
    pub(crate) fn cached(&self, key: &[u8]) -> Option<Arc<Route>> {
        self.shared.cache.read().get(key).cloned()
    }

    /// The route of a key, looked up if need be.
    pub(crate) async fn route(&self, key: &Bytes, deadline: Deadline) -> Result<Arc<Route>> {
        loop {
            let gap = {
                let cache = self.shared.cache.read();
                match cache.get(key) {
                    Some(route) => return Ok(Arc::clone(route)),
                    None => cache.gap_start(key),
                }
            };
            let flight = self.look_up((gap, 0), key, 0);
            let found = deadline.read("locate", flight).await?;
            if found.shard().contains(key) {
                return Ok(self.cached(key).unwrap_or(found));
            }
        }
    }

    /// Asks for the route of a key anew, from this version of the map or a later one.
    pub(crate) async fn refresh(
        &self,
        route: &Route,
        key: &Bytes,
        min_version: u64,
        deadline: Deadline,
    ) -> Result<()> {
        // Apart from look-ups of gaps: those may be answered from an older version.
        let flight_key = (route.shard().start.clone(), min_version.max(1));
        let flight = self.look_up(flight_key, key, min_version);
        deadline.read("locate", flight).await.map(|_| ())
    }

    /// Takes what somebody said about shards.
    pub(crate) fn learn(&self, shards: &[v1::Shard], version: u64) -> bool {
        self.shared.learn(shards, version)
    }

    /// No connection could be made to an address.
    pub(crate) fn unreachable(&self, address: &str) {
        self.shared.source.unreachable(address);
    }

    fn look_up(&self, flight_key: FlightKey, key: &Bytes, min_version: u64) -> Flight {
        let mut flights = self.shared.flights.lock();
        if let Some(flight) = flights.get(&flight_key) {
            return flight.clone();
        }
        let (shared, key, done) = (Arc::clone(&self.shared), key.clone(), flight_key.clone());
        // A task of its own: the call that began the look-up may give up, others still wait.
        let task = tokio::spawn(async move {
            let found = shared.locate(key, min_version).await;
            shared.flights.lock().remove(&done);
            found
        });
        let flight = task.map(|joined| joined.unwrap_or_else(|_| Err(gone()))).boxed().shared();
        flights.insert(flight_key, flight.clone());
        flight
    }
}

impl Drop for RouteTable {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
    }
}

impl Inner {
    fn learn(&self, shards: &[v1::Shard], version: u64) -> bool {
        let routes: Vec<_> =
            shards.iter().map(|shard| Arc::new(Route::new(shard, version))).collect();
        let mut cache = self.cache.write();
        routes.iter().fold(false, |changed, route| cache.merge(route) | changed)
    }

    async fn locate(&self, key: Bytes, min_version: u64) -> Result<Arc<Route>> {
        let answer = self.source.locate(key.clone(), min_version).await?;
        let shard = answer.shard.filter(|shard| shard.contains(&key));
        let Some(shard) = shard else {
            return Err(Error::refused(ErrorKind::Internal, "locate: the answer has no shard"));
        };
        let route = Arc::new(Route::new(&shard, answer.map_version));
        self.cache.write().merge(&route);
        Ok(route)
    }
}

fn gone() -> Error {
    Error::refused(ErrorKind::Cancelled, "locate: the runtime is shutting down")
}

/// Follows the map until the table is gone.
async fn follow(table: Weak<Inner>, jitter: Jitter) {
    let mut follower = Follower { table, version: 0, cluster_id: 0 };
    let mut retry = Retry::new(jitter);
    loop {
        let source = match follower.table.upgrade() {
            Some(shared) => Arc::clone(&shared.source),
            None => return,
        };
        match source.watch(follower.version, follower.cluster_id).await {
            Ok(updates) => {
                if follower.apply_all(updates).await {
                    retry.reset();
                }
            }
            Err(error) => tracing::debug!(%error, "cannot watch the shard map"),
        }
        let wait = retry.next(Cause::Unavailable, None, Deadline::none());
        tokio::time::sleep(wait.unwrap_or(Duration::from_secs(1))).await;
    }
}

/// How far the map has been followed.
struct Follower {
    table: Weak<Inner>,
    version: u64,
    cluster_id: u64,
}

impl Follower {
    /// Says whether anything was applied before the stream ended or has to be asked for anew.
    async fn apply_all(&mut self, mut updates: super::MapUpdates) -> bool {
        let mut applied = false;
        while let Some(update) = updates.next().await {
            match update {
                Ok(update) if self.apply(&update) => applied = true,
                Ok(_) => return applied,
                Err(error) => {
                    tracing::debug!(%error, "the watch of the shard map has ended");
                    return applied;
                }
            }
        }
        applied
    }

    /// Says whether it could be applied; if not, a full copy is needed.
    fn apply(&mut self, update: &v1::WatchShardMapResponse) -> bool {
        let Some(shared) = self.table.upgrade() else { return false };
        if update.cluster_id != 0 && update.cluster_id != self.cluster_id {
            if self.cluster_id != 0 {
                tracing::warn!(old = self.cluster_id, new = update.cluster_id, "another cluster");
                shared.cache.write().clear();
                self.version = 0;
            }
            self.cluster_id = update.cluster_id;
        }
        if update.kind() == Kind::Delta && update.from_version > self.version {
            self.version = 0;
            return false;
        }
        shared.learn(&update.shards, update.map_version);
        if update.done || update.kind() == Kind::Delta {
            self.version = self.version.max(update.map_version);
        }
        true
    }
}

#[cfg(test)]
#[path = "route_table_test.rs"]
mod tests;
