//! Splits and merges of shards: not supported by this version yet.
//!
//! Invariant: changes nothing.

use crate::api::{MergeShards, OperationOutcome, SplitCandidate, SplitShard};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Lsn, ShardId};

fn unsupported<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unavailable, "this version cannot change shards yet"))
}

#[expect(clippy::unused_self, reason = "what comes next uses it")]
impl Core {
    pub(crate) fn split_shard(&self, _split: &SplitShard) -> Result<Lsn> {
        unsupported()
    }
    pub(crate) fn merge_shards(&self, _merge: &MergeShards) -> Result<Lsn> {
        unsupported()
    }
    pub(crate) fn split_key(&self, _shard: ShardId) -> Result<Option<Vec<u8>>> {
        unsupported()
    }
    pub(crate) fn split_candidates(&self) -> Vec<SplitCandidate> {
        Vec::new()
    }
    pub(crate) fn refuse_operation(&self, _operation: u64, _reason: &str) -> Result<()> {
        unsupported()
    }
    pub(crate) fn operation_outcome(&self, _operation: u64) -> Option<OperationOutcome> {
        None
    }
    pub(crate) fn forget_operation(&self, _operation: u64) -> Result<()> {
        unsupported()
    }
}
