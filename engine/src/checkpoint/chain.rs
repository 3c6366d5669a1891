//! The index files that stand for a shard: a whole file, and deltas to it.
//!
//! Invariant: attempts ascend; only the first file is whole.

use crate::types::CheckpointId;

/// An index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct IndexFile {
    /// The attempt in its name.
    pub(crate) attempt: CheckpointId,
    /// Its length in bytes.
    pub(crate) bytes: u64,
    /// Entries in it.
    pub(crate) entries: u64,
}

/// The files of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Chain {
    /// Oldest first; none for a shard that no checkpoint has taken yet.
    pub(crate) files: Vec<IndexFile>,
    /// What changed since the last file is no longer known, after a failed checkpoint: the next
    /// file is a whole one.
    pub(crate) rewrite: bool,
}

impl Chain {
    /// The chain of these files.
    pub(crate) fn new(files: Vec<IndexFile>) -> Self {
        Self { files, rewrite: false }
    }

    /// The last file's attempt; 0 without files.
    pub(crate) fn last_attempt(&self) -> CheckpointId {
        self.files.last().map_or(CheckpointId(0), |file| file.attempt)
    }

    /// Bytes of all deltas.
    pub(crate) fn delta_bytes(&self) -> u64 {
        self.files.iter().skip(1).map(|file| file.bytes).sum()
    }

    /// The whole file, if any.
    pub(crate) fn whole(&self) -> Option<&IndexFile> {
        self.files.first()
    }
}
