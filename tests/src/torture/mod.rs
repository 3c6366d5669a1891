//! Torture: an engine on real files under all kinds of work at once, killed again and again, and a
//! checker that knows what was acknowledged.
//!
//! Invariant: parent and child are the same program, so that no run checks a stale one.
//!
//! `keys` what is written, `ledger` what is known of it, `skips` what was not made of it, `checker`
//! what may be found, `rounds` options and jobs, `child` the work, `writer` the writes, `follower`
//! who reads the change feed, `follower_file` where it goes on after a kill, `seen` what it may be
//! shown, `parent` the kills.

mod checker;
mod child;
mod follower;
mod follower_file;
mod keys;
mod ledger;
mod parent;
mod rounds;
mod seen;
mod skips;
mod writer;

pub use child::{Orders, run as run_child};
pub use parent::{Outcome, Run, run as run_parent};
