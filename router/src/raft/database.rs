//! The one file of a router: a redb database in its data directory.
//!
//! Invariants: a file that is not a router's, or of a newer format, is never written to; a new file
//! appears under its name only once it is complete; two processes never have it open at once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{
    DatabaseError, Durability, ReadTransaction, ReadableDatabase as _, TableDefinition,
    WriteTransaction,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::error::{Error, Result};

/// The file in the data directory.
const FILE: &str = "router.redb";
/// The file while it is made.
const NEW_FILE: &str = "router.redb.new";
/// What the file says about itself.
const KIND: &str = "vmemkv-router";
/// The format that this release writes, and the newest that it reads.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Memory for cached pages.
const CACHE_BYTES: usize = 64 << 20;

/// One row per thing of which there is one: see the `keys`.
pub(super) const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
/// The Raft log, by index.
pub(super) const LOG: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("log");
/// The state's nodes, by id.
pub(super) const NODES: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("nodes");
/// The state's shards, by id.
pub(super) const SHARDS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("shards");
/// The state's operations, by id.
pub(super) const OPERATIONS: TableDefinition<'static, u64, &[u8]> =
    TableDefinition::new("operations");
/// The state's sessions, by client.
pub(super) const SESSIONS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("sessions");
/// Parts of the snapshot, by slot and number.
pub(super) const SNAPSHOT: TableDefinition<'static, (u64, u64), &[u8]> =
    TableDefinition::new("snapshot");

/// The rows of [`META`].
pub(super) mod keys {
    pub(in crate::raft) const FORMAT: &str = "format";
    pub(in crate::raft) const ROUTER_ID: &str = "router_id";
    pub(in crate::raft) const VOTE: &str = "vote";
    pub(in crate::raft) const COMMITTED: &str = "committed";
    pub(in crate::raft) const PURGED: &str = "purged";
    pub(in crate::raft) const APPLIED: &str = "applied";
    pub(in crate::raft) const CLUSTER: &str = "cluster";
    pub(in crate::raft) const SNAPSHOT: &str = "snapshot";
}

#[derive(Debug, Serialize, Deserialize)]
struct Format {
    kind: String,
    version: u32,
}

/// Why the database did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Redb(#[from] redb::Error),
    /// A record cannot be read.
    #[error("a record of {table} cannot be read: {reason}")]
    Record {
        /// Where it is.
        table: &'static str,
        /// What is wrong.
        reason: String,
    },
}

macro_rules! from_redb {
    ($($kind:ident),*) => {
        $(impl From<redb::$kind> for StoreError {
            fn from(error: redb::$kind) -> Self {
                Self::Redb(error.into())
            }
        })*
    };
}
from_redb!(TransactionError, TableError, StorageError, CommitError, SetDurabilityError);

/// The open database; cheap to clone. Every call may wait for the disk: from async code use
/// [`Database::write`] and [`Database::read`], which wait on a thread of their own.
#[derive(Clone)]
pub(crate) struct Database {
    open: Arc<Open>,
    path: PathBuf,
    router_id: u64,
}

/// The file, and who wants to know when it is closed.
struct Open {
    db: redb::Database,
    /// Dropped after the database: its end says that the file is closed.
    closed: watch::Sender<()>,
}

/// Sees when a database is closed, without keeping it open.
#[derive(Clone)]
pub(super) struct Closing {
    closed: watch::Receiver<()>,
}

impl Closing {
    /// Returns once nothing has the file open.
    pub(super) async fn wait(&mut self) {
        while self.closed.changed().await.is_ok() {}
    }
}

impl Database {
    /// Opens the data directory, or makes it. `fresh_id` becomes the router's id if it is new.
    pub(crate) fn open(dir: &Path, fresh_id: u64) -> Result<Self> {
        let path = dir.join(FILE);
        let exists = path.try_exists().map_err(|error| storage(dir, &error))?;
        if !exists {
            create(dir, &path, fresh_id)?;
        }
        let db = redb::Database::builder()
            .set_cache_size(CACHE_BYTES)
            .open(&path)
            .map_err(|error| open_error(dir, &path, error))?;
        let open = Arc::new(Open { db, closed: watch::Sender::new(()) });
        let mut database = Self { open, path, router_id: 0 };
        database.check_format(dir)?;
        let router_id = database
            .begin_read()
            .and_then(|txn| get_meta::<u64>(&txn, keys::ROUTER_ID))
            .map_err(|error| storage(dir, &error))?;
        database.router_id = router_id.ok_or_else(|| storage(dir, &"it has no router id"))?;
        Ok(database)
    }

    /// The router's id, made with the data directory.
    pub(crate) fn router_id(&self) -> u64 {
        self.router_id
    }

    /// Sees when it is closed.
    pub(super) fn closing(&self) -> Closing {
        Closing { closed: self.open.closed.subscribe() }
    }

    /// Where the database is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs one transaction on a thread that may wait; durable on return if that is asked for.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        write: impl FnOnce(&WriteTransaction) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let this = self.clone();
        blocking(move || this.write_now(durability, write)).await
    }

    /// Reads one consistent view on a thread that may wait.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let this = self.clone();
        blocking(move || read(&this.begin_read()?)).await
    }

    /// As [`Database::write`], on this thread.
    pub(super) fn write_now<T>(
        &self,
        durability: Durability,
        write: impl FnOnce(&WriteTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut txn = self.open.db.begin_write()?;
        txn.set_durability(durability)?;
        let value = write(&txn)?;
        txn.commit()?;
        Ok(value)
    }

    /// One consistent view.
    pub(super) fn begin_read(&self) -> Result<ReadTransaction, StoreError> {
        Ok(self.open.db.begin_read()?)
    }

    fn check_format(&self, dir: &Path) -> Result<()> {
        let foreign = |reason: String| Error::ForeignData { path: dir.to_owned(), reason };
        let format = self.begin_read().and_then(|txn| get_meta::<Format>(&txn, keys::FORMAT));
        let format = match format {
            Ok(Some(format)) => format,
            Ok(None) => return Err(foreign(format!("{FILE} does not say what it is"))),
            Err(error) => return Err(foreign(format!("{FILE}: {error}"))),
        };
        if format.kind != KIND {
            return Err(foreign(format!("{FILE} is of kind {:?}", format.kind)));
        }
        if format.version > FORMAT_VERSION {
            return Err(Error::NewerFormat {
                path: dir.to_owned(),
                found: format.version,
                supported: FORMAT_VERSION,
            });
        }
        Ok(())
    }
}

/// Makes a complete new file, and only then gives it its name.
fn create(dir: &Path, path: &Path, router_id: u64) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| storage(dir, &error))?;
    let new_path = dir.join(NEW_FILE);
    for entry in std::fs::read_dir(dir).map_err(|error| storage(dir, &error))? {
        let name = entry.map_err(|error| storage(dir, &error))?.file_name();
        if name != NEW_FILE && name != "lost+found" {
            let reason = format!("it holds {} and no {FILE}", name.display());
            return Err(Error::ForeignData { path: dir.to_owned(), reason });
        }
    }
    let make = || -> Result<(), StoreError> {
        let db = redb::Database::create(&new_path).map_err(redb::Error::from)?;
        let txn = db.begin_write()?;
        put_meta(&txn, keys::FORMAT, &Format { kind: KIND.to_owned(), version: FORMAT_VERSION })?;
        put_meta(&txn, keys::ROUTER_ID, &router_id)?;
        txn.open_table(LOG)?;
        for table in [NODES, SHARDS, OPERATIONS, SESSIONS] {
            txn.open_table(table)?;
        }
        txn.open_table(SNAPSHOT)?;
        txn.commit()?;
        Ok(())
    };
    make().map_err(|error| match error {
        StoreError::Redb(redb::Error::DatabaseAlreadyOpen) => Error::DataInUse(dir.to_owned()),
        error => storage(dir, &error),
    })?;
    let publish = || -> io::Result<()> {
        std::fs::rename(&new_path, path)?;
        std::fs::File::open(dir)?.sync_all()
    };
    publish().map_err(|error| storage(dir, &error))
}

fn open_error(dir: &Path, path: &Path, error: DatabaseError) -> Error {
    let foreign = |reason: String| Error::ForeignData { path: dir.to_owned(), reason };
    match error {
        DatabaseError::DatabaseAlreadyOpen => Error::DataInUse(dir.to_owned()),
        DatabaseError::UpgradeRequired(version) => {
            foreign(format!("{FILE} is a store of the old version {version}"))
        }
        DatabaseError::Storage(redb::StorageError::Io(error))
            if error.kind() == io::ErrorKind::InvalidData =>
        {
            foreign(format!("{FILE} is not a store: {error}"))
        }
        error => storage(path, &error),
    }
}

fn storage(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::Storage { path: path.to_owned(), reason: error.to_string() }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        let reason = format!("the work on it ended early: {error}");
        Err(StoreError::Record { table: FILE, reason })
    })
}

/// Reads a record.
pub(super) fn decode<T: DeserializeOwned>(
    table: &'static str,
    bytes: &[u8],
) -> Result<T, StoreError> {
    serde_json::from_slice(bytes)
        .map_err(|error| StoreError::Record { table, reason: error.to_string() })
}

/// The bytes of a record.
pub(super) fn encode<T: Serialize>(table: &'static str, value: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value)
        .map_err(|error| StoreError::Record { table, reason: error.to_string() })
}

/// Reads a row of [`META`].
pub(super) fn get_meta<T: DeserializeOwned>(
    txn: &ReadTransaction,
    key: &'static str,
) -> Result<Option<T>, StoreError> {
    let row = txn.open_table(META)?.get(key)?;
    row.map(|row| decode(key, row.value())).transpose()
}

/// Writes a row of [`META`].
pub(super) fn put_meta<T: Serialize>(
    txn: &WriteTransaction,
    key: &'static str,
    value: &T,
) -> Result<(), StoreError> {
    txn.open_table(META)?.insert(key, encode(key, value)?.as_slice())?;
    Ok(())
}
