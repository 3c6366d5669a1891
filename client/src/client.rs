//! [`Client`]: the handle that callers hold.
//!
//! Owns nothing but shared parts; cloning it is cheap, and the last clone that goes ends the watch
//! of the shard map. The calls on keys are in [`crate::request`].

use std::sync::Arc;
use std::time::Duration;

use tonic::transport::Channel;
use vmemkv_proto::v1;

use crate::channel_pool::ChannelPool;
use crate::config::{Addresses, ClientBuilder, Config};
use crate::deadline::Deadline;
use crate::dispatch::Dispatcher;
use crate::error::Result;
use crate::proxy_routes::ProxyRoutes;
use crate::remote_routers::RemoteRouters;
use crate::retry::Jitter;
use crate::routes::RouteSource;

/// A client of a vmemkv cluster. Clones share connections and the shard map.
#[derive(Clone, Debug)]
pub struct Client {
    dispatcher: Dispatcher,
    routers: Arc<RemoteRouters>,
    deadline: Duration,
}

impl Client {
    /// Connects to a cluster by one or several of its routers, with the default settings.
    ///
    /// ```no_run
    /// # async fn example() -> vmemkv_client::Result<()> {
    /// use vmemkv_client::Client;
    ///
    /// let one = Client::connect("localhost:7400").await?;
    /// let several = Client::connect(["router-0:7400", "router-1:7400"]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(addresses: impl Addresses) -> Result<Self> {
        Self::builder().addresses(addresses).connect().await
    }

    /// A builder, for other settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The same client with another default deadline: `client.with_deadline(d).get(key)`.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// What the router at hand is: version, limits, cluster.
    pub async fn info(&self) -> Result<v1::GetInfoResponse> {
        self.routers.info(self.until(None)).await
    }

    /// The cluster at a glance.
    pub async fn cluster_status(&self) -> Result<v1::GetClusterStatusResponse> {
        self.routers.cluster_status(self.until(None)).await
    }

    /// A connection to a router that answers, for the stubs in [`crate::proto`] (administration,
    /// the shard map) that this client does not wrap.
    pub async fn router_channel(&self) -> Result<Channel> {
        self.routers.channel(self.until(None)).await
    }

    /// A stub for the cluster's administration, on a router that answers.
    pub async fn admin(&self) -> Result<v1::admin_client::AdminClient<Channel>> {
        let channel = self.router_channel().await?;
        Ok(crate::limited!(v1::admin_client::AdminClient::new(channel)))
    }

    /// What sends this client's requests; it works on the API's messages.
    pub fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    pub(crate) async fn with_config(config: Config) -> Result<Self> {
        let deadline = config.deadline;
        let pool = ChannelPool::new(&config);
        let addresses = config.addresses.clone();
        let routers = Arc::new(RemoteRouters::new(addresses, pool.clone(), deadline)?);
        routers.reach(Deadline::within(deadline), Jitter::new(config.seed)).await?;
        let source: Arc<dyn RouteSource> = if config.routed {
            Arc::clone(&routers) as _
        } else {
            Arc::new(ProxyRoutes::new(config.addresses.clone()))
        };
        let dispatcher = Dispatcher::with_pool(&config, pool, source);
        Ok(Self { dispatcher, routers, deadline })
    }

    /// When a call that begins now has to end.
    pub(crate) fn until(&self, own: Option<Duration>) -> Deadline {
        Deadline::within(own.unwrap_or(self.deadline))
    }

    /// How long one step of a stream may take.
    pub(crate) fn step(&self) -> Duration {
        self.deadline
    }
}
