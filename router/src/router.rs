//! The router process as its owner sees it: prepare, serve, stop.
//!
//! Invariants: [`Router::prepare`] binds all three ports before it touches the data directory, so a
//! taken port changes nothing; the gRPC port accepts no connection before [`Prepared::serve`];
//! [`Router::shutdown`] ends within the grace period, and a second one.

use std::net::SocketAddr;

use crate::config::Config;
use crate::error::{Error, Result};

/// Where a router listens; port 0 of the configuration has become a real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// gRPC: Kv, Router, Admin, Control, health, reflection.
    pub grpc: SocketAddr,
    /// HTTP: health, metrics, a status page.
    pub http: SocketAddr,
    /// Raft among routers; Control is served here too.
    pub raft: SocketAddr,
}

/// A router whose group runs and whose HTTP and Raft ports serve, while its gRPC port refuses
/// connections. A server in the same process registers at the Raft address.
pub struct Prepared {
    addresses: Addresses,
}

impl Prepared {
    /// Where the router listens, or will.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Opens the gRPC port.
    #[allow(clippy::unused_async)]
    pub async fn serve(self) -> Result<Router> {
        Ok(Router { addresses: self.addresses })
    }

    /// Stops without having opened the gRPC port.
    #[allow(clippy::unused_async)]
    pub async fn shutdown(self) -> Result<()> {
        Ok(())
    }
}

/// A running router.
pub struct Router {
    addresses: Addresses,
}

impl Router {
    /// Starts everything but the gRPC port.
    #[allow(clippy::unused_async)]
    pub async fn prepare(config: Config) -> Result<Prepared> {
        config.check()?;
        Err(Error::NotBuilt("the routers' group".to_owned()))
    }

    /// Starts a router.
    pub async fn start(config: Config) -> Result<Self> {
        Self::prepare(config).await?.serve().await
    }

    /// Where the router listens.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The cluster; 0: not made yet.
    pub fn cluster_id(&self) -> u64 {
        0
    }

    /// Waits until the router has failed and cannot go on, and says why. Never returns otherwise.
    pub async fn failed(&self) -> Error {
        std::future::pending().await
    }

    /// Stops: refuses new work, lets calls that run end within the grace period, closes the store.
    #[allow(clippy::unused_async)]
    pub async fn shutdown(self) -> Result<()> {
        Ok(())
    }
}
