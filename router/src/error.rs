//! Why a router does not start or stops: errors for the person who started it.
//!
//! Invariants: every error names the port, file or setting that it is about; what callers of the
//! gRPC services see is an [`vmemkv_proto::ApiError`] instead.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a router does not start, or has stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting cannot be used.
    #[error("{setting}: {reason}")]
    Config {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The configuration asks for something that this release does not have.
    #[error("not built yet: {0}")]
    NotBuilt(String),
    /// A listening address cannot be used.
    #[error("cannot listen on {address} ({what}): {}", listen_reason(.source, .address))]
    Listen {
        /// What the port is for: gRPC, HTTP or Raft.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Another process has the data directory open.
    #[error("data directory {} is in use by another process", .0.display())]
    DataInUse(PathBuf),
    /// The data directory belongs to something else; nothing in it has been changed.
    #[error("{} is not a router's data directory: {reason}; nothing has been changed", .path.display())]
    ForeignData {
        /// The directory.
        path: PathBuf,
        /// How that was seen.
        reason: String,
    },
    /// The data directory was written by a newer release; nothing in it has been changed.
    #[error(
        "{} has format version {found}, this release reads up to {supported}: \
         use a newer vmemkv; nothing has been changed", .path.display()
    )]
    NewerFormat {
        /// The directory.
        path: PathBuf,
        /// Its format version.
        found: u32,
        /// The newest version that this release reads.
        supported: u32,
    },
    /// The data directory cannot be read or written.
    #[error("data directory {}: {reason}", .path.display())]
    Storage {
        /// The directory, or a file in it.
        path: PathBuf,
        /// What the store says.
        reason: String,
    },
    /// The descriptions of the services cannot be read: a broken build.
    #[error("reflection: {0}")]
    Reflection(String),
    /// The Raft group does not start or has failed.
    #[error("raft: {0}")]
    Raft(String),
}

/// The result of starting a router.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn config(setting: &'static str, reason: impl Into<String>) -> Self {
        Self::Config { setting, reason: reason.into() }
    }
}

fn listen_reason(source: &io::Error, address: &SocketAddr) -> String {
    if source.kind() == io::ErrorKind::AddrInUse {
        return format!("port {} is taken by another process", address.port());
    }
    source.to_string()
}
