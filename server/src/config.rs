//! What an operator can set about a server.
//!
//! Invariants: every field has a default that suits a node of a cluster on one machine; an unknown
//! field is an error, never ignored; [`Config::validate`] names the field at fault.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

mod engine_config;
mod limits_config;

pub use engine_config::{EngineConfig, ReadPolicy, Visibility};
pub use limits_config::LimitsConfig;

/// The configuration of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where to serve gRPC. Port 0 takes any free one.
    pub listen: SocketAddr,
    /// Where to serve HTTP: health and metrics. Port 0 takes any free one.
    pub http_listen: SocketAddr,
    /// The address (HOST:PORT) under which clients and routers reach this server. Not set: the
    /// address of `listen`, which must then name an interface (not 0.0.0.0).
    pub advertise: Option<String>,
    /// The gRPC addresses (HOST:PORT) of the routers; at least one.
    pub routers: Vec<String>,
    /// The data directory; made if it is missing.
    pub data: PathBuf,
    /// Labels of this node, such as `zone`.
    pub labels: BTreeMap<String, String>,
    /// How long a shutdown waits for requests that are under way, milliseconds.
    pub grace_ms: u64,
    /// Most threads that wait for the disk on behalf of reads, and as many on behalf of writes.
    pub io_threads: usize,
    /// The storage engine.
    pub engine: EngineConfig,
    /// Limits of the service.
    pub limits: LimitsConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7410)),
            http_listen: SocketAddr::from(([127, 0, 0, 1], 7411)),
            advertise: None,
            routers: vec!["127.0.0.1:7400".to_owned()],
            data: PathBuf::from("vmemkv-data"),
            labels: BTreeMap::new(),
            grace_ms: 10_000,
            io_threads: 32,
            engine: EngineConfig::default(),
            limits: LimitsConfig::default(),
        }
    }
}

impl Config {
    /// Checks the fields against each other; the error names the one at fault.
    pub fn validate(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::Config(what.to_owned()));
        if self.routers.is_empty() {
            return wrong("routers: name at least one router, HOST:PORT");
        }
        if let Some(router) = self.routers.iter().find(|router| !is_host_and_port(router)) {
            return Err(Error::Config(format!("routers: {router:?} is not HOST:PORT")));
        }
        match &self.advertise {
            Some(address) if !is_host_and_port(address) => {
                return Err(Error::Config(format!("advertise: {address:?} is not HOST:PORT")));
            }
            None if self.listen.ip().is_unspecified() => {
                return wrong(
                    "advertise: say where this server is reached (HOST:PORT), since listen is \
                     every interface",
                );
            }
            _ => {}
        }
        if self.data.as_os_str().is_empty() {
            return wrong("data: name the data directory");
        }
        if self.io_threads == 0 {
            return wrong("io_threads: must be at least 1");
        }
        self.limits.validate()?;
        self.engine
            .to_options()
            .validate()
            .map_err(|error| Error::Config(format!("engine: {}", error.message())))
    }

    /// How long a shutdown waits for requests that are under way.
    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }
}

fn is_host_and_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains("//") && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

#[cfg(test)]
mod config_test;
