//! Drives splits from their begin to their end: whichever router leads resumes every operation that
//! the state says is running, whoever began it.
//!
//! Invariants: the state machine decides and the owner's log decides what it decides; nothing here
//! is needed to go on after a restart. An abort is proposed only after the owner has said that it
//! durably refused (M11). Of many operations, [`Schedule`] says which are worked at.

mod by_size;
mod drive;
mod progress;
mod schedule;
mod servers;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use vmemkv_failpoint::reach;
use vmemkv_proto::{ApiError, ErrorKind};

use self::by_size::BySize;
pub(crate) use self::by_size::Report;
use self::drive::Round;
pub(crate) use self::progress::Progress;
use self::schedule::Schedule;
use self::servers::{Servers, Target};
use crate::clock::Clock;
use crate::monitor::Monitor;
use crate::raft::RaftNode;
use crate::service::{outcome_or_error, refused};
use crate::state::{Action, Begin, Operation, Outcome, check_begin, check_free};

/// How often the state is looked at, if nobody wakes the driver.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a proposal or a confirmed read may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The splits of the cluster; cheap to clone.
#[derive(Clone)]
pub(crate) struct Splits {
    inner: Arc<Inner>,
}

struct Inner {
    raft: RaftNode,
    monitor: Arc<Monitor>,
    clock: Arc<dyn Clock>,
    servers: Servers,
    /// Whether shards are split by size too.
    automatic: bool,
    by_size: Mutex<BySize>,
    /// What is known of operations that run, beyond the state; for people.
    progress: Mutex<HashMap<u64, Progress>>,
    wake: Notify,
}

impl Splits {
    pub(crate) fn new(
        raft: RaftNode,
        monitor: Arc<Monitor>,
        clock: Arc<dyn Clock>,
        automatic: bool,
    ) -> Self {
        let inner = Inner {
            raft,
            monitor,
            clock,
            servers: Servers::default(),
            automatic,
            by_size: Mutex::default(),
            progress: Mutex::default(),
            wake: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Drives operations until it is dropped.
    pub(crate) async fn run(self) {
        let clock = &self.inner.clock;
        let mut tasks = JoinSet::new();
        let mut working: HashMap<tokio::task::Id, u64> = HashMap::new();
        let mut schedule = Schedule::default();
        // Apart from the loop: a commit that is slow must not hold up what runs already.
        let mut beginning = JoinSet::new();
        loop {
            let sleep = schedule.next_due(clock.now()).unwrap_or(LOOK_EVERY).min(LOOK_EVERY);
            tokio::select! {
                () = self.inner.wake.notified() => {}
                () = tokio::time::sleep(sleep) => {}
                Some(begun) = beginning.join_next() => {
                    if let Err(error) = begun {
                        tracing::error!(%error, "shards that are too large were not looked at");
                    }
                }
                Some(ended) = tasks.join_next_with_id() => {
                    let (id, round) = match ended {
                        Ok((id, round)) => (id, round),
                        Err(error) => {
                            tracing::error!(%error, "the driver of an operation failed");
                            (error.id(), Round::Failed)
                        }
                    };
                    let Some(operation_id) = working.remove(&id) else { continue };
                    match round {
                        Round::Ended => {
                            schedule.ended(operation_id);
                            self.inner.progress.lock().remove(&operation_id);
                        }
                        Round::Failed => {
                            schedule.failed(operation_id, clock.now(), rand::random());
                        }
                    }
                }
            }
            let leads = self.inner.raft.leads();
            // One look at a time: what it has begun must be known to the next.
            if leads && self.inner.automatic && beginning.is_empty() {
                beginning.spawn(self.clone().begin_by_size());
            }
            // Without the lead nothing runs here: what is known of it is forgotten.
            let active = if leads { self.active() } else { Vec::new() };
            let (begun, gone) = schedule.begin(&active, clock.now());
            {
                let mut progress = self.inner.progress.lock();
                progress.retain(|operation_id, _| !gone.contains(operation_id));
            }
            for operation_id in begun {
                let round = drive::round(self.clone(), operation_id);
                working.insert(tasks.spawn(round).id(), operation_id);
            }
        }
    }

    /// The operations that run, with the nodes that have to do something for them.
    fn active(&self) -> Vec<(u64, u64)> {
        self.inner.raft.state().read(|state| {
            let known = state.operations.active().filter_map(|id| state.operations.get(id));
            known.map(|operation| (operation.operation_id, operation.source)).collect()
        })
    }

    /// Begins to split a shard at a key, or at one that its owner proposes; the operation.
    pub(crate) async fn begin(&self, shard_id: u64, key: Option<Bytes>) -> Result<u64, ApiError> {
        let raft = &self.inner.raft;
        raft.linearizable(PATIENCE).await?;
        let (target, epoch) = raft
            .state()
            .read(|state| {
                let shard = match &key {
                    Some(key) => check_begin(state, shard_id, key)?,
                    None => check_free(state, shard_id)?,
                };
                Ok((Target::owner_of(state, shard), shard.epoch))
            })
            .map_err(|refusal| refused(&refusal))?;
        let key = match key {
            Some(key) => key,
            None => {
                let proposed = self.inner.servers.propose_key(&target, shard_id, epoch).await?;
                proposed.ok_or_else(|| no_key(shard_id))?
            }
        };
        self.propose_begin(shard_id, epoch, key).await
    }

    async fn propose_begin(&self, shard_id: u64, epoch: u64, key: Bytes) -> Result<u64, ApiError> {
        reach("split.begin");
        let begin = Begin { shard_id, epoch, key, started_unix_ms: unix_ms() };
        let outcome = self.inner.raft.propose(Action::BeginSplit(begin), PATIENCE).await?;
        let Outcome::Begun { operation_id } = outcome_or_error(outcome)? else {
            return Err(ApiError::internal("a split that began had no operation"));
        };
        reach("split.begun");
        tracing::info!(operation_id, shard_id, "a split begins");
        self.inner.wake.notify_one();
        Ok(operation_id)
    }

    /// Begins what [`BySize`] chooses.
    async fn begin_by_size(self) {
        let Inner { raft, monitor, clock, by_size, .. } = &*self.inner;
        let reports = monitor.reports();
        let chosen = raft.state().read(|state| by_size.lock().choose(state, &reports, clock.now()));
        let this = &self;
        let begin = |by_size::Chosen { shard_id, epoch, key }| async move {
            let begun = this.propose_begin(shard_id, epoch, key).await;
            by_size.lock().begun(shard_id, begun.is_ok(), clock.now());
            if let Err(error) = begun {
                tracing::warn!(shard_id, %error, "a shard is too large, and its split did not begin");
            }
        };
        futures::future::join_all(chosen.into_iter().map(begin)).await;
    }

    /// What an operator should know of a shard; empty: nothing.
    pub(crate) fn note(&self, shard_id: u64) -> String {
        self.inner.by_size.lock().note(shard_id, self.inner.clock.now())
    }

    /// What is known of an operation beyond the state.
    pub(crate) fn progress(&self, operation: &Operation) -> Progress {
        let known = self.inner.progress.lock().get(&operation.operation_id).cloned();
        known.unwrap_or_default()
    }
}

fn no_key(shard_id: u64) -> ApiError {
    let message = format!(
        "no key splits shard {shard_id}: it has fewer than two keys, so a half would be empty"
    );
    ApiError::new(ErrorKind::FailedPrecondition, message).with_not_applied()
}

/// Now, for people.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
