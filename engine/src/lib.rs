//! The storage engine of vmemkv: keys in RAM, values in a log on a local drive, every
//! acknowledged write in a write-ahead log.
mod api;
mod engine;
mod error;
mod index;
pub mod io;
mod options;
mod stats;
mod types;
mod value_log;
mod wal;

pub use api::*;
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use options::*;
pub use stats::{CounterValues, IndexStats, State, Stats, ValueLogStats, WalStats};
pub use types::{CheckpointId, InstanceId, KeyRange, Lsn, Revision, ShardId};
