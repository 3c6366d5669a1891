//! The storage engine of vmemkv: keys in RAM (T1), values in a log on a local drive (T2), every
//! acknowledged write in a write-ahead log (WAL). A plain synchronous library, usable alone: start
//! at [`Engine`].
//!
//! Who may import whom, top to bottom: `engine`, `jobs`, `verify`, `offline` - `ops`, `feed`,
//! `checkpoint`, `recovery` - `core`, `store` - `index`, `value_log`, `wal`, `sync` - `io`, `types`, `error`,
//! `options`, `stats`. `index`, `value_log` and `wal` never import each other: `store` joins the
//! first two, `ops` adds the third.

mod api;
mod checkpoint;
mod core;
#[cfg(test)]
mod core_test;
mod directory;
mod engine;
mod error;
#[cfg(all(test, shuttle))]
mod explore_test;
mod feed;
mod identity;
mod index;
pub mod io;
mod jobs;
mod load_index;
mod memory;
pub mod offline;
mod ops;
mod options;
mod recovery;
mod replay;
mod space;
mod stats;
mod store;
mod sync;
mod table_state;
mod types;
mod value_log;
mod verify;
mod wal;

pub use api::*;
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use feed::{Change, ChangeKind, Changes, ChangesWait};
pub use memory::keep_heap_small;
pub use options::*;
pub use stats::{CounterValues, DiskStats, IndexStats, State, Stats, ValueLogStats, WalStats};
pub use types::{CheckpointId, InstanceId, KeyRange, Lsn, Revision, ShardId};
pub use value_log::EXIT_BUS_ERROR;
