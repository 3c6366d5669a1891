//! [`ProxyRoutes`]: for a client that sends everything through routers.
//!
//! Invariants: there is one route, to the router at hand, and it names no shard: requests carry no
//! hint and the router routes them. A router that cannot be reached is left for the next one.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{StreamExt as _, pending};
use vmemkv_proto::v1;

use crate::error::Result;
use crate::routes::{MapUpdates, RouteSource};

/// One route to any of several routers.
#[derive(Debug)]
pub(crate) struct ProxyRoutes {
    addresses: Vec<String>,
    /// Grows with each router that is left; the route's epoch.
    turn: AtomicU64,
}

impl ProxyRoutes {
    /// `addresses` must not be empty.
    pub(crate) fn new(addresses: Vec<String>) -> Self {
        Self { addresses, turn: AtomicU64::new(0) }
    }

    fn at(&self, turn: u64) -> &str {
        let index = turn % self.addresses.len().max(1) as u64;
        self.addresses.get(usize::try_from(index).unwrap_or(0)).map_or("", String::as_str)
    }
}

#[async_trait]
impl RouteSource for ProxyRoutes {
    async fn locate(&self, _key: Bytes, _min_version: u64) -> Result<v1::LocateResponse> {
        let turn = self.turn.load(Ordering::Relaxed);
        let shard =
            v1::Shard { epoch: turn, address: self.at(turn).to_owned(), ..Default::default() };
        Ok(v1::LocateResponse { shard: Some(shard), map_version: turn })
    }

    async fn watch(&self, _from_version: u64, _cluster_id: u64) -> Result<MapUpdates> {
        Ok(pending().boxed())
    }

    fn unreachable(&self, address: &str) {
        let turn = self.turn.load(Ordering::Relaxed);
        if self.at(turn) == address {
            let _ =
                self.turn.compare_exchange(turn, turn + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
