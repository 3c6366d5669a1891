//! Files of keys and values: reading and writing them, progress, and going on after an interruption.
//!
//! Invariants: what is written can be read back byte for byte; a line that cannot be read is an error
//! with its number, never skipped.

mod delimited;
mod format;
mod jsonl;
mod progress;
mod records;
mod resume;
mod writer;

pub use format::{Format, FormatArgs};
pub use progress::Progress;
pub use records::{LineError, Record, Records, Start};
pub(crate) use resume::Fingerprinting;
pub use resume::{Fingerprint, ResumeFile, ResumePoint, default_resume_file, sync_parent};
pub use writer::{RecordWriter, WriteError};

/// Longest record as text, bytes: the largest value with every byte escaped, and some.
pub(crate) const MAX_RECORD_BYTES: usize = 64 << 20;

#[cfg(test)]
mod round_trip_test;
