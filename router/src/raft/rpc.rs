//! Calls from other members to this one: bytes in, bytes out.
//!
//! Invariants: at most one snapshot is received at a time, of at most [`MAX_SNAPSHOT_BYTES`]; a part
//! that does not follow the one before it starts nothing and is refused.

use openraft::raft::{AppendEntriesRequest, SnapshotResponse, VoteRequest};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use vmemkv_proto::check::invalid;
use vmemkv_proto::{ApiError, ErrorKind};

use super::node::RaftNode;
use super::types::{Snapshot, SnapshotMeta, TypeConfig, Vote};

/// The largest snapshot that is received.
const MAX_SNAPSHOT_BYTES: usize = 1 << 30;

/// A part of a snapshot; its bytes travel beside it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SnapshotPart {
    pub(super) vote: Vote,
    pub(super) meta: SnapshotMeta,
    pub(super) offset: u64,
    pub(super) done: bool,
}

/// The snapshot that is being received.
#[derive(Default)]
pub(super) struct Receiving {
    current: Mutex<Option<(Vote, String, Vec<u8>)>>,
}

impl RaftNode {
    /// Adds entries to the log.
    pub(crate) async fn append_entries(&self, payload: &[u8]) -> Result<Vec<u8>, ApiError> {
        let request: AppendEntriesRequest<TypeConfig> = decode(payload)?;
        encode(&self.raft().append_entries(request).await)
    }

    /// Gives or refuses a vote.
    pub(crate) async fn vote(&self, payload: &[u8]) -> Result<Vec<u8>, ApiError> {
        let request: VoteRequest<u64> = decode(payload)?;
        encode(&self.raft().vote(request).await)
    }

    /// Takes a part of a snapshot, and installs it with the last one.
    pub(crate) async fn install_snapshot(
        &self,
        payload: &[u8],
        data: &[u8],
    ) -> Result<Vec<u8>, ApiError> {
        let part: SnapshotPart = decode(payload)?;
        let mut current = self.receiving().current.lock().await;
        let mine = self.vote_now();
        if part.vote < mine {
            *current = None;
            let refused: Result<_, openraft::error::Fatal<u64>> = Ok(SnapshotResponse::new(mine));
            return encode(&refused);
        }
        if part.offset == 0 {
            *current = Some((part.vote, part.meta.snapshot_id.clone(), Vec::new()));
        }
        let follows = current.as_ref().is_some_and(|(vote, id, bytes)| {
            *vote == part.vote && *id == part.meta.snapshot_id && bytes.len() as u64 == part.offset
        });
        let Some((_, _, bytes)) = current.as_mut().filter(|_| follows) else {
            *current = None;
            let message = "this part of a snapshot does not follow the one before it";
            return Err(ApiError::new(ErrorKind::FailedPrecondition, message));
        };
        if bytes.len() + data.len() > MAX_SNAPSHOT_BYTES {
            *current = None;
            return Err(ApiError::new(ErrorKind::ResourceExhausted, "the snapshot is too large"));
        }
        bytes.extend_from_slice(data);
        if !part.done {
            let going: Result<_, openraft::error::Fatal<u64>> = Ok(SnapshotResponse::new(mine));
            return encode(&going);
        }
        let snapshot = Snapshot { meta: part.meta, snapshot: Box::new(std::mem::take(bytes)) };
        *current = None;
        encode(&self.raft().install_full_snapshot(part.vote, snapshot).await)
    }
}

fn decode<T: serde::de::DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(payload).map_err(|error| invalid("payload", &error.to_string()))
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(value).map_err(|error| ApiError::internal(error.to_string()))
}
