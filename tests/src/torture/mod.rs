//! Torture: an engine on real files under all kinds of work at once, killed again and again, and a
//! checker that knows what was acknowledged.
//!
//! Invariant: parent and child are the same program, so that no run checks a stale one.
//!
//! `keys` what is written, `ledger` what is known of it, `checker` what may be found, `rounds`
//! options and jobs, `child` the work, `parent` the kills.

mod checker;
mod child;
mod keys;
mod ledger;
mod parent;
mod rounds;

pub use child::{Orders, run as run_child};
pub use parent::{Outcome, Run, run as run_parent};
