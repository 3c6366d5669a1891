//! A disk with a gate: the next operation of one kind on one kind of file stops in front of it
//! until the test has looked around, so that a schedule is forced rather than hoped for.
//!
//! Invariants: an operation that waits has not reached the inner disk; opening lets everybody
//! pass; a closed gate is opened when its guard is dropped, so that a failing test ends.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use vmemkv_engine::io::testing::Operation;
use vmemkv_engine::io::{Disk, File};

#[derive(Default)]
struct State {
    closed: Option<(Operation, String)>,
    /// How many have come to the closed gate.
    arrived: usize,
    /// How many of them may pass.
    passes: usize,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn pass(&self, operation: Operation, path: &Path) {
        let is_closed = |state: &State| {
            state.closed.as_ref().is_some_and(|(closed, part)| {
                let path = path.to_string_lossy();
                let is_meant = match operation {
                    Operation::SyncDir => path == *part,
                    _ => path.starts_with(part.as_str()),
                };
                *closed == operation && is_meant
            })
        };
        let mut state = self.lock();
        if !is_closed(&state) {
            return;
        }
        state.arrived += 1;
        self.changed.notify_all();
        while is_closed(&state) {
            if state.passes > 0 {
                state.passes -= 1;
                return;
            }
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// See the [module](self).
pub(crate) struct GateDisk {
    inner: Arc<dyn Disk>,
    gate: Arc<Gate>,
}

/// Opens the gate when dropped.
pub(crate) struct Closed {
    gate: Arc<Gate>,
    /// Of those that arrived, how many the test knows of.
    seen: Cell<usize>,
}

impl Closed {
    /// Waits until somebody (after [`let_one_pass`](Self::let_one_pass): somebody else) stands
    /// before the gate.
    pub(crate) fn reached(&self) {
        let mut state = self.gate.lock();
        while state.arrived == self.seen.get() {
            state = self.gate.changed.wait(state).unwrap();
        }
    }

    /// Lets the one pass that has arrived.
    pub(crate) fn let_one_pass(&self) {
        let mut state = self.gate.lock();
        self.seen.set(self.seen.get() + 1);
        state.passes += 1;
        self.gate.changed.notify_all();
    }

    /// Lets everybody pass.
    pub(crate) fn open(self) {}
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.gate.lock().closed = None;
        self.gate.changed.notify_all();
    }
}

impl GateDisk {
    pub(crate) fn new(inner: Arc<dyn Disk>) -> Arc<Self> {
        Arc::new(Self { inner, gate: Arc::default() })
    }

    /// Closes the gate for an operation on paths that begin with `start` ("wal/"); for
    /// `SyncDir` on the folder `start`.
    pub(crate) fn close(&self, operation: Operation, start: &str) -> Closed {
        let closed = Some((operation, start.to_owned()));
        *self.gate.lock() = State { closed, ..State::default() };
        Closed { gate: Arc::clone(&self.gate), seen: Cell::new(0) }
    }

    fn wrap(&self, path: &Path, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(GateFile { path: path.into(), inner, gate: Arc::clone(&self.gate) })
    }
}

impl Disk for GateDisk {
    fn root(&self) -> &Path {
        self.inner.root()
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.gate.pass(Operation::Create, path);
        Ok(self.wrap(path, self.inner.create(path)?))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.gate.pass(Operation::Open, path);
        Ok(self.wrap(path, self.inner.open(path)?))
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
        self.gate.pass(Operation::Rename, to);
        self.inner.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.gate.pass(Operation::Remove, path);
        self.inner.remove(path)
    }
    fn sync_dir(&self, folder: &Path) -> io::Result<()> {
        self.gate.pass(Operation::SyncDir, folder);
        self.inner.sync_dir(folder)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }
}

struct GateFile {
    path: PathBuf,
    inner: Arc<dyn File>,
    gate: Arc<Gate>,
}

impl File for GateFile {
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
        self.gate.pass(Operation::Write, &self.path);
        self.inner.write_at(offset, bytes)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.gate.pass(Operation::Allocate, &self.path);
        self.inner.allocate(len)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.gate.pass(Operation::Sync, &self.path);
        self.inner.sync()
    }
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.gate.pass(Operation::Sync, &self.path);
        self.inner.sync_range(offset, len)
    }
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}
