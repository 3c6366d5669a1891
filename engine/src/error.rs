//! What can go wrong, sorted by what the caller should do about it.
//!
//! Invariants: a message names the field, file or limit that it is about; bad input, a full disk
//! and a broken file are values of this type, never a panic.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::types::Revision;

/// The result of an engine operation.
pub type Result<T> = std::result::Result<T, Error>;

/// What the caller should do about an [`Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is wrong: correct it. Nothing was changed.
    InvalidArgument,
    /// No shard of this engine holds the key: route elsewhere. Nothing was changed.
    NotServed,
    /// Space on disk ran out: free some, or retry later. Nothing was changed.
    DiskFull,
    /// The memory budget is used up: retry later. Nothing was changed.
    MemoryFull,
    /// The engine takes no writes until it is reopened; the message says why. The outcome of a
    /// write that was under way is unknown.
    ReadOnly,
    /// The engine is closing, or the caller cancelled: retry elsewhere or later.
    Unavailable,
    /// This operation on shards was refused here for good: give it up, or ask for another one.
    /// Nothing was changed.
    Refused,
    /// This operation on shards was executed, so it cannot be refused any more.
    AlreadyDone,
    /// Stored bytes are not what was written; the message names the file and the offset.
    Corrupt,
    /// Another process has the directory open.
    InUse,
    /// The directory is not ours, or of a format version that this release does not know.
    Foreign,
    /// The operating system failed; the message names the file.
    Io,
    /// The position in a range's changes is older than what is kept: read the range anew.
    TooOld {
        /// The oldest position that is still served.
        oldest: Revision,
    },
}

/// An engine error: a [kind](ErrorKind) for programs and a message for people.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    key: Option<Box<[u8]>>,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), key: None }
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message without the kind.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The key that it is about, when one entry is damaged or cannot be read: the others are not
    /// affected, and a scan may go on behind it.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    /// The same error, about this key.
    pub(crate) fn with_key(self, key: &[u8]) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// The request is wrong; `message` names the field and the limit.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// Stored bytes of `file` at `offset` are wrong; `what` says how.
    pub fn corrupt(file: &Path, offset: u64, what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Corrupt, format!("{} at offset {offset}: {what}", file.display()))
    }

    /// The file is not one of ours, or of an unknown version.
    pub fn foreign(file: &Path, what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Foreign, format!("{}: {what}", file.display()))
    }

    /// `action` (a verb in the present tense) on `file` failed in the operating system.
    /// `ENOSPC` and `EDQUOT` become [`ErrorKind::DiskFull`].
    pub fn io(action: &str, file: impl Into<PathBuf>, error: &io::Error) -> Self {
        let full = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
        let kind = if full { ErrorKind::DiskFull } else { ErrorKind::Io };
        Self::new(kind, format!("cannot {action} {}: {error}", file.into().display()))
    }
}

impl Error {
    /// A sync of `file` failed, whatever for. Never [`ErrorKind::DiskFull`]: what was to be durable
    /// may be half there, and a second try may succeed although it is not.
    pub fn sync(file: impl Into<PathBuf>, error: &io::Error) -> Self {
        Self::new(ErrorKind::Io, format!("cannot sync {}: {error}", file.into().display()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {}
