//! A disk that fails on demand: the n-th operation of some kinds, or every one from there on.
//!
//! Invariants: deterministic, given the order of operations; a failed operation has no effect on
//! the inner disk, except that a short write leaves a prefix. A failed sync has made nothing
//! durable, but what was written stays readable: as on a real disk, where the pages look clean.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::SeededRandom;
use crate::io::{Disk, File};

/// The kinds of operation that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // named as the functions of `Disk` and `File`
pub enum Operation {
    Create,
    Open,
    List,
    CreateDir,
    Rename,
    Remove,
    SyncDir,
    Read,
    Write,
    Allocate,
    SetLen,
    /// `sync`, `sync_range` and `write_back`.
    Sync,
}

impl Operation {
    /// Every kind.
    pub const ALL: &[Operation] = &[
        Self::Create,
        Self::Open,
        Self::List,
        Self::CreateDir,
        Self::Rename,
        Self::Remove,
        Self::SyncDir,
        Self::Read,
        Self::Write,
        Self::Allocate,
        Self::SetLen,
        Self::Sync,
    ];
    /// What takes space: these fail on a full disk.
    pub const SPACE: &[Operation] =
        &[Self::Create, Self::CreateDir, Self::Write, Self::Allocate, Self::SetLen];
}

/// Which operations fail, and how.
#[derive(Clone, Debug)]
pub struct Fault {
    operations: Vec<Operation>,
    errno: i32,
    path_part: String,
    skip: u64,
    forever: bool,
    short_writes: bool,
}

impl Fault {
    /// Fails the next one of `operations` with `errno`, once.
    pub fn new(operations: &[Operation], errno: i32) -> Self {
        Self {
            operations: operations.to_vec(),
            errno,
            path_part: String::new(),
            skip: 0,
            forever: false,
            short_writes: false,
        }
    }

    /// Lets `n` matching operations pass first, counted from the injection.
    pub fn at(mut self, n: u64) -> Self {
        self.skip = n;
        self
    }

    /// Fails every matching operation from there on.
    pub fn forever(mut self) -> Self {
        self.forever = true;
        self
    }

    /// Only files whose path below the root contains `part` ("wal/", "MANIFEST").
    pub fn in_path(mut self, part: impl Into<String>) -> Self {
        self.path_part = part.into();
        self
    }

    /// A failed write leaves a seeded part of its bytes.
    pub fn short_writes(mut self) -> Self {
        self.short_writes = true;
        self
    }
}

struct State {
    faults: Vec<Fault>,
    counts: [u64; Operation::ALL.len()],
    failed: u64,
    free_bytes: Option<u64>,
    random: SeededRandom,
}

/// Wraps any disk and makes it fail.
pub struct FaultDisk {
    inner: Arc<dyn Disk>,
    state: Arc<Mutex<State>>,
}

impl FaultDisk {
    /// A wrapper without faults.
    pub fn new(inner: Arc<dyn Disk>) -> Arc<Self> {
        Self::with_seed(inner, 0)
    }

    /// The same with a seed for the lengths of short writes.
    pub fn with_seed(inner: Arc<dyn Disk>, seed: u64) -> Arc<Self> {
        let state = State {
            faults: Vec::new(),
            counts: [0; Operation::ALL.len()],
            failed: 0,
            free_bytes: None,
            random: SeededRandom(seed),
        };
        Arc::new(Self { inner, state: Arc::new(Mutex::new(state)) })
    }

    /// Adds a fault to those that are active.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Ends every fault.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// How many operations of a kind were asked for so far, failed ones included.
    pub fn count(&self, operation: Operation) -> u64 {
        self.state.lock().counts[operation as usize]
    }

    /// How many operations of all kinds were asked for so far.
    pub fn count_all(&self) -> u64 {
        self.state.lock().counts.iter().sum()
    }

    /// How many operations were made to fail.
    pub fn failed(&self) -> u64 {
        self.state.lock().failed
    }

    /// What [`Disk::free_bytes`] answers; `None`: what the inner disk says.
    pub fn set_free_bytes(&self, bytes: Option<u64>) {
        self.state.lock().free_bytes = bytes;
    }
}

struct Failure {
    error: io::Error,
    /// How much of a write of the given length is done all the same.
    prefix: usize,
}

fn check(
    state: &Mutex<State>,
    operation: Operation,
    path: &Path,
    len: usize,
) -> Result<(), Failure> {
    let mut state = state.lock();
    state.counts[operation as usize] += 1;
    let mut hit = None;
    for (i, fault) in state.faults.iter_mut().enumerate() {
        let matches = fault.operations.contains(&operation)
            && path.to_string_lossy().contains(&fault.path_part);
        if !matches {
            continue;
        }
        if fault.skip > 0 {
            fault.skip -= 1;
        } else if hit.is_none() {
            hit = Some(i);
        }
    }
    let Some(i) = hit else { return Ok(()) };
    let (errno, short) = (state.faults[i].errno, state.faults[i].short_writes);
    if !state.faults[i].forever {
        state.faults.remove(i);
    }
    state.failed += 1;
    let prefix = if short && len > 0 { state.random.below(len as u64) as usize } else { 0 };
    Err(Failure { error: io::Error::from_raw_os_error(errno), prefix })
}

impl FaultDisk {
    fn check(&self, operation: Operation, path: &Path) -> io::Result<()> {
        check(&self.state, operation, path, 0).map_err(|failure| failure.error)
    }

    fn wrap(&self, path: &Path, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(FaultFile { path: path.into(), inner, state: Arc::clone(&self.state) })
    }
}

impl Disk for FaultDisk {
    fn root(&self) -> &Path {
        self.inner.root()
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.check(Operation::Create, path)?;
        Ok(self.wrap(path, self.inner.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.check(Operation::Open, path)?;
        Ok(self.wrap(path, self.inner.open(path)?))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.check(Operation::List, folder)?;
        self.inner.list(folder)
    }

    fn create_dir(&self, folder: &Path) -> io::Result<()> {
        self.check(Operation::CreateDir, folder)?;
        self.inner.create_dir(folder)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Operation::Rename, to)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::Remove, path)?;
        self.inner.remove(path)
    }

    fn sync_dir(&self, folder: &Path) -> io::Result<()> {
        self.check(Operation::SyncDir, folder)?;
        self.inner.sync_dir(folder)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let set = self.state.lock().free_bytes;
        set.map_or_else(|| self.inner.free_bytes(), Ok)
    }
}

struct FaultFile {
    /// Relative to the disk's root, for `Fault::in_path`.
    path: PathBuf,
    inner: Arc<dyn File>,
    state: Arc<Mutex<State>>,
}

impl FaultFile {
    fn check(&self, operation: Operation) -> io::Result<()> {
        check(&self.state, operation, &self.path, 0).map_err(|failure| failure.error)
    }
}

impl File for FaultFile {
    fn path(&self) -> PathBuf {
        self.inner.path()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check(Operation::Read)?;
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match check(&self.state, Operation::Write, &self.path, bytes.len()) {
            Ok(()) => self.inner.write_at(offset, bytes),
            Err(failure) => {
                if failure.prefix > 0 {
                    self.inner.write_at(offset, &bytes[..failure.prefix])?;
                }
                Err(failure.error)
            }
        }
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.check(Operation::Allocate)?;
        self.inner.allocate(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check(Operation::SetLen)?;
        self.inner.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.check(Operation::Sync)?;
        self.inner.sync()
    }

    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Operation::Sync)?;
        self.inner.sync_range(offset, len)
    }

    fn write_back(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Operation::Sync)?;
        self.inner.write_back(offset, len)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}
