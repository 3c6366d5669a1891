//! What writers and readers of one key agree on: a lock for writers, a word for readers.
//!
//! Invariant: this folder knows neither index nor logs.

mod stripes;

pub(crate) use stripes::{Held, Stripes, WordIndex};
