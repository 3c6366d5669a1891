//! Background work: who asks for it, who decides that it is due, who does it.
//!
//! Invariant: requests are bounded (one of a kind for each shard, one for the checkpoint) and never
//! block the writer that makes them.

mod closing;
mod give_back;
pub(crate) mod order_policy;
mod orderer;
pub(crate) mod pace;
mod reclaim_policy;
mod reclaimer;
mod requests;
mod scheduler;
pub(crate) mod sharding;
pub(crate) mod triggers;

pub(crate) use closing::close_elsewhere;
pub(crate) use requests::{Next, Request, Requests};
pub(crate) use scheduler::Scheduler;
