//! The whole state as bytes: JSON lines, a record a line, the cluster's first.
//!
//! Invariants: a snapshot is of one view of the database; it is complete under its name, or not
//! there; a newer one is never replaced by an older one.

use std::sync::Arc;

use openraft::{AnyError, RaftSnapshotBuilder};
use redb::{Durability, ReadTransaction, ReadableTable as _, WriteTransaction};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::database::{
    Database, NODES, OPERATIONS, SESSIONS, SHARDS, SNAPSHOT, StoreError, decode, encode, get_meta,
    keys, put_meta,
};
use super::types::{IoError, LogId, Membership, Snapshot, SnapshotMeta, StorageError, TypeConfig};
use crate::state::{Cluster, ClusterState, Node, Operation, Session, Shard};

/// How much of a snapshot is stored in one row and one transaction, so that building one does not
/// keep the log waiting.
const PART_BYTES: usize = 1 << 20;

/// Up to where the stored state has been applied. Written with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Applied {
    pub(super) last: Option<LogId>,
    pub(super) membership: Membership,
}

/// The snapshot that is current.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    meta: SnapshotMeta,
    slot: u64,
    parts: u64,
}

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Cluster(Cluster),
    Node(Node),
    Shard(Shard),
    Operation(Operation),
    Session(Session),
}

/// Reads the stored state.
pub(super) fn load(txn: &ReadTransaction) -> Result<(ClusterState, Applied), StoreError> {
    let mut state = ClusterState {
        cluster: get_meta(txn, keys::CLUSTER)?.unwrap_or_default(),
        ..ClusterState::default()
    };
    for row in txn.open_table(NODES)?.iter()? {
        state.nodes.put(decode("nodes", row?.1.value())?);
    }
    for row in txn.open_table(SHARDS)?.iter()? {
        state.shards.put(decode("shards", row?.1.value())?);
    }
    for row in txn.open_table(OPERATIONS)?.iter()? {
        state.operations.put(decode("operations", row?.1.value())?);
    }
    for row in txn.open_table(SESSIONS)?.iter()? {
        state.sessions.put(decode("sessions", row?.1.value())?);
    }
    Ok((state, get_meta(txn, keys::APPLIED)?.unwrap_or_default()))
}

/// Writes a whole state in the place of the stored one.
pub(super) fn store(
    txn: &WriteTransaction,
    state: &ClusterState,
    applied: &Applied,
) -> Result<(), StoreError> {
    put_meta(txn, keys::CLUSTER, &state.cluster)?;
    put_meta(txn, keys::APPLIED, applied)?;
    for table in [NODES, SHARDS, OPERATIONS, SESSIONS] {
        txn.open_table(table)?.retain(|_, _| false)?;
    }
    let mut nodes = txn.open_table(NODES)?;
    for node in state.nodes.iter() {
        nodes.insert(node.node_id, encode("nodes", node.as_ref())?.as_slice())?;
    }
    let mut shards = txn.open_table(SHARDS)?;
    for shard in state.shards.iter() {
        shards.insert(shard.shard_id, encode("shards", shard.as_ref())?.as_slice())?;
    }
    let mut operations = txn.open_table(OPERATIONS)?;
    for operation in state.operations.iter() {
        let row = encode("operations", operation.as_ref())?;
        operations.insert(operation.operation_id, row.as_slice())?;
    }
    let mut sessions = txn.open_table(SESSIONS)?;
    for session in state.sessions.iter() {
        sessions.insert(session.client, encode("sessions", session)?.as_slice())?;
    }
    Ok(())
}

/// The state as bytes.
pub(super) fn to_bytes(state: &ClusterState) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    let mut put = |record: Record| -> Result<(), StoreError> {
        bytes.extend(encode("snapshot", &record)?);
        bytes.push(b'\n');
        Ok(())
    };
    put(Record::Cluster(state.cluster.clone()))?;
    for node in state.nodes.iter() {
        put(Record::Node(Node::clone(node)))?;
    }
    for shard in state.shards.iter() {
        put(Record::Shard(Shard::clone(shard)))?;
    }
    for operation in state.operations.iter() {
        put(Record::Operation(Operation::clone(operation)))?;
    }
    for session in state.sessions.iter() {
        put(Record::Session(session.clone()))?;
    }
    Ok(bytes)
}

/// The state from its bytes.
pub(super) fn from_bytes(bytes: &[u8]) -> Result<ClusterState, StoreError> {
    let mut state = ClusterState::default();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match decode("snapshot", line)? {
            Record::Cluster(cluster) => state.cluster = cluster,
            Record::Node(node) => state.nodes.put(node),
            Record::Shard(shard) => state.shards.put(shard),
            Record::Operation(operation) => state.operations.put(operation),
            Record::Session(session) => state.sessions.put(session),
        }
    }
    Ok(state)
}

/// The current snapshot, if there is one.
pub(super) fn current(txn: &ReadTransaction) -> Result<Option<Snapshot>, StoreError> {
    let Some(stored) = get_meta::<Stored>(txn, keys::SNAPSHOT)? else { return Ok(None) };
    let table = txn.open_table(SNAPSHOT)?;
    let mut bytes = Vec::new();
    for part in 0..stored.parts {
        let row = table.get((stored.slot, part))?;
        let row = row.ok_or_else(|| StoreError::Record {
            table: "snapshot",
            reason: format!("part {part} is missing"),
        })?;
        bytes.extend_from_slice(row.value());
    }
    Ok(Some(Snapshot { meta: stored.meta, snapshot: Box::new(bytes) }))
}

/// Builds snapshots, one at a time; cheap to clone.
#[derive(Clone)]
pub(crate) struct SnapshotStore {
    db: Database,
    turn: Arc<Mutex<()>>,
}

impl SnapshotStore {
    pub(super) fn new(db: Database) -> Self {
        Self { db, turn: Arc::default() }
    }

    /// Stores a snapshot as the current one, and `install`s its state in the same transaction that
    /// makes it so.
    pub(super) async fn put(
        &self,
        meta: SnapshotMeta,
        bytes: &[u8],
        install: Option<(ClusterState, Applied)>,
    ) -> Result<(), StoreError> {
        let _turn = self.turn.lock().await;
        let known = self.db.read(|txn| get_meta::<Stored>(txn, keys::SNAPSHOT)).await?;
        let newer = known.as_ref().is_some_and(|known| known.meta.last_log_id > meta.last_log_id);
        if newer && install.is_none() {
            return Ok(());
        }
        let slot = known.map_or(0, |known| known.slot + 1);
        let mut parts = 0;
        for part in bytes.chunks(PART_BYTES) {
            let (part, key) = (part.to_vec(), (slot, parts));
            let write = self.db.write(Durability::None, move |txn| {
                txn.open_table(SNAPSHOT)?.insert(key, part.as_slice())?;
                Ok(())
            });
            write.await?;
            parts += 1;
        }
        let stored = Stored { meta, slot, parts };
        let finish = self.db.write(Durability::Immediate, move |txn| {
            put_meta(txn, keys::SNAPSHOT, &stored)?;
            txn.open_table(SNAPSHOT)?.retain(|key, _| key.0 == slot)?;
            if let Some((state, applied)) = install {
                store(txn, &state, &applied)?;
            }
            Ok(())
        });
        finish.await
    }

    async fn build(&self) -> Result<Snapshot, StoreError> {
        let read = self.db.read(|txn| {
            let (state, applied) = load(txn)?;
            Ok((to_bytes(&state)?, applied))
        });
        let (bytes, applied) = read.await?;
        let index = applied.last.map_or(0, |id| id.index);
        let term = applied.last.map_or(0, |id| id.leader_id.term);
        let meta = SnapshotMeta {
            last_log_id: applied.last,
            last_membership: applied.membership,
            snapshot_id: format!("{term}-{index}-{:x}", rand::random::<u64>()),
        };
        self.put(meta.clone(), &bytes, None).await?;
        Ok(Snapshot { meta, snapshot: Box::new(bytes) })
    }
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotStore {
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        self.build()
            .await
            .map_err(|error| IoError::write_snapshot(None, AnyError::new(&error)).into())
    }
}
