//! Batch frames: the keys of one frame split by owner, the answers put together in order.
//!
//! Invariants: results come in the order of the frame, one each; at most one answer per owner is held
//! (what servers send ahead stays in the transport's windows); of the operations on one key none is
//! sent before the earlier ones are answered, and none after one whose outcome is unknown.

mod kind;
mod part;
mod run;

pub(crate) use self::kind::{FrameKind, Gets, Puts, PutsExtra};
pub(crate) use self::run::FrameRun;
