//! The router of vmemkv: which server owns which keys, agreed on by a small Raft group.
//!
//! It registers servers and grants them leases ([`state`] is the pure state machine behind it),
//! hands out the shard map, answers the cluster's administration, and passes requests of clients
//! that do not route on to servers.
//!
//! Invariants: nothing outside the `raft` module knows openraft; everything that is decided is a command of
//! [`state`]; loads and sizes live in memory only.

mod clock;
mod config;
mod error;
mod http;
mod local_state;
mod map_view;
mod monitor;
mod raft;
mod router;
mod service;
mod splits;
pub mod state;
mod transport;

pub use self::config::Config;
pub use self::error::{Error, Result};
pub use self::router::{Addresses, Prepared, Router};
