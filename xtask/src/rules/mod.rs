//! The rules, one set to a file. A rule is a pure function from text to findings.

pub(crate) mod crate_directions;
pub(crate) mod durability_rows;
pub(crate) mod engine_layers;
pub(crate) mod engine_primitives;
pub(crate) mod leftovers;
pub(crate) mod lock_file;
pub(crate) mod shape;
