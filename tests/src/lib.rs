//! What the end-to-end tests share: processes, data sets, ports.
//!
//! Invariants: a process under test is this workspace's command line, started from a binary of
//! this package, so that no test runs a stale one; a process never outlives its handle.

pub mod fixtures;
pub mod torture;

pub use fixtures::{Dataset, Dev, vmemkv};
