//! What routers propose to the state machine, and what it answers.
//!
//! Invariants: a command says which state it expects (a nonce chain, an incarnation, an epoch, a
//! value), so that one that comes late is refused instead of undoing something newer; `client` and
//! `serial` name it, so that a retry changes nothing. Stored as JSON in the log: fields are only
//! added, with a default.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::hex;

/// One proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The run of a router that proposes; 0: a retry is not recognised.
    pub client: u64,
    /// The number of the proposal within that run, from 1.
    pub serial: u64,
    /// Every serial below this one has been answered; what was answered may be forgotten.
    pub ack_below: u64,
    /// What to do.
    pub action: Action,
}

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Makes the cluster. Refused if there is one.
    CreateCluster {
        /// Its id, a random number.
        cluster_id: u64,
        /// How long servers may serve without hearing from a router, milliseconds.
        lease_ms: u64,
        /// Where the first server's shards are cut, ascending.
        #[serde(default, with = "hex::list")]
        boundaries: Vec<Bytes>,
    },
    /// Changes the length of leases from now on.
    SetLease {
        /// The length that the proposer knows, milliseconds.
        expected_ms: u64,
        /// The new length, milliseconds.
        lease_ms: u64,
    },
    /// Makes a started server known.
    RegisterNode(Registration),
    /// Notes that owners durably have shards.
    ConfirmShards {
        /// The owner.
        node_id: u64,
        /// The run of it that confirms.
        incarnation: u64,
        /// The shards.
        shards: Vec<Confirmed>,
    },
    /// Begins to split a shard, and holds it until the split has ended.
    BeginSplit(Begin),
    /// The owner has durably split the shard: its halves take its place in the map.
    FinishSplit {
        /// The operation.
        operation_id: u64,
        /// The attempt that succeeded.
        attempt: u64,
    },
    /// The owner has durably refused to split the shard. Nothing else permits an abort.
    AbortSplit {
        /// The operation.
        operation_id: u64,
        /// The attempt that was refused.
        attempt: u64,
        /// What the owner said.
        reason: String,
    },
}

/// A split to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The shard.
    pub shard_id: u64,
    /// Its epoch, as the proposer knows it.
    pub epoch: u64,
    /// The first key of the right half.
    #[serde(with = "hex")]
    pub key: Bytes,
    /// Now, milliseconds since 1970 by the proposer's clock; for people only.
    pub started_unix_ms: u64,
}

/// A server that has started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The node.
    pub node_id: u64,
    /// The cluster that it belongs to; 0: new.
    pub cluster_id: u64,
    /// The generation that it has stored; 0: new.
    pub generation: u64,
    /// How often it has started.
    pub boot_number: u64,
    /// A random number for this start.
    pub nonce: u64,
    /// The number of the start before that a router may have seen; 0: none.
    pub previous_nonce: u64,
    /// Where it serves gRPC.
    pub address: String,
    /// Where it serves HTTP; empty: nowhere.
    pub http_address: String,
    /// Labels, such as zone.
    pub labels: BTreeMap<String, String>,
    /// The version of vmemkv.
    pub version: String,
    /// Bytes of disk that it may use.
    pub capacity_bytes: u64,
}

/// A shard that its owner durably has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmed {
    /// The shard.
    pub shard_id: u64,
    /// The epoch at which it was assigned.
    pub epoch: u64,
}

/// What became of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing to say: an entry of Raft itself.
    #[default]
    Nothing,
    /// Done.
    Done {
        /// The version of the map after it.
        map_version: u64,
    },
    /// The server is known.
    Registered {
        /// Names this run of it.
        incarnation: u64,
        /// The version of the map after it.
        map_version: u64,
    },
    /// An operation has begun.
    Begun {
        /// Its id.
        operation_id: u64,
    },
    /// Nothing has been changed.
    Refused(Refusal),
}

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// There is a cluster already.
    #[error("the cluster {0} exists already")]
    ClusterExists(u64),
    /// There is no cluster yet.
    #[error("the cluster has not been made yet")]
    NoCluster,
    /// A field cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// The state is not the expected one; the message says how.
    #[error("{0}")]
    Precondition(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The proposal was answered so long ago that the answer is forgotten.
    #[error("proposal {serial} of client {client} was answered long ago")]
    Forgotten {
        /// The run of a router.
        client: u64,
        /// The proposal.
        serial: u64,
    },
}
