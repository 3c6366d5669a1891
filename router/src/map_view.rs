//! The shard map as the proxy and the map's watchers see it: the committed state of this router.
//!
//! Invariants: what is handed out is committed, and consistent within one call; versions never go
//! back for one [`MapView`]; no lock is held while a caller works with an answer.

use std::time::Duration;

use tokio::sync::watch;
use vmemkv_proto::{ApiError, v1};

use crate::local_state::{Changes, LocalState};
use crate::raft::RaftNode;

/// How long [`MapView::at_least`] waits between two looks at the leader.
const RETRY_HINT_MS: u64 = 100;

/// A part of the map, or a change of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MapPart {
    /// The cluster that the map belongs to.
    pub(crate) cluster_id: u64,
    /// The version of the map that `shards` are from.
    pub(crate) map_version: u64,
    /// Shards in key order.
    pub(crate) shards: Vec<v1::Shard>,
}

/// What happened to the map since a version.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MapUpdate {
    /// The shards that changed since then.
    Delta(MapPart),
    /// Too much has happened since: what was known before counts for nothing.
    Resync,
}

/// The committed shard map of this router; cheap to clone.
#[derive(Clone)]
pub(crate) struct MapView {
    state: LocalState,
    raft: RaftNode,
}

impl MapView {
    pub(crate) fn new(state: LocalState, raft: RaftNode) -> Self {
        Self { state, raft }
    }

    /// The cluster; 0: not made yet.
    pub(crate) fn cluster_id(&self) -> u64 {
        self.state.read(|state| state.cluster.cluster_id)
    }

    /// This router's id.
    pub(crate) fn router_id(&self) -> u64 {
        self.raft.id()
    }

    /// The version of the map that this router has.
    pub(crate) fn version(&self) -> u64 {
        *self.state.subscribe().borrow()
    }

    /// The shard that holds a key, and the version of the map. `None`: there is no shard yet.
    pub(crate) fn locate(&self, key: &[u8]) -> Option<(v1::Shard, u64)> {
        self.state.read(|state| {
            let shard = state.shards.locate(key)?;
            Some((shard.to_wire(&state.nodes), state.cluster.map_version))
        })
    }

    /// Sees every new version of the map (the latest, if several come at once). Then ask
    /// [`MapView::since`] for what has changed.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.state.subscribe()
    }

    /// What changed between a version and now. A version that is not below the current one gets an
    /// empty delta.
    pub(crate) fn since(&self, version: u64) -> MapUpdate {
        match self.state.since(version) {
            Changes::Shards { cluster_id, map_version, shards } => {
                MapUpdate::Delta(MapPart { cluster_id, map_version, shards })
            }
            Changes::Forgotten => MapUpdate::Resync,
        }
    }

    /// Waits until this router's map is at `version` or later and, in any case, contains all that
    /// was committed before this call. UNAVAILABLE if that takes longer than `patience`.
    pub(crate) async fn at_least(&self, version: u64, patience: Duration) -> Result<(), ApiError> {
        let wait = async {
            self.raft.linearizable(patience).await?;
            let mut versions = self.state.subscribe();
            match versions.wait_for(|found| *found >= version).await {
                Ok(_) => Ok(()),
                Err(_) => Err(ApiError::unavailable("the router stops", RETRY_HINT_MS)),
            }
        };
        tokio::time::timeout(patience, wait).await.unwrap_or_else(|_| {
            let message = format!("the map has not reached version {version} in time");
            Err(ApiError::unavailable(message, RETRY_HINT_MS))
        })
    }
}
