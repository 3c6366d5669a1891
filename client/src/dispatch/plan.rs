//! [`Plan`]: route, send, and what to do after a failure.
//!
//! Invariants: everything ends at the deadline; redirects to newer shards are followed at once, but
//! not for ever; who sends us back to what is older than we know lags, and is given time; after some
//! rounds the routers are asked for at least the version that was spoken of.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vmemkv_proto::ErrorKind;
use vmemkv_proto::v1::routing_error::Kind;

use super::core::Core;
use super::failure::Failure;
use crate::channel_pool::Connection;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::retry::{Cause, Retry};
use crate::routes::Route;

/// Redirects that are followed without a wait.
const FREE_REDIRECTS: u32 = 4;
/// After this many rounds without news the routers are asked.
const ROUNDS_BEFORE_REFRESH: u32 = 3;
/// How long the routers may take then; the next round comes anyway.
const REFRESH_PATIENCE: Duration = Duration::from_secs(2);

/// The attempts of one call, or of one step of a stream.
#[derive(Debug)]
pub(crate) struct Plan {
    core: Arc<Core>,
    retry: Retry,
    deadline: Deadline,
    write: bool,
    redirects: u32,
    rounds: u32,
    /// The last failure after which another attempt was made.
    last: Option<Error>,
}

impl Plan {
    pub(crate) fn new(core: &Arc<Core>, deadline: Deadline, write: bool) -> Self {
        Self {
            core: Arc::clone(core),
            retry: Retry::new(core.jitter.clone()),
            deadline,
            write,
            redirects: 0,
            rounds: 0,
            last: None,
        }
    }

    /// Until when this step may take.
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Another step begins.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    /// Something went well: what comes now is a new matter.
    pub(crate) fn progressed(&mut self) {
        self.retry.reset();
        self.redirects = 0;
        self.rounds = 0;
        self.last = None;
    }

    /// The route for a key; look-ups that fail are retried.
    pub(crate) async fn route(&mut self, key: &Bytes) -> Result<Arc<Route>> {
        loop {
            if let Some(route) = self.core.table.cached(key) {
                return Ok(route);
            }
            let error = match self.core.table.route(key, self.deadline).await {
                Ok(route) => return Ok(route),
                Err(error) => error,
            };
            let failure = Failure::of_wire(&error.to_wire(), false);
            let Some(cause) = failure.cause() else { return Err(self.verdict(error)) };
            self.wait(cause, failure.retry_after(), error).await?;
        }
    }

    /// A connection along a route. An error means that nothing was sent.
    pub(crate) async fn connect(&self, route: &Route) -> Result<Connection, Failure> {
        let connected = self.core.pool.get(&route.shard().address, self.deadline).await;
        connected.map_err(|error| {
            self.core.table.unreachable(&route.shard().address);
            Failure::not_sent(error)
        })
    }

    /// What follows a failure: returns once another attempt may be made, or with the error.
    pub(crate) async fn after(
        &mut self,
        key: &Bytes,
        route: &Route,
        failure: &Failure,
    ) -> Result<()> {
        let Some(cause) = failure.cause().filter(|_| failure.may_retry(self.write)) else {
            return Err(self.verdict(failure.error().clone()));
        };
        self.last = Some(failure.error().clone());
        if let Some(routing) = failure.routing() {
            self.core.table.learn(&routing.shards, routing.map_version);
        }
        let known = self.core.table.cached(key);
        let newer = known.is_some_and(|known| known.differs(route));
        if newer && self.redirects < FREE_REDIRECTS {
            self.redirects += 1;
            return Ok(());
        }
        self.rounds += 1;
        self.wait(cause, failure.retry_after(), failure.error().clone()).await?;
        if !newer && self.asks_routers(failure) {
            let version = failure.routing().map_or(0, |routing| routing.map_version);
            let version = version.max(route.version());
            let patience = self.deadline.min(Deadline::within(REFRESH_PATIENCE));
            let asked = self.core.table.refresh(route, key, version, patience).await;
            if let Err(error) = asked {
                tracing::debug!(%error, "no newer route");
            }
        }
        Ok(())
    }

    /// What to tell of an error that ends it all: of a lack of time for another attempt, why the one
    /// before had failed.
    fn verdict(&self, error: Error) -> Error {
        let late = error.kind() == ErrorKind::DeadlineExceeded && !error.is_unknown();
        self.last.clone().filter(|_| late).unwrap_or(error)
    }

    fn asks_routers(&self, failure: &Failure) -> bool {
        // Somebody else answers at this address, and does not know who should.
        let stranger = failure.routing().is_some_and(|routing| {
            routing.shards.is_empty()
                && matches!(routing.kind(), Kind::WrongNode | Kind::WrongShard)
        });
        stranger || failure.is_broken() || self.rounds.is_multiple_of(ROUNDS_BEFORE_REFRESH)
    }

    /// Waits as the cause's curve says, or gives up with the error.
    async fn wait(&mut self, cause: Cause, asked: Option<Duration>, error: Error) -> Result<()> {
        match self.retry.next(cause, asked, self.deadline) {
            Some(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            None => Err(error),
        }
    }
}
