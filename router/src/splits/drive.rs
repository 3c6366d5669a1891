//! One round of a split, from where it is.
//!
//! Invariants: each round begins from the committed state, so that it does not matter what an
//! earlier round, an earlier run of this router or another router has done; it ends in bounded time,
//! whatever the owner does, and waits for nothing but calls: [`Schedule`](super::schedule::Schedule)
//! says when the next begins.

use vmemkv_failpoint::reach;
use vmemkv_proto::internal::v1::ExecSplitRequest;

use super::servers::{Executed, Target};
use super::{PATIENCE, Splits};
use crate::state::{Action, ClusterState, Outcome};

/// How a round has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// And the operation with it.
    Ended,
    /// In vain: another one is needed, after a while.
    Failed,
}

/// Asks the owner once, and agrees on what it says.
pub(super) async fn round(splits: Splits, operation_id: u64) -> Round {
    let raft = &splits.inner.raft;
    let order = raft.state().read(|state| order(state, operation_id));
    let (address, order) = match order {
        Next::Exec(address, order) => (address, order),
        Next::Ended => return Round::Ended,
        Next::Stuck(reason) => {
            tracing::error!(operation_id, reason, "an operation cannot go on");
            splits.note_wait(operation_id, reason);
            return Round::Failed;
        }
    };
    splits.note_try(operation_id);
    reach("split.order");
    let attempt = order.attempt;
    let reason = match splits.inner.servers.exec_split(&address, order).await {
        Ok(executed) => match splits.end(operation_id, attempt, executed).await {
            Ok(map_version) => {
                splits.inner.servers.map_changed(&address, map_version).await;
                return Round::Ended;
            }
            Err(reason) => reason,
        },
        Err(reason) => reason,
    };
    tracing::debug!(operation_id, reason, "a split waits");
    splits.note_wait(operation_id, reason);
    Round::Failed
}

/// What to do next about an operation.
#[derive(Debug, PartialEq)]
enum Next {
    /// Order it from the server at this address.
    Exec(String, ExecSplitRequest),
    /// Nothing: it has ended.
    Ended,
    /// The state makes no sense; why.
    Stuck(String),
}

fn order(state: &ClusterState, operation_id: u64) -> Next {
    let known = state.operations.get(operation_id);
    let Some(operation) = known.filter(|operation| !operation.is_finished()) else {
        return Next::Ended;
    };
    let parent = operation.shards.first().and_then(|shard| state.shards.get(*shard));
    let (Some(parent), &[left_shard_id, right_shard_id]) = (parent, &*operation.new_shards) else {
        return Next::Stuck(format!("the shards of operation {operation_id} are not in the map"));
    };
    let Target { address, to } = Target::owner_of(state, parent);
    let order = ExecSplitRequest {
        to: Some(to),
        map_version: state.cluster.map_version,
        operation_id,
        attempt: operation.attempt,
        shard_id: parent.shard_id,
        epoch: parent.epoch,
        key: operation.key.clone(),
        left_shard_id,
        right_shard_id,
    };
    Next::Exec(address, order)
}

impl Splits {
    /// Agrees with the other routers on the end; the version of the map then.
    async fn end(
        &self,
        operation_id: u64,
        attempt: u64,
        executed: Executed,
    ) -> Result<u64, String> {
        let action = match executed {
            Executed::Done => {
                self.note_executed(operation_id);
                Action::FinishSplit { operation_id, attempt }
            }
            Executed::Refused(reason) => {
                tracing::warn!(operation_id, reason, "the server has refused a split");
                Action::AbortSplit { operation_id, attempt, reason }
            }
        };
        reach("split.answered");
        match self.inner.raft.propose(action, PATIENCE).await {
            Ok(Outcome::Done { map_version }) => {
                reach("split.ended");
                tracing::info!(operation_id, map_version, "a split has ended");
                Ok(map_version)
            }
            Ok(Outcome::Refused(refusal)) => Err(refusal.to_string()),
            Ok(outcome) => Err(format!("the routers have answered {outcome:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn note_try(&self, operation_id: u64) {
        self.inner.progress.lock().entry(operation_id).or_default().tries += 1;
    }

    fn note_executed(&self, operation_id: u64) {
        let mut progress = self.inner.progress.lock();
        let known = progress.entry(operation_id).or_default();
        known.executed = true;
        known.reason.clear();
    }

    fn note_wait(&self, operation_id: u64, reason: String) {
        self.inner.progress.lock().entry(operation_id).or_default().reason = reason;
    }
}
