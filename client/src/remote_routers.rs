//! [`RemoteRouters`]: the routers of the cluster as a client reaches them.
//!
//! Owns which one is asked. Invariants: a router that fails is left for the next one; each is tried
//! once per call, the caller retries.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::StreamExt as _;
use tonic::transport::Channel;
use tonic::{Request, Status};
use vmemkv_proto::v1::admin_client::AdminClient;
use vmemkv_proto::v1::kv_client::KvClient;
use vmemkv_proto::v1::router_client::RouterClient;
use vmemkv_proto::{ErrorKind, v1};

use crate::channel_pool::{ChannelPool, Connection};
use crate::deadline::Deadline;
use crate::dispatch::Failure;
use crate::error::{Error, Result};
use crate::limited;
use crate::retry::{Cause, Jitter, Retry};
use crate::routes::{MapUpdates, RouteSource};

/// How long one router may take to answer before the next one is asked.
const PATIENCE: Duration = Duration::from_secs(3);

/// The routers that a client was given.
#[derive(Debug)]
pub(crate) struct RemoteRouters {
    addresses: Vec<String>,
    /// Index of the one that answered last; grows without bound, modulo their number.
    current: AtomicUsize,
    pool: ChannelPool,
    user_deadline: Duration,
}

impl RemoteRouters {
    /// Refuses an empty list of addresses.
    pub(crate) fn new(
        addresses: Vec<String>,
        pool: ChannelPool,
        user_deadline: Duration,
    ) -> Result<Self> {
        if addresses.is_empty() {
            return Err(Error::refused(ErrorKind::InvalidArgument, "addresses: none was given"));
        }
        Ok(Self { addresses, current: AtomicUsize::new(0), pool, user_deadline })
    }

    /// A connection to a router that can be reached.
    pub(crate) async fn channel(&self, deadline: Deadline) -> Result<Channel> {
        self.each(deadline, |connection, _| async move { Ok(connection.channel()) }).await
    }

    /// Waits until a router can be reached.
    pub(crate) async fn reach(&self, deadline: Deadline, jitter: Jitter) -> Result<()> {
        let mut retry = Retry::new(jitter);
        loop {
            let Err(error) = self.channel(deadline).await else { return Ok(()) };
            if error.kind() != ErrorKind::Unavailable {
                return Err(error);
            }
            let Some(wait) = retry.next(Cause::Connect, None, deadline) else {
                return Err(error);
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// What the router at hand is.
    pub(crate) async fn info(&self, deadline: Deadline) -> Result<v1::GetInfoResponse> {
        self.each(deadline, |connection, left| async move {
            let mut client = limited!(KvClient::new(connection.channel()));
            let answer = client.get_info(timed(v1::GetInfoRequest {}, left)).await?;
            Ok(answer.into_inner())
        })
        .await
    }

    /// The cluster at a glance.
    pub(crate) async fn cluster_status(
        &self,
        deadline: Deadline,
    ) -> Result<v1::GetClusterStatusResponse> {
        self.each(deadline, |connection, left| async move {
            let mut client = limited!(AdminClient::new(connection.channel()));
            let request = timed(v1::GetClusterStatusRequest {}, left);
            Ok(client.get_cluster_status(request).await?.into_inner())
        })
        .await
    }

    /// Asks one router after the other until one answers, beginning with the last that did.
    async fn each<T, F, W>(&self, deadline: Deadline, ask: F) -> Result<T>
    where
        F: Fn(Connection, Deadline) -> W,
        W: Future<Output = Result<T, Status>>,
    {
        let mut last = None;
        for _ in 0..self.addresses.len() {
            let index = self.current.load(Ordering::Relaxed);
            let address = &self.addresses[index % self.addresses.len()];
            let left = if self.addresses.len() == 1 {
                deadline
            } else {
                deadline.min(Deadline::within(PATIENCE))
            };
            let failure = match self.pool.get(address, left).await {
                Ok(connection) => match left.bound(ask(connection.clone(), left)).await {
                    Some(Ok(answer)) => return Ok(answer),
                    Some(Err(status)) => {
                        let failure = Failure::of_status(&status, false);
                        if failure.is_broken() {
                            connection.broken();
                        }
                        failure
                    }
                    None => {
                        connection.broken();
                        Failure::not_sent(Deadline::passed(address))
                    }
                },
                Err(error) => Failure::not_sent(error),
            };
            let final_answer = !failure.may_retry(false);
            last = Some(failure.into_error());
            if final_answer || deadline.has_passed() {
                break;
            }
            let next = index.wrapping_add(1);
            let _ =
                self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        Err(last.unwrap_or_else(|| Deadline::passed("router")))
    }
}

#[async_trait]
impl RouteSource for RemoteRouters {
    async fn locate(&self, key: Bytes, min_version: u64) -> Result<v1::LocateResponse> {
        let deadline = Deadline::within(self.user_deadline.min(Duration::from_secs(10)));
        let key = &key;
        self.each(deadline, |connection, left| async move {
            let request = v1::LocateRequest { key: key.clone(), min_version };
            let mut client = limited!(RouterClient::new(connection.channel()));
            Ok(client.locate(timed(request, left)).await?.into_inner())
        })
        .await
        .map_err(explain)
    }

    async fn watch(&self, from_version: u64, cluster_id: u64) -> Result<MapUpdates> {
        let deadline = Deadline::within(PATIENCE);
        let updates = self
            .each(deadline, |connection, _| async move {
                let request = v1::WatchShardMapRequest { from_version, cluster_id };
                let mut client = limited!(RouterClient::new(connection.channel()));
                Ok((client.watch_shard_map(request).await?.into_inner(), connection))
            })
            .await?;
        let (updates, connection) = updates;
        let updates = updates.map(move |update| {
            update.map_err(|status| {
                let failure = Failure::of_status(&status, false);
                if failure.is_broken() {
                    connection.broken();
                }
                failure.into_error()
            })
        });
        Ok(updates.boxed())
    }
}

/// A server that was given instead of a router answers UNIMPLEMENTED: say what is wrong.
fn explain(error: Error) -> Error {
    if error.kind() == ErrorKind::Unimplemented {
        return error.context("the address is not that of a router");
    }
    error
}

/// A request that carries the time that is left.
pub(crate) fn timed<T>(message: T, deadline: Deadline) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(left) = deadline.remaining() {
        request.set_timeout(left);
    }
    request
}
