//! A disk that is no larger than it is told: the directory as if on a disk of that size.
//!
//! Invariants: what the files of the directory have allocated is counted in blocks of 4 KiB, by
//! their lengths; what would exceed the capacity fails with `ENOSPC` and changes nothing. Made
//! before anybody else opens a file of the directory.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Disk, File};

const BLOCK: u64 = 4096;

/// [`Disk`] that ends at a capacity.
pub struct CapacityDisk {
    inner: Arc<dyn Disk>,
    space: Arc<Space>,
}

/// What is used of the capacity.
struct Space {
    capacity: u64,
    /// Where growth fails: the capacity, or above what was found beyond it. A directory without a
    /// byte to grow by could not even be opened, let alone shrink.
    limit: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: u64,
    files: HashMap<PathBuf, Arc<AtomicU64>>,
}

fn blocks(len: u64) -> u64 {
    len.next_multiple_of(BLOCK)
}

impl Space {
    /// Takes what a file needs to grow from its length to `to`. The length follows at once, so that
    /// two growths are not counted twice.
    fn grow(&self, len: &AtomicU64, to: u64) -> io::Result<u64> {
        let mut state = self.state.lock();
        // Relaxed, like all accesses: changed under the lock, and a stale length only asks again.
        let from = len.load(Ordering::Relaxed);
        if to <= from {
            return Ok(from);
        }
        let more = blocks(to) - blocks(from);
        if state.used + more > self.limit {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        state.used += more;
        len.store(to, Ordering::Relaxed);
        Ok(from)
    }

    fn shrink(&self, len: &AtomicU64, to: u64) {
        let mut state = self.state.lock();
        let from = len.load(Ordering::Relaxed);
        if to < from {
            state.used = state.used.saturating_sub(blocks(from) - blocks(to));
            len.store(to, Ordering::Relaxed);
        }
    }
}

impl CapacityDisk {
    /// `inner` with room for `capacity` bytes. Counts the files that are there, in the root and in
    /// its folders; those may exceed the capacity already.
    pub fn new(inner: Arc<dyn Disk>, capacity: u64) -> io::Result<Arc<Self>> {
        let mut state = State::default();
        let names = match inner.list(Path::new("")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        for name in names {
            let path = PathBuf::from(name);
            match inner.list(&path) {
                Ok(names) => {
                    names.iter().for_each(|name| count(&*inner, &path.join(name), &mut state));
                }
                Err(_) => count(&*inner, &path, &mut state),
            }
        }
        let limit = if state.used > capacity { state.used + capacity / 2 } else { capacity };
        let space = Arc::new(Space { capacity, limit, state: Mutex::new(state) });
        Ok(Arc::new(Self { inner, space }))
    }

    fn file(&self, inner: Arc<dyn File>, len: Arc<AtomicU64>) -> Arc<dyn File> {
        Arc::new(CapacityFile { inner, len, space: Arc::clone(&self.space) })
    }
}

/// A file that cannot be opened counts as empty: whoever needs it will say so.
fn count(disk: &dyn Disk, path: &Path, state: &mut State) {
    let len = disk.open(path).and_then(|file| file.len()).unwrap_or(0);
    state.used += blocks(len);
    state.files.insert(path.into(), Arc::new(AtomicU64::new(len)));
}

impl Disk for CapacityDisk {
    fn root(&self) -> &Path {
        self.inner.root()
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let inner = self.inner.create(path)?;
        let len = Arc::new(AtomicU64::new(0));
        self.space.state.lock().files.insert(path.into(), Arc::clone(&len));
        Ok(self.file(inner, len))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let inner = self.inner.open(path)?;
        let mut state = self.space.state.lock();
        if !state.files.contains_key(path) {
            count(&*self.inner, path, &mut state);
        }
        let len = state.files.get(path).cloned().unwrap_or_default();
        drop(state);
        Ok(self.file(inner, len))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.inner.list(folder)
    }

    fn create_dir(&self, folder: &Path) -> io::Result<()> {
        self.inner.create_dir(folder)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)?;
        let mut state = self.space.state.lock();
        if let Some(len) = state.files.remove(from)
            && let Some(old) = state.files.insert(to.into(), len)
        {
            state.used = state.used.saturating_sub(blocks(old.load(Ordering::Relaxed)));
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)?;
        let mut state = self.space.state.lock();
        if let Some(old) = state.files.remove(path) {
            state.used = state.used.saturating_sub(blocks(old.load(Ordering::Relaxed)));
        }
        Ok(())
    }

    fn sync_dir(&self, folder: &Path) -> io::Result<()> {
        self.inner.sync_dir(folder)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let left = self.space.capacity.saturating_sub(self.space.state.lock().used);
        Ok(left.min(self.inner.free_bytes()?))
    }

    fn total_bytes(&self) -> io::Result<u64> {
        Ok(self.space.capacity.min(self.inner.total_bytes()?))
    }
}

/// A file whose length is counted.
struct CapacityFile {
    inner: Arc<dyn File>,
    len: Arc<AtomicU64>,
    space: Arc<Space>,
}

impl CapacityFile {
    fn growing(&self, to: u64, operation: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if to <= self.len.load(Ordering::Relaxed) {
            return operation();
        }
        let before = self.space.grow(&self.len, to)?;
        operation().inspect_err(|_| {
            // What the disk below has really done is for its own length to say.
            let now = self.inner.len().unwrap_or(before).max(before);
            self.space.shrink(&self.len, now);
        })
    }
}

impl File for CapacityFile {
    fn path(&self) -> PathBuf {
        self.inner.path()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        self.growing(end, || self.inner.write_at(offset, bytes))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.growing(len, || self.inner.allocate(len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.growing(len, || self.inner.set_len(len))?;
        self.space.shrink(&self.len, len);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.sync_range(offset, len)
    }

    fn write_back(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.write_back(offset, len)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{OsDisk, replace_file};

    #[test]
    fn counts_every_way_to_grow_and_shrink() {
        let dir = tempfile::tempdir().unwrap();
        let os = || Arc::new(OsDisk::new(dir.path()));
        let disk = CapacityDisk::new(os(), 10 * BLOCK).unwrap();
        let left = |disk: &CapacityDisk| disk.free_bytes().unwrap() / BLOCK;
        disk.create_dir(Path::new("t2")).unwrap();
        let file = disk.create(Path::new("t2/1.t2")).unwrap();
        file.allocate(4 * BLOCK).unwrap();
        assert_eq!(left(&disk), 6);
        file.write_at(4 * BLOCK - 1, b"two blocks").unwrap();
        assert_eq!(left(&disk), 5);
        let error = file.allocate(11 * BLOCK).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert_eq!((left(&disk), file.len().unwrap()), (5, 4 * BLOCK + 9));
        replace_file(&*disk, Path::new("M"), &[1; 5000]).unwrap();
        replace_file(&*disk, Path::new("M"), &[1; 100]).unwrap();
        assert_eq!(left(&disk), 4);
        drop(file);
        // What is found counts.
        let disk = CapacityDisk::new(os(), 10 * BLOCK).unwrap();
        assert_eq!((left(&disk), disk.total_bytes().unwrap()), (4, 10 * BLOCK));
        let file = disk.open(Path::new("t2/1.t2")).unwrap();
        file.set_len(1).unwrap();
        assert_eq!(left(&disk), 8);
        disk.remove(Path::new("t2/1.t2")).unwrap();
        assert_eq!(left(&disk), 9);
        // Beyond its capacity it is full, and can be worked with.
        disk.create(Path::new("t2/2.t2")).unwrap().allocate(6 * BLOCK).unwrap();
        let disk = CapacityDisk::new(os(), 4 * BLOCK).unwrap();
        assert_eq!(left(&disk), 0);
        let more = disk.create(Path::new("t2/3.t2")).unwrap();
        more.allocate(2 * BLOCK).unwrap();
        assert_eq!(left(&disk), 0);
        assert!(more.allocate(3 * BLOCK).is_err());
        assert!(
            CapacityDisk::new(os(), 0)
                .unwrap()
                .create(Path::new("x"))
                .unwrap()
                .write_at(0, b"x")
                .is_err()
        );
    }
}
