//! The handle of a running server.
//!
//! Invariants: the ports are taken before [`Server::start`] returns; [`Server::shutdown`] ends
//! within the grace plus the time of a checkpoint, whatever clients do.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::config::Config;
use crate::error::{Error, Result};

/// Replaces the filter of the log (a level, or directives such as `info,vmemkv_engine=debug`) and
/// returns the one before; the error says what is wrong with the filter.
pub type SetLogFilter = Arc<dyn Fn(&str) -> std::result::Result<String, String> + Send + Sync>;

/// What a caller of [`Server::start_with`] may add to the configuration.
#[derive(Clone, Default)]
pub struct StartOptions {
    /// Serves `NodeAdmin.SetLogLevel`; none: UNIMPLEMENTED.
    pub set_log_filter: Option<SetLogFilter>,
}

/// Where a server is with its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Not registered yet, or again; it keeps trying. Why, if an attempt failed.
    Waiting {
        /// The last failure; empty: none yet.
        reason: String,
    },
    /// Registered; data is served while the lease lasts.
    Registered {
        /// The cluster.
        cluster_id: u64,
    },
    /// A router refused this server (another cluster, a copied directory, a removed node); it
    /// keeps trying, slowly.
    Refused {
        /// What the router said.
        reason: String,
    },
}

/// A running server. Dropping it stops it without grace and without a checkpoint.
pub struct Server {
    grpc_addr: SocketAddr,
    http_addr: SocketAddr,
    node_id: u64,
}

impl Server {
    /// Takes the ports, opens the data directory and starts to serve. Registration with a router
    /// goes on in the background: see [`Server::registration`].
    pub async fn start(config: Config) -> Result<Self> {
        Self::start_with(config, StartOptions::default()).await
    }

    /// The same with additions that a configuration file cannot hold.
    pub async fn start_with(config: Config, options: StartOptions) -> Result<Self> {
        config.validate()?;
        let _ = options;
        Err(Error::Service("not built yet".to_owned()))
    }

    /// Where gRPC is served.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Where HTTP is served.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// The node's id, made on the directory's first start.
    pub fn node_id(&self) -> u64 {
        self.node_id
    }

    /// Where the server is with its cluster, and each change of it.
    pub fn registration(&self) -> tokio::sync::watch::Receiver<Registration> {
        let state = Registration::Waiting { reason: String::new() };
        tokio::sync::watch::channel(state).1
    }

    /// Serves until `signal` is ready or the service fails, then shuts down.
    pub async fn run_until(self, signal: impl Future<Output = ()> + Send) -> Result<()> {
        signal.await;
        self.shutdown().await
    }

    /// Ends gracefully: health says NOT_SERVING, no connection is accepted, open streams end with
    /// UNAVAILABLE, requests under way finish within the grace, the engine makes a checkpoint and
    /// closes. Never hangs on clients.
    pub async fn shutdown(self) -> Result<()> {
        Ok(())
    }
}
