//! [`Dispatcher`]: sends messages of the API to whom they belong.
//!
//! It fills in who is meant, follows redirects, retries what may be retried, and puts together what
//! several shards answer. The client and the router's proxy both stand on it. Invariants: requests
//! are checked as a server would before anything is sent; fields that this release does not know what
//! to do with (expiry, request ids, atomic batches) are passed on, so that the server refuses them;
//! errors keep what the server said. A hint that a request brings is replaced: routes are ours.

mod batch;
pub(crate) mod core;
pub(crate) mod failure;
mod frame;
mod gate;
mod plan;
mod position;
mod range;
mod scan;
mod unary;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use vmemkv_proto::check::{check_batch_get, check_batch_put, check_key};
use vmemkv_proto::convert::{Delete, Put, Scan};
use vmemkv_proto::v1;

pub use self::batch::{BatchGetAnswers, BatchPutAnswers};
use self::core::Core;
pub(crate) use self::failure::Failure;
pub use self::gate::{GateGuard, KeyGate};
pub use self::scan::ScanChunks;
pub use self::watch::WatchEvents;
use crate::channel_pool::ChannelPool;
use crate::config::Config;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::routes::RouteSource;

/// Sends messages of the API to whom they belong. Clones share connections and routes.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    core: Arc<Core>,
}

/// What a dispatcher works with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DispatcherOptions {
    /// Single calls under way at once; others wait.
    pub max_in_flight: usize,
    /// Connections to each node.
    pub connections_per_node: usize,
    /// What it calls itself in servers' logs.
    pub user_agent: String,
    /// Seeds what is random.
    pub seed: Option<u64>,
}

impl Default for DispatcherOptions {
    fn default() -> Self {
        let config = Config::default();
        Self {
            max_in_flight: config.max_in_flight,
            connections_per_node: config.connections_per_node,
            user_agent: config.user_agent,
            seed: config.seed,
        }
    }
}

impl Dispatcher {
    /// A dispatcher that learns routes from `source`; call it within a runtime.
    pub fn new(source: Arc<dyn RouteSource>, options: DispatcherOptions) -> Self {
        let config = Config {
            max_in_flight: options.max_in_flight,
            connections_per_node: options.connections_per_node,
            user_agent: options.user_agent,
            seed: options.seed,
            ..Config::default()
        };
        let pool = ChannelPool::new(&config);
        Self::with_pool(&config, pool, source)
    }

    pub(crate) fn with_pool(
        config: &Config,
        pool: ChannelPool,
        source: Arc<dyn RouteSource>,
    ) -> Self {
        Self { core: Arc::new(Core::new(config, pool, source)) }
    }

    /// Reads one key.
    pub async fn get(
        &self,
        request: v1::GetRequest,
        deadline: Deadline,
    ) -> Result<v1::GetResponse> {
        check_key("key", &request.key)?;
        unary::call(&self.core, request, deadline, |_, _| {}).await
    }

    /// Writes one key.
    pub async fn put(
        &self,
        request: v1::PutRequest,
        deadline: Deadline,
    ) -> Result<v1::PutResponse> {
        Put::try_from(request.clone())?;
        unary::call(&self.core, request, deadline, |_, _| {}).await
    }

    /// Removes one key.
    pub async fn delete(
        &self,
        request: v1::DeleteRequest,
        deadline: Deadline,
    ) -> Result<v1::DeleteResponse> {
        Delete::try_from(request.clone())?;
        unary::call(&self.core, request, deadline, |_, _| {}).await
    }

    /// Adds to an integer.
    pub async fn increment(
        &self,
        request: v1::IncrementRequest,
        deadline: Deadline,
    ) -> Result<v1::IncrementResponse> {
        check_key("key", &request.key)?;
        unary::call(&self.core, request, deadline, |_, _| {}).await
    }

    /// Removes the first part of a range; `covered_to` says how far that went.
    pub async fn delete_range(
        &self,
        request: v1::DeleteRangeRequest,
        deadline: Deadline,
    ) -> Result<v1::DeleteRangeResponse> {
        range::delete_step(&self.core, request, deadline).await
    }

    /// Removes a range, or what can be done of it before `deadline`: an answer that is not `done`
    /// says how far that went.
    pub async fn delete_whole_range(
        &self,
        request: v1::DeleteRangeRequest,
        deadline: Deadline,
    ) -> Result<v1::DeleteRangeResponse> {
        range::delete_all(&self.core, request, deadline).await
    }

    /// The checksum of a range; `step` bounds the time for each shard.
    pub async fn checksum(
        &self,
        request: v1::ChecksumRequest,
        deadline: Deadline,
        step: Duration,
    ) -> Result<v1::ChecksumResponse> {
        range::checksum(&self.core, request, deadline, step).await
    }

    /// Reads a range; `step` bounds the time to each answer that is waited for.
    pub fn scan(&self, request: v1::ScanRequest, deadline: Deadline, step: Duration) -> ScanChunks {
        match Scan::try_from(request) {
            Ok(scan) => ScanChunks::new(&self.core, scan, deadline, step),
            Err(refused) => ScanChunks::failed(refused.into()),
        }
    }

    /// Follows the changes of a range.
    pub async fn watch(
        &self,
        request: v1::WatchRequest,
        deadline: Deadline,
    ) -> Result<WatchEvents> {
        watch::start(&self.core, request, deadline).await
    }

    /// Reads the keys of one frame; the answers come in order and carry its id. `step` bounds the
    /// time to each result that is waited for.
    pub async fn batch_get(
        &self,
        request: v1::BatchGetRequest,
        deadline: Deadline,
        step: Duration,
    ) -> Result<BatchGetAnswers> {
        check_batch_get(&request)?;
        Ok(BatchGetAnswers::start(&self.core, request, deadline, step).await)
    }

    /// Does the writes of one frame; the answers come in order and carry its id. Writes of frames
    /// that run at once are in no order: a [`KeyGate`] keeps frames that share keys apart.
    pub async fn batch_put(
        &self,
        request: v1::BatchPutRequest,
        deadline: Deadline,
        step: Duration,
    ) -> Result<BatchPutAnswers> {
        check_batch_put(&request)?;
        Ok(BatchPutAnswers::start(&self.core, request, deadline, step).await)
    }

    pub(crate) fn get_stream(
        &self,
        keys: BoxStream<'static, Bytes>,
        step: Duration,
    ) -> BoxStream<'static, v1::BatchGetResult> {
        batch::get_stream(&self.core, keys, step)
    }

    pub(crate) fn put_stream(
        &self,
        operations: BoxStream<'static, v1::BatchOperation>,
        step: Duration,
    ) -> BoxStream<'static, v1::BatchPutResult> {
        batch::put_stream(&self.core, operations, step)
    }
}
