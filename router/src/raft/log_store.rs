//! Raft's log and vote, in the router's database.
//!
//! Invariants: every write is durable before it is reported; writes are in the order of the calls
//! (one caller, each call awaited); the log has no hole: purging moves its start, truncating its
//! end.

use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{AnyError, LogState, OptionalSend, RaftLogReader};
use redb::{Durability, ReadableTable as _};

use super::database::{Database, LOG, META, StoreError, decode, encode, get_meta, keys, put_meta};
use super::types::{Entry, IoError, LogId, StorageError, TypeConfig, Vote};

/// The log and the vote; cheap to clone.
#[derive(Clone)]
pub(crate) struct LogStore {
    db: Database,
}

impl LogStore {
    pub(crate) fn new(db: Database) -> Self {
        Self { db }
    }
}

/// The bounds of a range, to be moved to another thread.
fn bounds(range: &impl RangeBounds<u64>) -> (Bound<u64>, Bound<u64>) {
    (range.start_bound().cloned(), range.end_bound().cloned())
}

fn read_logs(error: &StoreError) -> StorageError {
    IoError::read_logs(AnyError::new(error)).into()
}

fn write_logs(error: &StoreError) -> StorageError {
    IoError::write_logs(AnyError::new(error)).into()
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        let range = bounds(&range);
        let read = self.db.read(move |txn| {
            let mut entries = Vec::new();
            for row in txn.open_table(LOG)?.range(range)? {
                entries.push(decode("log", row?.1.value())?);
            }
            Ok(entries)
        });
        read.await.map_err(|error| read_logs(&error))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        let read = self.db.read(|txn| {
            let purged: Option<LogId> = get_meta(txn, keys::PURGED)?;
            let table = txn.open_table(LOG)?;
            let last: Option<Entry> =
                table.last()?.map(|(_, row)| decode("log", row.value())).transpose()?;
            Ok(LogState {
                last_purged_log_id: purged,
                last_log_id: last.map(|entry| entry.log_id).or(purged),
            })
        });
        read.await.map_err(|error| read_logs(&error))
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let vote = *vote;
        let write =
            self.db.write(Durability::Immediate, move |txn| put_meta(txn, keys::VOTE, &vote));
        write.await.map_err(|error| IoError::write_vote(AnyError::new(&error)).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        let read = self.db.read(|txn| get_meta(txn, keys::VOTE));
        read.await.map_err(|error| IoError::read_vote(AnyError::new(&error)).into())
    }

    /// Durable before the entries are applied: the state machine is durable a little later, and a
    /// restart applies again up to here, so that nothing that was seen is taken back.
    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let write = self
            .db
            .write(Durability::Immediate, move |txn| put_meta(txn, keys::COMMITTED, &committed));
        write.await.map_err(|error| write_logs(&error))
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        let read = self.db.read(|txn| get_meta::<Option<LogId>>(txn, keys::COMMITTED));
        read.await.map(Option::flatten).map_err(|error| read_logs(&error))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<TypeConfig>,
    ) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let write = self.db.write(Durability::Immediate, move |txn| {
            let mut table = txn.open_table(LOG)?;
            for entry in &entries {
                table.insert(entry.log_id.index, encode("log", entry)?.as_slice())?;
            }
            Ok(())
        });
        match write.await {
            Ok(()) => {
                callback.log_io_completed(Ok(()));
                Ok(())
            }
            Err(error) => {
                let io = std::io::Error::other(error.to_string());
                callback.log_io_completed(Err(io));
                Err(write_logs(&error))
            }
        }
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let write = self.db.write(Durability::Immediate, move |txn| {
            Ok(txn.open_table(LOG)?.retain_in(log_id.index.., |_, _| false)?)
        });
        write.await.map_err(|error| write_logs(&error))
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let write = self.db.write(Durability::Immediate, move |txn| {
            let known = match txn.open_table(META)?.get(keys::PURGED)? {
                Some(row) => Some(decode::<LogId>(keys::PURGED, row.value())?),
                None => None,
            };
            if known < Some(log_id) {
                put_meta(txn, keys::PURGED, &log_id)?;
            }
            Ok(txn.open_table(LOG)?.retain_in(..=log_id.index, |_, _| false)?)
        });
        write.await.map_err(|error| write_logs(&error))
    }
}
