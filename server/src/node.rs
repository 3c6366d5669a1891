//! What all parts of a running server share.
//!
//! Invariants: the engine is reached only through [`Node::engine`], so that a shutdown can take it
//! away and close it; nobody keeps it across an await on a client.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use vmemkv_engine::{Engine, Lsn};
use vmemkv_proto::ApiError;
use vmemkv_proto::internal::v1::SplitCandidate;

use crate::clock::Clock;
use crate::config::Config;
use crate::engine_error::{self, Effect};
use crate::io_pool::{self, IoPool};
use crate::metrics::Metrics;
use crate::orders::Orders;
use crate::ownership::Ownership;
use crate::server::{Registration, SetLogFilter};

/// The shared state of a server.
pub(crate) struct Node {
    /// The configuration.
    pub(crate) config: Config,
    /// Where clients and routers reach this server.
    pub(crate) address: String,
    /// Where HTTP is served, HOST:PORT.
    pub(crate) http_address: String,
    engine: ArcSwapOption<Engine>,
    opened_at: Instant,
    /// What this node may serve.
    pub(crate) ownership: Ownership,
    /// What routers have ordered.
    pub(crate) orders: Arc<Orders>,
    /// Shards above their size limit, as last found.
    pub(crate) split_candidates: Mutex<Vec<SplitCandidate>>,
    /// Where work runs that may block.
    pub(crate) pool: IoPool,
    /// Counters.
    pub(crate) metrics: Metrics,
    /// Cancelled when a shutdown begins: open streams end, new calls are refused.
    pub(crate) stopping: CancellationToken,
    /// Where the server is with its cluster.
    pub(crate) registration: watch::Sender<Registration>,
    /// Serves `SetLogLevel`.
    pub(crate) set_log_filter: Option<SetLogFilter>,
}

impl Node {
    /// A node whose engine is not open yet.
    pub(crate) fn new(
        config: Config,
        address: String,
        http_address: String,
        clock: Arc<dyn Clock>,
        set_log_filter: Option<SetLogFilter>,
    ) -> Self {
        let pool = IoPool::new(config.io_threads);
        Self {
            config,
            address,
            http_address,
            engine: ArcSwapOption::empty(),
            opened_at: Instant::now(),
            ownership: Ownership::new(clock),
            orders: Arc::default(),
            split_candidates: Mutex::default(),
            pool,
            metrics: Metrics::new(),
            stopping: CancellationToken::new(),
            registration: watch::Sender::new(Registration::Waiting { reason: String::new() }),
            set_log_filter,
        }
    }

    /// Makes the engine reachable.
    pub(crate) fn set_engine(&self, engine: Engine) {
        self.engine.store(Some(Arc::new(engine)));
    }

    /// Takes the engine away; whoever has it still may finish.
    pub(crate) fn take_engine(&self) -> Option<Arc<Engine>> {
        self.engine.swap(None)
    }

    /// The engine, if it is open.
    pub(crate) fn engine(&self) -> Result<Arc<Engine>, ApiError> {
        self.engine.load_full().ok_or_else(|| {
            if self.stopping.is_cancelled() {
                io_pool::closing()
            } else {
                ApiError::unavailable("the data directory is still being opened", 1000)
            }
        })
    }

    /// Since the process began to open the data directory.
    pub(crate) fn uptime(&self) -> Duration {
        self.opened_at.elapsed()
    }

    /// The data directory.
    pub(crate) fn data_dir(&self) -> &PathBuf {
        &self.config.data
    }

    /// Waits, without blocking a thread, until the log is durable up to `lsn`.
    pub(crate) async fn durable(
        &self,
        engine: &Engine,
        lsn: Lsn,
        effect: Effect,
    ) -> Result<(), ApiError> {
        if engine.durable_lsn() >= lsn {
            return Ok(());
        }
        let (done, outcome) = tokio::sync::oneshot::channel();
        engine.on_durable(
            lsn,
            Box::new(move |result| {
                // Nobody waits any more: the caller has gone.
                let _ = done.send(result);
            }),
        );
        match outcome.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                Err(engine_error::to_api(&error, effect, self.ownership.table().as_ref()))
            }
            Err(_) => {
                let mut error = io_pool::closing();
                error.not_applied = effect == Effect::None;
                Err(error)
            }
        }
    }
}
