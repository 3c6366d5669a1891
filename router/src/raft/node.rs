//! This process's member of the routers' group.
//!
//! Invariants: a proposal is named by (run, serial) and at most [`MAX_PROPOSALS`] are in flight;
//! every wait has an end; a proposal whose outcome is unknown is never reported as refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::{Raft, ServerState, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use vmemkv_proto::{ApiError, ErrorKind};

use super::database::{Closing, Database};
use super::log_store::LogStore;
use super::network::Network;
use super::rpc::Receiving;
use super::state_machine::StateMachine;
use super::types::{RouterAddress, TypeConfig, Vote};
use crate::error::{Error, Result};
use crate::local_state::LocalState;
use crate::state::{Action, Command, Outcome};

/// How many proposals of this router are in flight; below the outcomes that a session keeps.
const MAX_PROPOSALS: usize = 128;
/// When to try again if there is no leader.
const RETRY_AFTER_MS: u64 = 200;
/// How many entries are in the log before a snapshot lets it be cut.
const SNAPSHOT_EACH: u64 = 5_000;
/// How many entries stay in the log behind a snapshot, for members that lag a little.
const KEEP_ENTRIES: u64 = 1_000;
/// How long a part of a snapshot may take; openraft's own 200 ms never end on a slow link.
const SNAPSHOT_TIMEOUT_MS: u64 = 30_000;

/// How long a shutdown waits until the file is closed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// How the group behaves.
#[derive(Clone, Debug)]
pub(crate) struct RaftSettings {
    /// How often the leader shows that it lives, milliseconds.
    pub(crate) heartbeat_ms: u64,
    /// The shortest wait for a leader before an election, milliseconds.
    pub(crate) election_ms: u64,
}

/// A member of the group, as this one knows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) address: RouterAddress,
    pub(crate) leader: bool,
    pub(crate) voter: bool,
    pub(crate) reachable: bool,
    pub(crate) log_index: u64,
}

/// This member; cheap to clone.
#[derive(Clone)]
pub(crate) struct RaftNode {
    inner: Arc<Inner>,
}

struct Inner {
    raft: Raft<TypeConfig>,
    id: u64,
    state: LocalState,
    /// Names this run in proposals.
    client: u64,
    serials: Mutex<Serials>,
    permits: Semaphore,
    receiving: Receiving,
    closing: Closing,
}

#[derive(Default)]
struct Serials {
    last: u64,
    in_flight: BTreeSet<u64>,
}

/// A serial that is in flight until this is dropped.
struct Serial<'a> {
    serials: &'a Mutex<Serials>,
    serial: u64,
}

impl Drop for Serial<'_> {
    fn drop(&mut self) {
        self.serials.lock().in_flight.remove(&self.serial);
    }
}

impl RaftNode {
    /// Opens the data directory and starts the member, as the last run left it.
    pub(crate) async fn open(dir: &Path, settings: &RaftSettings) -> Result<Self> {
        let owned = dir.to_owned();
        let open = move || {
            let db = Database::open(&owned, random_id())?;
            let machine = StateMachine::open(db.clone()).map_err(|error| Error::Storage {
                path: db.path().to_owned(),
                reason: error.to_string(),
            })?;
            Ok::<_, Error>((db, machine))
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let (db, machine) = opened.map_err(|error| Error::Raft(error.to_string()))??;
        let config = openraft::Config {
            cluster_name: "vmemkv".to_owned(),
            heartbeat_interval: settings.heartbeat_ms,
            election_timeout_min: settings.election_ms,
            election_timeout_max: settings.election_ms * 2,
            install_snapshot_timeout: SNAPSHOT_TIMEOUT_MS,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_EACH),
            max_in_snapshot_log_to_keep: KEEP_ENTRIES,
            ..openraft::Config::default()
        };
        let config = config.validate().map_err(|error| Error::Raft(error.to_string()))?;
        let id = db.router_id();
        let state = machine.state();
        let closing = db.closing();
        let network = Network { router_id: id, state: state.clone() };
        let raft = Raft::new(id, Arc::new(config), network, LogStore::new(db), machine)
            .await
            .map_err(|error| Error::Raft(error.to_string()))?;
        let inner = Inner {
            raft,
            id,
            state,
            client: random_id(),
            serials: Mutex::default(),
            permits: Semaphore::new(MAX_PROPOSALS),
            receiving: Receiving::default(),
            closing,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes this member a group of one, unless it belongs to a group already; then waits until the
    /// group has a leader.
    pub(crate) async fn bootstrap_alone(
        &self,
        address: RouterAddress,
        patience: Duration,
    ) -> Result<()> {
        let raft = &self.inner.raft;
        let failed = |error: &dyn std::fmt::Display| Error::Raft(error.to_string());
        if raft.is_initialized().await.map_err(|error| failed(&error))? {
            // Nobody else can lead a group of one: no need to wait for silence.
            if self.members().len() == 1 && self.leader().is_none() {
                raft.trigger().elect().await.map_err(|error| failed(&error))?;
            }
        } else {
            let members = BTreeMap::from([(self.inner.id, address)]);
            raft.initialize(members).await.map_err(|error| failed(&error))?;
        }
        let wait = raft.wait(Some(patience));
        let leads = wait.metrics(|metrics| metrics.current_leader.is_some(), "a leader");
        leads.await.map_err(|error| failed(&error))?;
        Ok(())
    }

    /// This member's id.
    pub(crate) fn id(&self) -> u64 {
        self.inner.id
    }

    /// The state that this member has applied.
    pub(crate) fn state(&self) -> &LocalState {
        &self.inner.state
    }

    /// Proposes a command, and waits for what becomes of it.
    pub(crate) async fn propose(
        &self,
        action: Action,
        patience: Duration,
    ) -> Result<Outcome, ApiError> {
        let write = async {
            let permit = self.inner.permits.acquire().await;
            let _permit = permit.map_err(|_| stopping())?;
            let (command, _serial) = self.command(action);
            match self.inner.raft.client_write(command).await {
                Ok(answer) => Ok(answer.data),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                    Err(not_leader(forward.leader_id))
                }
                Err(error) => Err(ApiError::new(ErrorKind::Unavailable, error.to_string())),
            }
        };
        tokio::time::timeout(patience, write).await.unwrap_or_else(|_| {
            let message = "the routers have not agreed in time; it may still happen";
            Err(ApiError::new(ErrorKind::Unavailable, message).with_retry_after_ms(RETRY_AFTER_MS))
        })
    }

    /// Returns once this member leads, as a quorum has confirmed after this call began, and has
    /// applied everything that was committed before it.
    pub(crate) async fn linearizable(&self, patience: Duration) -> Result<(), ApiError> {
        let read = self.inner.raft.ensure_linearizable();
        match tokio::time::timeout(patience, read).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward)))) => {
                Err(not_leader(forward.leader_id))
            }
            Ok(Err(error)) => Err(ApiError::unavailable(error.to_string(), RETRY_AFTER_MS)),
            Err(_) => {
                let message = "no quorum of routers has answered in time";
                Err(ApiError::unavailable(message, RETRY_AFTER_MS))
            }
        }
    }

    /// Who leads, as far as this member knows.
    pub(crate) fn leader(&self) -> Option<u64> {
        self.inner.raft.metrics().borrow().current_leader
    }

    /// Whether this member believes that it leads.
    pub(crate) fn leads(&self) -> bool {
        self.inner.raft.metrics().borrow().state == ServerState::Leader
    }

    /// Why the member cannot go on, if it cannot.
    pub(crate) fn fatal(&self) -> Option<String> {
        let metrics = self.inner.raft.metrics();
        let running = metrics.borrow().running_state.clone();
        running.err().map(|error| error.to_string())
    }

    /// Waits until the member cannot go on, and says why.
    pub(crate) async fn failed(&self) -> String {
        let mut metrics = self.inner.raft.metrics();
        loop {
            if let Some(error) = self.fatal() {
                return error;
            }
            if metrics.changed().await.is_err() {
                return "the member has ended".to_owned();
            }
        }
    }

    /// The members, by id.
    pub(crate) fn members(&self) -> Vec<Member> {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let members = membership.nodes().map(|(id, address)| {
            let own = *id == self.inner.id;
            let replicated = metrics.replication.as_ref().and_then(|all| all.get(id).copied());
            let log_index = match (own, replicated.flatten()) {
                (true, _) => metrics.last_log_index.unwrap_or(0),
                (false, Some(log_id)) => log_id.index,
                (false, None) => 0,
            };
            Member {
                id: *id,
                address: address.clone(),
                leader: metrics.current_leader == Some(*id),
                voter: voters.contains(id),
                reachable: own || replicated.flatten().is_some(),
                log_index,
            }
        });
        members.collect()
    }

    /// Stops the member and closes its file; what is durable stays.
    pub(crate) async fn shutdown(&self) {
        self.inner.permits.close();
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::warn!(%error, "the member of the routers' group did not stop well");
        }
        // Its tasks end a little later than it says.
        let mut closing = self.inner.closing.clone();
        if tokio::time::timeout(CLOSE_PATIENCE, closing.wait()).await.is_err() {
            tracing::warn!("the router's file is still open");
        }
    }

    pub(super) fn raft(&self) -> &Raft<TypeConfig> {
        &self.inner.raft
    }

    pub(super) fn receiving(&self) -> &Receiving {
        &self.inner.receiving
    }

    pub(super) fn vote_now(&self) -> Vote {
        self.inner.raft.metrics().borrow().vote
    }

    fn command(&self, action: Action) -> (Command, Serial<'_>) {
        let serials = &self.inner.serials;
        let mut guard = serials.lock();
        guard.last += 1;
        let serial = guard.last;
        guard.in_flight.insert(serial);
        let ack_below = guard.in_flight.first().copied().unwrap_or(serial);
        let client = self.inner.client;
        (Command { client, serial, ack_below, action }, Serial { serials, serial })
    }
}

/// A random number from 1 to 2^53 - 1: every reader of JSON keeps it exact.
pub(crate) fn random_id() -> u64 {
    (rand::random::<u64>() >> 11).max(1)
}

fn not_leader(leader: Option<u64>) -> ApiError {
    let message = match leader {
        Some(id) => format!("this router does not lead; router {id} does"),
        None => "the routers have no leader".to_owned(),
    };
    ApiError::unavailable(message, RETRY_AFTER_MS)
}

fn stopping() -> ApiError {
    ApiError::unavailable("this router stops", RETRY_AFTER_MS)
}
