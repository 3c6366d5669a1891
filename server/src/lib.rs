//! The server of vmemkv: the gRPC service over one storage engine.
//!
//! A [`Server`] owns one data directory. It registers with a router, serves the shards that it is
//! given for as long as its lease lasts, and answers `Kv`, `NodeAdmin`, health and reflection on
//! its gRPC port, health and metrics on its HTTP port.
//!
//! Invariants: a write is acknowledged only once it is durable; no request reaches the engine
//! unless the node owns its keys and holds a lease; gRPC types stop here, the engine knows none.

mod clock;
mod config;
mod disk_usage;
mod engine_error;
mod error;
mod health;
mod http;
mod incoming;
mod io_pool;
mod layers;
mod metrics;
mod node;
mod orders;
mod ownership;
mod registration;
mod server;
mod service;
mod shutdown;

pub use config::{Config, EngineConfig, LimitsConfig, ReadPolicy, Visibility};
pub use error::{Error, Result};
pub use server::{Registration, Server, SetLogFilter, StartOptions};
