//! Which keys this node may serve, and until when.
//!
//! Invariants: no data is touched without an [`Admission`]; one is given only while the lease
//! lasts, and only for keys of shards that the node owns, has, and has confirmed; an admission is
//! held until the engine has applied the write or read the value, so that whoever changes the table
//! can wait until the old one is held by nobody.

mod lease;
mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::v1::{RouteHint, RoutingError, routing_error};
use vmemkv_proto::{ApiError, ErrorKind, v1};

pub(crate) use lease::Lease;
pub(crate) use table::{OwnedShard, ShardState, ShardTable};

use crate::clock::Clock;

/// How long a caller should wait when there is no lease.
const NO_LEASE_RETRY_MS: u64 = 500;

/// The shards of this node and its lease.
pub(crate) struct Ownership {
    clock: Arc<dyn Clock>,
    lease: Lease,
    table: ArcSwap<ShardTable>,
    /// Held by whoever makes a new table out of the old one, or out of what the engine has.
    changing: Mutex<()>,
}

/// The right to touch the data that it was asked for, while it is held.
#[derive(Clone)]
pub(crate) struct Admission {
    table: Arc<ShardTable>,
}

impl Ownership {
    /// No shards and no lease.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            lease: Lease::default(),
            table: ArcSwap::default(),
            changing: Mutex::default(),
        }
    }

    /// The clock that leases are counted in.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The shards as they are now.
    pub(crate) fn table(&self) -> Arc<ShardTable> {
        self.table.load_full()
    }

    /// Keeps the table as it is for all others until it is dropped: what the next table is made from
    /// is read and replaced under it. Never held across an await.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        // A panic under it has not replaced the table: the old one is whole.
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the shards; see [`Ownership::change`].
    pub(crate) fn set_table(&self, table: ShardTable) {
        self.table.store(Arc::new(table));
    }

    /// A router has granted `lease_ms`, counted from `sent`.
    pub(crate) fn renew(&self, sent: Duration, lease_ms: u64) {
        self.lease.renew(sent, Duration::from_millis(lease_ms));
    }

    /// A router has refused this run: nothing is served until one grants a lease again.
    pub(crate) fn end_lease(&self) {
        self.lease.end();
    }

    /// Whether the lease lasts.
    pub(crate) fn has_lease(&self) -> bool {
        self.lease.is_valid(self.clock.now())
    }

    /// How long the lease lasts.
    pub(crate) fn lease_left(&self) -> Duration {
        self.lease.left(self.clock.now())
    }

    /// The right to use the shards of this node; which keys, the admission says.
    pub(crate) fn admit(&self) -> Result<Admission, ApiError> {
        let table = self.table.load_full();
        if table.node_id() == 0 {
            return Err(not_serving("this server is not registered with a router yet", &table));
        }
        self.require_lease()?;
        Ok(Admission { table })
    }

    /// The right to one key.
    pub(crate) fn admit_key(
        &self,
        key: &[u8],
        hint: Option<&RouteHint>,
    ) -> Result<Admission, ApiError> {
        let admission = self.admit()?;
        admission.table.check_key(key, hint)?.count(1);
        Ok(admission)
    }

    /// The right to all keys of a range.
    pub(crate) fn admit_range(
        &self,
        range: &KeyRange,
        hint: Option<&RouteHint>,
    ) -> Result<Admission, ApiError> {
        let admission = self.admit()?;
        admission.table.check_range(range, hint)?;
        Ok(admission)
    }

    /// Checks the lease once more, right before something is done.
    pub(crate) fn require_lease(&self) -> Result<(), ApiError> {
        if self.has_lease() {
            return Ok(());
        }
        let table = self.table.load();
        Err(not_serving("this server has no lease: no router has renewed it", &table))
    }

    /// Checks the lease again before an answer leaves. What was done is not undone: the outcome of
    /// a write is unknown to its caller then, so the error is no refusal: it names no shards,
    /// since a routing detail says that nothing was done.
    pub(crate) fn still_leased(&self) -> Result<(), ApiError> {
        if self.has_lease() {
            return Ok(());
        }
        let message = "the lease of this server ended meanwhile";
        Err(ApiError::new(ErrorKind::Unavailable, message).with_retry_after_ms(NO_LEASE_RETRY_MS))
    }
}

impl Admission {
    /// Checks one key of a frame with several route hints.
    pub(crate) fn check_key_of_frame(
        &self,
        key: &[u8],
        routes: &[RouteHint],
    ) -> Result<(), ApiError> {
        self.table.check_key_of_frame(key, routes).map(|shard| shard.count(1))
    }
}

fn not_serving(message: &str, table: &ShardTable) -> ApiError {
    let routing = RoutingError {
        kind: routing_error::Kind::NotServing as i32,
        map_version: table.map_version(),
        shards: Vec::<v1::Shard>::new(),
    };
    ApiError::misrouted(message, routing).with_retry_after_ms(NO_LEASE_RETRY_MS)
}

#[cfg(test)]
mod ownership_test;
