//! Wire messages into checked types, and back: one file per noun.
//!
//! Invariants: what has been converted keeps to the limits, so that code behind the border does not
//! check again; a refusal is INVALID_ARGUMENT and names the field.

mod condition;
mod key_range;
mod scan;
mod shard;
mod write;

pub use self::condition::Condition;
pub use self::key_range::{KeyRange, prefix_end};
pub use self::scan::Scan;
pub use self::write::{Delete, Put, Write};
