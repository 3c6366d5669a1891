//! The Raft group of the routers: openraft over one redb file.
//!
//! Invariants: nothing outside this module knows openraft or redb; what the group has decided is
//! read through [`crate::local_state::LocalState`].

mod database;
mod log_store;
mod network;
mod node;
mod rpc;
mod snapshot;
mod state_machine;
mod types;

#[cfg(test)]
mod group_test;
#[cfg(test)]
mod store_test;

pub(crate) use self::node::{RaftNode, RaftSettings, random_id};
pub(crate) use self::types::RouterAddress;
