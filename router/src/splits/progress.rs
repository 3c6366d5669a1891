//! What the router that drives an operation knows of it beyond the state; for people only.

use crate::state::Phase;

/// How an operation goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The owner has done its part; what is left is to agree on the end.
    pub(crate) executed: bool,
    /// How often the owner has been asked since this router leads.
    pub(crate) tries: u64,
    /// Why it waits; empty: it does not.
    pub(crate) reason: String,
}

impl Progress {
    /// Where the operation is, in the words of the API.
    pub(crate) fn phase(&self, stored: Phase) -> &'static str {
        if stored == Phase::Begin && self.executed { "finish" } else { stored.as_str() }
    }

    /// How much of it is done, from 0 to 1.
    pub(crate) fn fraction(&self, stored: Phase) -> f64 {
        match stored {
            Phase::Begin if self.executed => 0.9,
            Phase::Begin => 0.0,
            Phase::Done | Phase::Failed => 1.0,
        }
    }
}
