//! The calls on keys, one verb per file.
//!
//! Invariants: what is here turns arguments into messages of the API and answers into plain types;
//! routing and retries belong to [`crate::dispatch`].

mod batch;
mod delete;
mod get;
mod put;
mod scan;
mod sum;

pub use self::batch::{BatchGetStream, BatchPutStream};
pub use self::scan::{Entry, Scan, ScanStream};
pub use self::sum::Checksum;
