//! The state machine as Raft drives it: the state in memory, and the same in the database.
//!
//! Invariants: the records that a batch of entries changes and the position up to which entries are
//! applied are written in one transaction; that transaction is durable with the next durable one of
//! the same file, and the log's `committed`, durable before, makes a restart apply again what it
//! misses. Memory is ahead of the file by at most the batch being written.

use std::collections::BTreeSet;

use openraft::storage::RaftStateMachine;
use openraft::{AnyError, EntryPayload, OptionalSend};
use redb::{Durability, WriteTransaction};
use vmemkv_failpoint::reach;

use super::database::{
    Database, NODES, OPERATIONS, SESSIONS, SHARDS, StoreError, encode, keys, put_meta,
};
use super::snapshot::{Applied, SnapshotStore, current, from_bytes, load};
use super::types::{
    Entry, IoError, LogId, Membership, Snapshot, SnapshotMeta, StorageError, TypeConfig,
};
use crate::local_state::LocalState;
use crate::state::{Action, Event, Outcome};

/// The state machine of this member.
pub(crate) struct StateMachine {
    db: Database,
    snapshots: SnapshotStore,
    state: LocalState,
    applied: Applied,
}

/// The rows that a batch has changed; `None`: the row is gone.
#[derive(Default)]
struct Dirty {
    cluster: Option<Vec<u8>>,
    nodes: Vec<Row>,
    shards: Vec<Row>,
    operations: Vec<Row>,
    sessions: Vec<Row>,
}

type Row = (u64, Option<Vec<u8>>);

impl StateMachine {
    /// Loads the stored state. What has been committed since is applied again by openraft.
    pub(crate) fn open(db: Database) -> Result<Self, StoreError> {
        let (state, applied) = load(&db.begin_read()?)?;
        let snapshots = SnapshotStore::new(db.clone());
        Ok(Self { db, snapshots, state: LocalState::new(state), applied })
    }

    /// The state that this member has applied.
    pub(crate) fn state(&self) -> LocalState {
        self.state.clone()
    }

    /// The rows named by the events, as they are now.
    fn collect(&self, events: &[Event]) -> Result<Dirty, StoreError> {
        let mut ids: [BTreeSet<u64>; 4] = Default::default();
        let [nodes, shards, operations, sessions] = &mut ids;
        for event in events {
            match event {
                Event::Cluster => {}
                Event::Node(id) => drop(nodes.insert(*id)),
                Event::Operation(id) => drop(operations.insert(*id)),
                Event::Session(id) | Event::SessionDropped(id) => drop(sessions.insert(*id)),
                Event::Map { changed, removed, .. } => shards.extend(changed.iter().chain(removed)),
            }
        }
        fn row<T: serde::Serialize>(id: u64, record: Option<&T>) -> Result<Row, StoreError> {
            Ok((id, record.map(|record| encode("state", record)).transpose()?))
        }
        self.state.read(|state| {
            let cluster = (!events.is_empty()).then(|| encode("cluster", &state.cluster));
            let [nodes, shards, operations, sessions] = ids;
            Ok(Dirty {
                cluster: cluster.transpose()?,
                nodes: nodes
                    .into_iter()
                    .map(|id| row(id, state.nodes.get(id).map(AsRef::as_ref)))
                    .collect::<Result<_, _>>()?,
                shards: shards
                    .into_iter()
                    .map(|id| row(id, state.shards.get(id).map(AsRef::as_ref)))
                    .collect::<Result<_, _>>()?,
                operations: operations
                    .into_iter()
                    .map(|id| row(id, state.operations.get(id).map(AsRef::as_ref)))
                    .collect::<Result<_, _>>()?,
                sessions: sessions
                    .into_iter()
                    .map(|id| row(id, state.sessions.get(id)))
                    .collect::<Result<_, _>>()?,
            })
        })
    }
}

impl Dirty {
    fn write(self, txn: &WriteTransaction) -> Result<(), StoreError> {
        if let Some(cluster) = self.cluster {
            txn.open_table(super::database::META)?.insert(keys::CLUSTER, cluster.as_slice())?;
        }
        let tables = [
            (NODES, self.nodes),
            (SHARDS, self.shards),
            (OPERATIONS, self.operations),
            (SESSIONS, self.sessions),
        ];
        for (definition, rows) in tables {
            if rows.is_empty() {
                continue;
            }
            let mut table = txn.open_table(definition)?;
            for (id, row) in rows {
                match row {
                    Some(row) => drop(table.insert(id, row.as_slice())?),
                    None => drop(table.remove(id)?),
                }
            }
        }
        Ok(())
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotBuilder = SnapshotStore;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), StorageError> {
        Ok((self.applied.last, self.applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut outcomes = Vec::new();
        let mut events = Vec::new();
        for entry in entries {
            self.applied.last = Some(entry.log_id);
            outcomes.push(match entry.payload {
                EntryPayload::Blank => Outcome::Nothing,
                EntryPayload::Normal(command) => {
                    match &command.action {
                        Action::BeginSplit(_) => reach("split.begin.logged"),
                        Action::FinishSplit { .. } => reach("split.finish.logged"),
                        _ => {}
                    }
                    let (outcome, changes) = self.state.apply(&command);
                    events.extend(changes);
                    outcome
                }
                EntryPayload::Membership(membership) => {
                    self.applied.membership = Membership::new(Some(entry.log_id), membership);
                    Outcome::Nothing
                }
            });
        }
        let failed = |error: &StoreError| IoError::write_state_machine(AnyError::new(error));
        let dirty = self.collect(&events).map_err(|error| failed(&error))?;
        let applied = self.applied.clone();
        let write = self.db.write(Durability::None, move |txn| {
            put_meta(txn, keys::APPLIED, &applied)?;
            dirty.write(txn)
        });
        write.await.map_err(|error| failed(&error))?;
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        self.snapshots.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Vec<u8>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Box<Vec<u8>>,
    ) -> Result<(), StorageError> {
        let failed = |error: &StoreError| {
            IoError::write_snapshot(Some(meta.signature()), AnyError::new(error))
        };
        let state = from_bytes(&snapshot).map_err(|error| failed(&error))?;
        let applied = Applied { last: meta.last_log_id, membership: meta.last_membership.clone() };
        let install = Some((state.clone(), applied.clone()));
        let put = self.snapshots.put(meta.clone(), &snapshot, install);
        put.await.map_err(|error| failed(&error))?;
        self.applied = applied;
        self.state.replace(state);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        let read = self.db.read(current);
        read.await.map_err(|error| IoError::read_snapshot(None, AnyError::new(&error)).into())
    }
}
