//! The servers of the cluster.
//!
//! Invariants: a node stays in the table for ever, removed ones too, so that an id is never given
//! to another data directory; boot numbers and incarnations only grow.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What a node may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Serves, and gets shards.
    #[default]
    Up,
    /// Serves; its shards are moved away.
    Draining,
    /// No heartbeat for too long.
    Down,
    /// Gets no lease any more; removed once the last one has ended.
    Removing,
    /// Gone for good.
    Removed,
}

impl NodeState {
    /// Whether leases may be granted to the node.
    pub fn may_have_lease(self) -> bool {
        matches!(self, Self::Up | Self::Draining | Self::Down)
    }
}

/// A server. Stored as one record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Identifies the node; made by the server on its first start.
    pub node_id: u64,
    /// Where it serves gRPC, HOST:PORT.
    pub address: String,
    /// Where it serves HTTP, HOST:PORT; empty: nowhere.
    pub http_address: String,
    /// Labels, such as zone.
    pub labels: BTreeMap<String, String>,
    /// The version of vmemkv that it runs.
    pub version: String,
    /// What it may do.
    pub state: NodeState,
    /// Bytes of disk that it may use.
    pub capacity_bytes: u64,
    /// Names the run that registered last.
    pub incarnation: u64,
    /// How often it had started then.
    pub boot_number: u64,
    /// The nonce of that start.
    pub nonce: u64,
}

/// The servers, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    by_id: BTreeMap<u64, Arc<Node>>,
}

impl Nodes {
    /// The node with this id.
    pub fn get(&self, node_id: u64) -> Option<&Arc<Node>> {
        self.by_id.get(&node_id)
    }

    /// Where a node serves gRPC; empty if it is not known.
    pub fn address(&self, node_id: u64) -> &str {
        self.by_id.get(&node_id).map_or("", |node| node.address.as_str())
    }

    /// All nodes, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.by_id.values()
    }

    /// The nodes with an id above this one.
    pub fn after(&self, node_id: u64) -> impl Iterator<Item = &Arc<Node>> {
        self.by_id
            .range((std::ops::Bound::Excluded(node_id), std::ops::Bound::Unbounded))
            .map(|(_, node)| node)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Adds or replaces a node.
    pub(crate) fn put(&mut self, node: Node) {
        self.by_id.insert(node.node_id, Arc::new(node));
    }
}
