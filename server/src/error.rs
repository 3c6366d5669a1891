//! Why a server could not start or had to end: one clear sentence each, for an operator.
//!
//! Invariant: an error names the setting, port or directory that has to be changed.

use std::net::SocketAddr;
use std::path::PathBuf;

/// The result of starting or ending a server.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a server could not start or had to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is wrong.
    #[error("configuration: {0}")]
    Config(String),
    /// A port cannot be taken.
    #[error("cannot listen on {address} ({setting}): {source}")]
    Listen {
        /// The setting that names the port.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// Another process has the data directory open.
    #[error("data directory {dir} is in use: {message}", dir = .dir.display())]
    DataInUse {
        /// The directory.
        dir: PathBuf,
        /// Who has it.
        message: String,
    },
    /// The data directory belongs to something else, or to another release.
    #[error("data directory {dir} cannot be used: {message}", dir = .dir.display())]
    DataForeign {
        /// The directory.
        dir: PathBuf,
        /// What is there.
        message: String,
    },
    /// The engine failed.
    #[error("data directory {dir}: {message}", dir = .dir.display())]
    Engine {
        /// The directory.
        dir: PathBuf,
        /// What failed.
        message: String,
    },
    /// The service failed.
    #[error("service: {0}")]
    Service(String),
}

impl Error {
    /// An error of the engine that serves `dir`.
    pub(crate) fn engine(dir: &std::path::Path, error: &vmemkv_engine::Error) -> Self {
        let (dir, message) = (dir.to_owned(), error.message().to_owned());
        match error.kind() {
            vmemkv_engine::ErrorKind::InUse => Self::DataInUse { dir, message },
            vmemkv_engine::ErrorKind::Foreign => Self::DataForeign { dir, message },
            _ => Self::Engine { dir, message },
        }
    }
}
