//! The routers' state machine: what the cluster is, as a pure value.
//!
//! Invariants: [`apply`] is the only thing that changes a [`ClusterState`], and depends on nothing
//! but the state and the command (no clock, no random number, no map of undefined order); the
//! [`rules`] hold after every command.

mod apply;
mod cluster;
mod command;
pub mod hex;
mod nodes;
mod operations;
pub mod rules;
mod sessions;
mod shard_map;
mod split;

#[cfg(test)]
mod apply_test;
#[cfg(test)]
mod split_test;

pub use self::apply::{Event, apply, check_registration};
pub use self::cluster::{Cluster, ClusterState};
pub use self::command::{Action, Begin, Command, Confirmed, Outcome, Refusal, Registration};
pub use self::nodes::{Node, NodeState, Nodes};
pub use self::operations::{Operation, OperationKind, Operations, Phase};
pub use self::sessions::{Session, Sessions};
pub use self::shard_map::{MapError, Shard, ShardMap};
pub use self::split::{check_begin, check_free};
