//! The real disk: a folder of the operating system's file system.
//!
//! Invariant: every path stays below the root; nothing is cached here.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, File};

/// [`Disk`] over a folder.
pub struct OsDisk {
    root: PathBuf,
}

impl OsDisk {
    /// The disk rooted at `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn open_with(&self, path: &Path, options: &fs::OpenOptions) -> io::Result<Arc<dyn File>> {
        let path = self.root.join(path);
        Ok(Arc::new(OsFile { file: options.open(&path)?, path }))
    }
}

impl Disk for OsDisk {
    fn root(&self) -> &Path {
        &self.root
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.open_with(path, fs::OpenOptions::new().read(true).write(true).create_new(true))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.open_with(path, fs::OpenOptions::new().read(true).write(true))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.root.join(path).try_exists()
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.root.join(folder))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(self.root.join(folder))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(self.root.join(path))
    }

    fn sync_dir(&self, folder: &Path) -> io::Result<()> {
        fs::File::open(self.root.join(folder))?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn total_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
    }
}

/// [`File`] over an open file of the operating system.
struct OsFile {
    file: fs::File,
    path: PathBuf,
}

impl File for OsFile {
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        Ok(rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), 0, len)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// `fdatasync` of the whole file: Linux offers no durable sync of a part.
    fn sync_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write_back(&self, offset: u64, len: u64) -> io::Result<()> {
        let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: a system call on an open descriptor; it touches no memory of ours.
        match unsafe { libc::sync_file_range(self.file.as_raw_fd(), offset, len, flags) } {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                // No such call here, or not for this file: the sync does all of it.
                error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP)) => {
                    Ok(())
                }
                error => Err(error),
            },
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
