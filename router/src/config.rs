//! The settings of a router process.
//!
//! Invariants: every setting has a default with which one router runs alone on one machine; a name
//! that is not a setting is an error; [`Config::check`] accepts only what can be served.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use vmemkv_proto::limits::MAX_KEY_BYTES;

use crate::error::{Error, Result};
use crate::state::hex;

/// The settings of a router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where to serve gRPC (Kv as a proxy, Router, Admin, Control). Port 0: any.
    pub listen: SocketAddr,
    /// Where to serve HTTP (health, metrics, a status page). Port 0: any.
    pub http_listen: SocketAddr,
    /// Where to speak Raft with other routers. Port 0: any.
    pub raft_listen: SocketAddr,
    /// Where others reach the gRPC port, HOST:PORT. Not set: where it listens.
    pub advertise: Option<String>,
    /// The data directory; made if it does not exist.
    pub data: PathBuf,
    /// The Raft addresses of all routers of the cluster, this one included, HOST:PORT. Empty, or
    /// this router alone: a cluster with one router.
    pub routers: Vec<String>,
    /// A file of keys, a key a line in hex, at which the key space is cut when the first server
    /// registers. Not set: one shard covers everything.
    pub initial_boundaries: Option<PathBuf>,
    /// How long servers may serve without hearing from a router, milliseconds.
    pub lease_ms: u64,
    /// How often servers send heartbeats, milliseconds.
    pub heartbeat_ms: u64,
    /// Split shards that their servers report to be above their limits (`shard_max_bytes` and
    /// `shard_max_entries` of the server's engine). Off: only by `vmemkv shard split`.
    pub split_by_size: bool,
    /// How long a shutdown waits for calls that run, milliseconds.
    pub grace_ms: u64,
    /// How often the leader tells the other routers that it lives, milliseconds.
    pub raft_heartbeat_ms: u64,
    /// A router that hears nothing from a leader for this long stands for election, milliseconds;
    /// up to twice as long, by chance.
    pub raft_election_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        let local = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        Self {
            listen: local(7400),
            http_listen: local(7401),
            raft_listen: local(7402),
            advertise: None,
            data: PathBuf::from("vmemkv-router-data"),
            routers: Vec::new(),
            initial_boundaries: None,
            lease_ms: 600_000,
            heartbeat_ms: 1_000,
            split_by_size: true,
            grace_ms: 10_000,
            raft_heartbeat_ms: 250,
            raft_election_ms: 1_000,
        }
    }
}

impl Config {
    /// Refuses settings that cannot work together.
    pub fn check(&self) -> Result<()> {
        if self.routers.len() > 1 {
            return Err(Error::NotBuilt(format!(
                "a cluster of {} routers (setting `routers`); this release runs one router",
                self.routers.len()
            )));
        }
        for router in &self.routers {
            check_host_port("routers", router)?;
        }
        if let Some(advertise) = &self.advertise {
            check_host_port("advertise", advertise)?;
        }
        at_least("heartbeat_ms", self.heartbeat_ms, 10)?;
        at_least("raft_heartbeat_ms", self.raft_heartbeat_ms, 10)?;
        if self.lease_ms < self.heartbeat_ms.saturating_mul(3) {
            let reason = format!(
                "{} is less than three heartbeats of {} ms",
                self.lease_ms, self.heartbeat_ms
            );
            return Err(Error::config("lease_ms", reason));
        }
        if self.raft_election_ms < self.raft_heartbeat_ms.saturating_mul(3) {
            let reason = format!(
                "{} is less than three heartbeats of {} ms",
                self.raft_election_ms, self.raft_heartbeat_ms
            );
            return Err(Error::config("raft_election_ms", reason));
        }
        Ok(())
    }

    /// How long a shutdown waits for calls that run.
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }

    /// The keys at which the first server's shards are cut, in order.
    pub(crate) fn read_boundaries(&self) -> Result<Vec<Bytes>> {
        match &self.initial_boundaries {
            None => Ok(Vec::new()),
            Some(path) => read_boundaries(path),
        }
    }
}

fn read_boundaries(path: &Path) -> Result<Vec<Bytes>> {
    let refuse = |reason: String| {
        Error::config("initial_boundaries", format!("{}: {reason}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let mut keys: Vec<Bytes> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let refuse_line = |what: &str| refuse(format!("line {}: {what}", at + 1));
        let key = hex::decode(line).ok_or_else(|| refuse_line("not a key in hex"))?;
        if key.len() > MAX_KEY_BYTES {
            return Err(refuse_line("the key is too long"));
        }
        if keys.last().is_some_and(|last| last.as_ref() >= key.as_slice()) {
            return Err(refuse_line("the key is not above the one before it"));
        }
        keys.push(key.into());
    }
    Ok(keys)
}

fn at_least(setting: &'static str, value: u64, limit: u64) -> Result<()> {
    if value < limit {
        return Err(Error::config(setting, format!("{value} is below {limit}")));
    }
    Ok(())
}

fn check_host_port(setting: &'static str, text: &str) -> Result<()> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err(Error::config(setting, format!("{text:?} is not HOST:PORT")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_accepted_and_survives_serde() {
        let config = Config::default();
        config.check().unwrap();
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), config);
        assert_eq!(serde_json::from_str::<Config>("{}").unwrap(), config);
    }

    #[test]
    fn an_unknown_setting_is_an_error() {
        let error = serde_json::from_str::<Config>(r#"{"lissten": "x"}"#).unwrap_err();
        assert!(error.to_string().contains("lissten"), "{error}");
    }

    #[test]
    fn several_routers_are_not_built() {
        let routers = vec!["a:7402".to_owned(), "b:7402".to_owned()];
        let error = Config { routers, ..Config::default() }.check().unwrap_err();
        assert!(error.to_string().starts_with("not built yet: "), "{error}");
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        let short = Config { lease_ms: 2_999, ..Config::default() };
        assert!(short.check().unwrap_err().to_string().starts_with("lease_ms: "));
        let advertise = Some("nowhere".to_owned());
        let odd = Config { advertise, ..Config::default() };
        assert!(odd.check().unwrap_err().to_string().starts_with("advertise: "));
    }

    #[test]
    fn boundaries_are_keys_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cuts");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_boundaries(&path)
        };
        assert_eq!(read("").unwrap(), Vec::<Bytes>::new());
        assert_eq!(read("61\n6Fff\n\n").unwrap(), [&b"a"[..], &b"o\xff"[..]]);
        for (text, line) in [("61\n61", "line 2"), ("62\n61", "line 2"), ("xx", "line 1")] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("initial_boundaries: ") && error.contains(line), "{error}");
        }
    }
}
