//! Where keys live: the map as this process knows it, and who it learns it from.
//!
//! Invariants: routes merge per key by the greatest epoch, so that redirects, changes, full copies
//! and duplicates commute and the map never goes backwards.

mod route;
mod route_table;
mod shard_cache;
mod source;

pub use self::route::Route;
pub(crate) use self::route_table::RouteTable;
pub use self::shard_cache::ShardCache;
pub use self::source::{MapUpdates, RouteSource};
