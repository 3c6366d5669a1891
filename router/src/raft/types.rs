//! What openraft is told about this group.
//!
//! Invariants: a member's id is a random number that its data directory holds; it is never given to
//! another data directory.

use serde::{Deserialize, Serialize};

use crate::state::{Command, Outcome};

/// Where a router is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RouterAddress {
    /// gRPC, HOST:PORT.
    pub(crate) grpc: String,
    /// HTTP, HOST:PORT; empty: nowhere.
    pub(crate) http: String,
    /// Raft, HOST:PORT.
    pub(crate) raft: String,
}

openraft::declare_raft_types!(
    /// The types of the routers' group.
    pub(crate) TypeConfig:
        D = Command,
        R = Outcome,
        NodeId = u64,
        Node = RouterAddress,
        Entry = openraft::Entry<TypeConfig>,
        SnapshotData = Vec<u8>,
        Responder = openraft::impls::OneshotResponder<TypeConfig>,
        AsyncRuntime = openraft::TokioRuntime,
);

pub(super) type Entry = openraft::Entry<TypeConfig>;
pub(super) type LogId = openraft::LogId<u64>;
pub(super) type Vote = openraft::Vote<u64>;
pub(super) type Membership = openraft::StoredMembership<u64, RouterAddress>;
pub(super) type SnapshotMeta = openraft::SnapshotMeta<u64, RouterAddress>;
pub(super) type Snapshot = openraft::Snapshot<TypeConfig>;
pub(super) type StorageError = openraft::StorageError<u64>;
pub(super) type IoError = openraft::StorageIOError<u64>;
