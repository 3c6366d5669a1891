//! A client for vmemkv, a larger-than-memory key-value service.
//!
//! ```no_run
//! use futures::TryStreamExt as _;
//! use vmemkv_client::Client;
//!
//! # async fn example() -> vmemkv_client::Result<()> {
//! let client = Client::connect("localhost:7400").await?;
//!
//! client.put("user:1", "Ada").await?;
//! assert_eq!(client.get("user:1").await?.as_deref(), Some(&b"Ada"[..]));
//! assert!(client.delete("user:1").await?);
//!
//! let mut users = client.scan(..).prefix("user:").stream();
//! while let Some(entry) = users.try_next().await? {
//!     println!("{:?} = {:?}", entry.key, entry.value);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The client keeps the cluster's shard map, goes to the server that owns a key, and follows splits
//! and moves by itself. Errors say what to do: [`Error::kind`]. A failed write says whether it may
//! have happened all the same: [`Error::outcome`]. Reads are retried under the call's deadline; a
//! write is retried only after a refusal that surely changed nothing.
//!
//! Invariants: routing is by the greatest epoch per key, so that the map never goes backwards; every
//! queue, retry and buffer is bounded.

mod channel_pool;
pub mod client;
pub mod config;
mod deadline;
pub mod dispatch;
mod error;
mod key_range;
mod operation;
mod proxy_routes;
mod remote_routers;
pub mod request;
mod retry;
pub mod routes;

pub use client::Client;
pub use config::{Addresses, ClientBuilder};
pub use deadline::Deadline;
pub use dispatch::Dispatcher;
pub use error::{Error, Outcome, Result};
pub use key_range::{IntoKeyRange, KeyRange};
pub use operation::{Condition, DeleteOptions, Operation, PutOptions, Written};
pub use request::{BatchGetStream, BatchPutStream, Checksum, Entry, Scan, ScanStream};
pub use vmemkv_proto::{ApiError, ErrorKind};

/// The messages and stubs of the API, package `vmemkv.v1`.
pub mod proto {
    pub use vmemkv_proto::v1::*;
}

/// Sets the limits of messages on a generated client.
macro_rules! limited {
    ($client:expr) => {
        $client
            .max_decoding_message_size($crate::MAX_TRANSPORT_BYTES)
            .max_encoding_message_size($crate::MAX_TRANSPORT_BYTES)
    };
}
pub(crate) use limited;

/// The largest message that is taken or sent, with room for what is around keys and values.
pub(crate) const MAX_TRANSPORT_BYTES: usize = vmemkv_proto::limits::MAX_MESSAGE_BYTES + (1 << 20);
