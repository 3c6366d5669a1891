//! One operation per file; each reads like the numbered steps of the design.
//!
//! Invariant: a write applies, then logs, all under its stripes; it is acknowledged by whoever
//! waits for the LSN that it returns.

mod change_table;
mod checksum;
mod create_shard;
pub(crate) mod defragment;
mod delete_range;
mod get;
mod group;
mod merge;
mod policy;
mod reorganize;
#[cfg(test)]
mod reorganize_test;
mod scan;
mod scan_path;
mod split;
mod split_key;
mod write;
mod write_batch;

#[cfg(test)]
mod straggler_test;

pub(crate) use scan::Walk;
