//! A disk whose power can be cut: real I/O in a real folder (so that mapping works), with a journal
//! of what was done and of what was synced, from which [`CrashDisk::materialise`] builds a folder
//! as a power cut may leave it.
//!
//! Faults modelled:
//! - what was not synced is there or not, independently for each piece of 512 B or 4 KiB: so
//!   writes are torn and reordered, and a length without its content (zeros) or none at all;
//! - a name without `sync_dir` of its folder is old or new, in order per file, independently of
//!   its content: a synced file may have no name, a named one no content;
//! - stores through a mapping that nobody synced: any pieces of the pages. The disk does not see
//!   such stores when they happen, so for a moment in the past it uses what the file holds now, but
//!   only in pages that had never been synced by then; for the present it uses all pages.
//!
//! Not modelled: damage to what was synced, lost syncs, a mapped store in a page that was synced
//! before, in the past.
//!
//! Invariants: the journal is in the order of the operations; a sync records the content of the
//! file as of that moment, mapped stores included; nothing is really synced (tests are fast).

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::crash_image::{PowerCut, write_image};
use super::crash_journal::{Event, Journal, Node, NodeId, changed_pages, load};
use crate::io::{Disk, File, OsDisk};

/// See the [module](self).
pub struct CrashDisk {
    inner: OsDisk,
    root: PathBuf,
    journal: Arc<Mutex<Journal>>,
}

impl CrashDisk {
    /// A disk in `real_dir`, which is made if missing. What it holds already counts as synced.
    pub fn new(real_dir: impl Into<PathBuf>) -> io::Result<Arc<Self>> {
        let root = real_dir.into();
        fs::create_dir_all(&root)?;
        let mut journal = Journal::default();
        load(&root, Path::new(""), &mut journal)?;
        Ok(Self::with_journal(root, journal))
    }

    fn with_journal(root: PathBuf, journal: Journal) -> Arc<Self> {
        let journal = Arc::new(Mutex::new(journal));
        Arc::new(Self { inner: OsDisk::new(&root), root, journal })
    }

    /// How many syncs of files and folders there were so far. What was acknowledged when this was
    /// `k` must survive a cut at every point from `k` on.
    pub fn crash_points(&self) -> usize {
        self.journal.lock().cuts.len()
    }

    /// Builds in `target_dir` (made, must be empty) what a power cut leaves: at `point` (after that
    /// many syncs; everything that was done before the next one began may have reached the disk),
    /// or now, with `point = None`.
    pub fn materialise(
        &self,
        point: Option<usize>,
        target_dir: &Path,
        cut: &PowerCut,
    ) -> io::Result<()> {
        let journal = self.journal.lock();
        let end = point.and_then(|point| journal.cuts.get(point).copied());
        write_image(&journal, end, target_dir, cut)
    }

    /// What `kill -9` leaves: every byte that was written, in a copy in `target_dir`, on a disk that
    /// still knows which of it a power cut can take. The crash points go on from here.
    pub fn kill(&self, target_dir: &Path) -> io::Result<Arc<CrashDisk>> {
        // Held over the copy: the journal and the files must be of one moment.
        let held = self.journal.lock();
        fs::create_dir_all(target_dir)?;
        copy_tree(&self.root, target_dir)?;
        let mut journal = held.clone();
        drop(held);
        let names: Vec<_> = journal.names.iter().map(|(p, n)| (p.clone(), *n)).collect();
        for (path, node) in names {
            if journal.nodes[node].mapped.is_some() {
                let file = fs::File::open(target_dir.join(path))?;
                journal.nodes[node].mapped = Some(Arc::new(file));
            }
        }
        Ok(Self::with_journal(target_dir.to_path_buf(), journal))
    }

    fn file(&self, node: NodeId, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(CrashFile { node, inner, journal: Arc::clone(&self.journal) })
    }
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&target)?;
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

impl Disk for CrashDisk {
    fn root(&self) -> &Path {
        &self.root
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut journal = self.journal.lock();
        let inner = self.inner.create(path)?;
        let node = journal.nodes.len();
        journal.nodes.push(Node::default());
        journal.names.insert(path.into(), node);
        journal.events.push(Event::Create(path.into(), node));
        Ok(self.file(node, inner))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let journal = self.journal.lock();
        let inner = self.inner.open(path)?;
        let node = journal.names.get(path).copied();
        let node = node.ok_or_else(|| io::Error::other("made around the crash disk"))?;
        Ok(self.file(node, inner))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.inner.list(folder)
    }

    fn create_dir(&self, folder: &Path) -> io::Result<()> {
        let mut journal = self.journal.lock();
        let mut missing = Vec::new();
        for ancestor in folder.ancestors() {
            if ancestor.as_os_str().is_empty() || self.inner.exists(ancestor)? {
                break;
            }
            missing.push(Event::MakeDir(ancestor.into()));
        }
        self.inner.create_dir(folder)?;
        journal.events.extend(missing.into_iter().rev());
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut journal = self.journal.lock();
        self.inner.rename(from, to)?;
        if let Some(node) = journal.names.remove(from) {
            journal.names.insert(to.into(), node);
            journal.events.push(Event::Rename(to.into(), node));
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut journal = self.journal.lock();
        self.inner.remove(path)?;
        if let Some(node) = journal.names.remove(path) {
            journal.events.push(Event::Remove(path.into(), node));
        }
        Ok(())
    }

    fn sync_dir(&self, folder: &Path) -> io::Result<()> {
        let mut journal = self.journal.lock();
        self.inner.list(folder)?;
        let begun = journal.events.len();
        journal.cuts.push(begun);
        journal.events.push(Event::SyncDir(folder.into()));
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }
}

struct CrashFile {
    node: NodeId,
    inner: Arc<dyn File>,
    journal: Arc<Mutex<Journal>>,
}

impl CrashFile {
    fn record_sync(&self, range: Range<u64>) -> io::Result<()> {
        let mut journal = self.journal.lock();
        let len = self.inner.len()?;
        let range = range.start.min(len)..range.end.min(len);
        let begun = journal.events.len();
        let synced = &mut journal.nodes[self.node].synced;
        let pages = changed_pages(range.clone(), synced, |offset, buffer| {
            self.inner.read_at(offset, buffer)
        })?;
        journal.cuts.push(begun);
        journal.events.push(Event::Sync(self.node, range, len, pages));
        Ok(())
    }
}

impl File for CrashFile {
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
        let mut journal = self.journal.lock();
        self.inner.write_at(offset, bytes)?;
        journal.events.push(Event::Write(self.node, offset, bytes.into()));
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut journal = self.journal.lock();
        self.inner.allocate(len)?;
        let len = self.inner.len()?;
        journal.events.push(Event::SetLen(self.node, len));
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut journal = self.journal.lock();
        self.inner.set_len(len)?;
        journal.events.push(Event::SetLen(self.node, len));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.record_sync(0..u64::MAX)
    }

    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.record_sync(offset..offset.saturating_add(len))
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        let mut journal = self.journal.lock();
        let mapped = &mut journal.nodes[self.node].mapped;
        if mapped.is_none() {
            // Opened anew, whatever its name is now: a duplicate would share (and keep) its lock.
            // Should that fail, unsynced stores count as lost.
            let fd = self.inner.as_fd().as_raw_fd();
            *mapped = fs::File::open(format!("/proc/self/fd/{fd}")).ok().map(Arc::new);
        }
        self.inner.as_fd()
    }
}
