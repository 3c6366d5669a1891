//! The whole state, and the few numbers of which there is one per cluster.
//!
//! Invariants: every id in use is below `next_id`; `lease_ms <= longest_lease_ms`; the map version
//! grows by one with each command that changes what the map says.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::hex;
use super::{Nodes, Operations, Sessions, ShardMap};

/// What there is once per cluster. Stored as one record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Identifies the cluster; 0: not made yet.
    pub cluster_id: u64,
    /// Raised by a recovery of a lost quorum.
    pub generation: u64,
    /// Counts changes of the shard map.
    pub map_version: u64,
    /// How long a server may serve without hearing from a router, milliseconds.
    pub lease_ms: u64,
    /// The longest lease that may ever have been granted, milliseconds.
    pub longest_lease_ms: u64,
    /// The next id for a shard, an operation or an incarnation; never goes back.
    pub next_id: u64,
    /// Counts commands.
    pub commands: u64,
    /// Where the first server's shards are cut; empty once it has them.
    #[serde(default, with = "hex::list", skip_serializing_if = "Vec::is_empty")]
    pub boundaries: Vec<Bytes>,
}

impl Cluster {
    /// An id that was never used.
    pub(super) fn allocate(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}

/// The state that the routers agree on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterState {
    /// Ids, versions, the lease.
    pub cluster: Cluster,
    /// The servers.
    pub nodes: Nodes,
    /// Who owns which keys.
    pub shards: ShardMap,
    /// Splits, merges and moves.
    pub operations: Operations,
    /// What has been answered to whom, so that a retry changes nothing.
    pub sessions: Sessions,
}
