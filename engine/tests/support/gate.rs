//! A disk with gates: every operation of one kind on one kind of file stops in front of its gate
//! until the test has looked around, so that a schedule is forced rather than hoped for.
//!
//! Invariants: an operation that waits has not reached the inner disk; opening lets everybody
//! pass; a closed gate is opened when its guard is dropped, so that a failing test ends.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use vmemkv_engine::io::testing::Operation;
use vmemkv_engine::io::{Disk, File};

/// A closed gate.
struct Gate {
    operation: Operation,
    start: String,
    /// How many have come to it.
    arrived: usize,
    /// How many of them may pass.
    passes: usize,
}

#[derive(Default)]
struct State {
    /// By number; numbers are not used twice.
    closed: BTreeMap<usize, Gate>,
    next: usize,
    created: Vec<PathBuf>,
}

#[derive(Default)]
struct Gates {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn stops(&self, operation: Operation, path: &Path) -> bool {
        let path = path.to_string_lossy();
        let is_meant = match operation {
            Operation::SyncDir => path == self.start,
            _ => path.starts_with(&self.start),
        };
        self.operation == operation && is_meant
    }
}

impl Gates {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn pass(&self, operation: Operation, path: &Path) {
        let mut state = self.lock();
        let found = state.closed.iter_mut().find(|(_, gate)| gate.stops(operation, path));
        let Some((&number, gate)) = found else { return };
        gate.arrived += 1;
        self.changed.notify_all();
        while let Some(gate) = state.closed.get_mut(&number) {
            if gate.passes > 0 {
                gate.passes -= 1;
                return;
            }
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// See the [module](self).
pub(crate) struct GateDisk {
    inner: Arc<dyn Disk>,
    gates: Arc<Gates>,
}

/// Opens the gate when dropped.
pub(crate) struct Closed {
    gates: Arc<Gates>,
    number: usize,
    /// Of those that arrived, how many the test knows of.
    seen: Cell<usize>,
}

impl Closed {
    /// Waits until somebody (after [`let_one_pass`](Self::let_one_pass): somebody else) stands
    /// before the gate.
    pub(crate) fn reached(&self) {
        let mut state = self.gates.lock();
        while state.closed[&self.number].arrived == self.seen.get() {
            state = self.gates.changed.wait(state).unwrap();
        }
    }

    /// Lets the one pass that has arrived.
    pub(crate) fn let_one_pass(&self) {
        let mut state = self.gates.lock();
        self.seen.set(self.seen.get() + 1);
        state.closed.get_mut(&self.number).unwrap().passes += 1;
        self.gates.changed.notify_all();
    }

    /// Lets everybody pass.
    pub(crate) fn open(self) {}
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.gates.lock().closed.remove(&self.number);
        self.gates.changed.notify_all();
    }
}

impl GateDisk {
    pub(crate) fn new(inner: Arc<dyn Disk>) -> Arc<Self> {
        Arc::new(Self { inner, gates: Arc::default() })
    }

    /// Closes a gate for an operation on paths that begin with `start` ("wal/"); for `SyncDir` on
    /// the folder `start`.
    pub(crate) fn close(&self, operation: Operation, start: &str) -> Closed {
        let mut state = self.gates.lock();
        let number = state.next;
        state.next += 1;
        let gate = Gate { operation, start: start.to_owned(), arrived: 0, passes: 0 };
        state.closed.insert(number, gate);
        Closed { gates: Arc::clone(&self.gates), number, seen: Cell::new(0) }
    }

    /// Every file that was made in a folder ("t1/"), in order.
    pub(crate) fn created(&self, start: &str) -> Vec<PathBuf> {
        let state = self.gates.lock();
        let created = state.created.iter();
        created.filter(|path| path.to_string_lossy().starts_with(start)).cloned().collect()
    }

    fn wrap(&self, path: &Path, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(GateFile { path: path.into(), inner, gates: Arc::clone(&self.gates) })
    }
}

impl Disk for GateDisk {
    fn root(&self) -> &Path {
        self.inner.root()
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.gates.pass(Operation::Create, path);
        let file = self.inner.create(path)?;
        self.gates.lock().created.push(path.into());
        Ok(self.wrap(path, file))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.gates.pass(Operation::Open, path);
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
        self.gates.pass(Operation::Rename, to);
        self.inner.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.gates.pass(Operation::Remove, path);
        self.inner.remove(path)
    }
    fn sync_dir(&self, folder: &Path) -> io::Result<()> {
        self.gates.pass(Operation::SyncDir, folder);
        self.inner.sync_dir(folder)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }
}

struct GateFile {
    path: PathBuf,
    inner: Arc<dyn File>,
    gates: Arc<Gates>,
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
        self.gates.pass(Operation::Write, &self.path);
        self.inner.write_at(offset, bytes)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.gates.pass(Operation::Allocate, &self.path);
        self.inner.allocate(len)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.gates.pass(Operation::Sync, &self.path);
        self.inner.sync()
    }
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.gates.pass(Operation::Sync, &self.path);
        self.inner.sync_range(offset, len)
    }
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}
