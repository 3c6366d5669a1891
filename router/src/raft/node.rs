//! One member of the Raft group.

use std::time::Duration;

use vmemkv_proto::ApiError;

/// This process's member; cheap to clone.
#[derive(Clone)]
pub(crate) struct RaftNode {
    id: u64,
}

impl RaftNode {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    #[allow(clippy::unused_async)]
    pub(crate) async fn linearizable(&self, _patience: Duration) -> Result<(), ApiError> {
        Err(ApiError::unavailable("the routers' group has not started", 100))
    }
}
