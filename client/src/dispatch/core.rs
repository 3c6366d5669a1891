//! [`Core`]: what all calls of a dispatcher share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::channel_pool::ChannelPool;
use crate::config::Config;
use crate::retry::Jitter;
use crate::routes::{RouteSource, RouteTable};

/// Routes, connections, and the bound on calls under way.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) table: RouteTable,
    pub(crate) pool: ChannelPool,
    pub(crate) jitter: Jitter,
    /// One permit per single call; streams are bounded where they are held.
    pub(crate) in_flight: Semaphore,
}

impl Core {
    pub(crate) fn new(config: &Config, pool: ChannelPool, source: Arc<dyn RouteSource>) -> Self {
        let jitter = Jitter::new(config.seed);
        Self {
            table: RouteTable::new(source, jitter.clone()),
            pool,
            jitter,
            in_flight: Semaphore::new(config.max_in_flight.clamp(1, Semaphore::MAX_PERMITS)),
        }
    }
}
