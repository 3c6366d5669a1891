//! What writers and readers of one key agree on: a lock for writers, a word for readers.
//!
//! Invariant: this folder knows neither index nor logs.

#[cfg(shuttle)]
pub(crate) mod explore;
#[cfg(shuttle)]
mod explored;
pub(crate) mod primitives;
mod stripes;

pub(crate) use stripes::{Held, Stripes, WordIndex};
