//! The one way to the disk: every durable read, write, sync, rename and removal goes through
//! [`Disk`] and [`File`], so that disks that crash or fail can stand in for the real one.
//!
//! Invariants: paths are relative to the engine's directory; nothing is durable before the sync
//! that covers it returned without error; a created, renamed or removed name is durable only after
//! [`Disk::sync_dir`] of its folder. Stores through a mapping of [`File::as_fd`] become durable by
//! [`File::sync_range`] and by nothing else.

mod capacity_disk;
mod durable;
mod lock_file;
mod os;
pub mod testing;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use capacity_disk::CapacityDisk;
pub use durable::{
    ASIDE_SUFFIX, create_dir_durable, create_durable, read_file, replace_file, sync_in_pieces,
};
pub use lock_file::LockFile;
pub use os::OsDisk;

/// A directory tree on a disk.
pub trait Disk: Send + Sync {
    /// Where the directory is, for messages: `disk.root().join(path)`.
    fn root(&self) -> &Path;
    /// Creates an empty file for reading and writing; an existing one is an error.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Whether the name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// The names (not paths) of the files and folders in a folder, sorted.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;
    /// Makes a folder and its parents; an existing one is fine.
    fn create_dir(&self, folder: &Path) -> io::Result<()>;
    /// Renames a file over another, atomically; durable after `sync_dir`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file; durable after `sync_dir`.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable (`""` is the root).
    fn sync_dir(&self, folder: &Path) -> io::Result<()>;
    /// Bytes that an unprivileged process can still allocate on this disk.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Size of this disk in bytes; one that does not say is as large as can be.
    fn total_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

/// An open file.
#[expect(clippy::len_without_is_empty, reason = "a file is no collection")]
pub trait File: Send + Sync {
    /// Where the file is, for messages.
    fn path(&self) -> PathBuf;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Reads exactly `buffer.len()` bytes at `offset`; fewer is `UnexpectedEof`.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes blocks for `[0, len)` and sets the length, so that later stores cannot run out of
    /// space.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes the whole content durable (data and what is needed to read it).
    fn sync(&self) -> io::Result<()>;
    /// Makes `[offset, offset + len)` durable, stores through a mapping included.
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Writes `[offset, offset + len)` out, stores through a mapping included, and waits until the
    /// device has it. Durable only by a sync, which then has less to do. An error counts as one of
    /// the next sync, which need not report it again.
    fn write_back(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }
    /// For mapping the file, never for I/O around this trait.
    fn as_fd(&self) -> BorrowedFd<'_>;
}
