//! What a [`CrashDisk`](super::CrashDisk) remembers.
//!
//! Invariants: events are in the order of the operations; a page in an event is whole, as it is
//! durable from there on, and never changes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) const PAGE: u64 = 4096;
pub(super) type Page = Arc<[u8; PAGE as usize]>;
pub(super) type NodeId = usize;

/// One step of the journal.
#[derive(Clone)]
pub(super) enum Event {
    Create(PathBuf, NodeId),
    MakeDir(PathBuf),
    /// To this name; a file has one name.
    Rename(PathBuf, NodeId),
    Remove(PathBuf, NodeId),
    SyncDir(PathBuf),
    Write(NodeId, u64, Arc<[u8]>),
    SetLen(NodeId, u64),
    /// The range that became durable, the length of the file, and the pages (whole, as durable
    /// from here on) that the range touches and that changed.
    Sync(NodeId, Range<u64>, u64, Vec<(u64, Page)>),
}

/// One file, whatever its names.
#[derive(Clone, Default)]
pub(super) struct Node {
    /// What was there when the disk was made, which counts as synced.
    pub(super) initial_len: u64,
    pub(super) initial: BTreeMap<u64, Page>,
    /// Pages as last synced; only to find what the next sync changes.
    pub(super) synced: BTreeMap<u64, Page>,
    /// Set once somebody may map the file.
    pub(super) mapped: Option<Arc<fs::File>>,
}

#[derive(Clone, Default)]
pub(super) struct Journal {
    pub(super) events: Vec<Event>,
    /// `cuts[k]`: how many events there were when sync k+1 began.
    pub(super) cuts: Vec<usize>,
    pub(super) nodes: Vec<Node>,
    pub(super) initial_names: BTreeMap<PathBuf, NodeId>,
    pub(super) initial_dirs: Vec<PathBuf>,
    pub(super) names: BTreeMap<PathBuf, NodeId>,
}

/// Takes over what is in a folder, as synced.
pub(super) fn load(root: &Path, folder: &Path, journal: &mut Journal) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            load(root, &path, journal)?;
            journal.initial_dirs.push(path);
            continue;
        }
        let file = fs::File::open(root.join(&path))?;
        let len = file.metadata()?.len();
        let mut initial = BTreeMap::new();
        changed_pages(0..len, &mut initial, |offset, buffer| file.read_exact_at(buffer, offset))?;
        let node = Node { initial_len: len, synced: initial.clone(), initial, mapped: None };
        journal.initial_names.insert(path.clone(), journal.nodes.len());
        journal.names.insert(path, journal.nodes.len());
        journal.nodes.push(node);
    }
    Ok(())
}

/// Brings `synced` up to date in `range`; answers the pages that changed (pages of zeros that are
/// new count: they are known to have been synced).
pub(super) fn changed_pages(
    range: Range<u64>,
    synced: &mut BTreeMap<u64, Page>,
    read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Vec<(u64, Page)>> {
    let zero: Page = Arc::new([0; PAGE as usize]);
    let mut changed = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    let mut at = range.start;
    while at < range.end {
        // Never beyond a multiple of the chunk: whole pages, but for the ends of the range.
        let stop = range.end.min((at / (1 << 16) + 1) << 16);
        let bytes = &mut chunk[..(stop - at) as usize];
        read(at, bytes)?;
        let mut rest = &*bytes;
        while !rest.is_empty() {
            let (page, within) = (at / PAGE, (at % PAGE) as usize);
            let (now, behind) = rest.split_at(rest.len().min(PAGE as usize - within));
            let old = synced.get(&page);
            if old.is_none_or(|old| old[within..within + now.len()] != *now) {
                let mut new = old.map_or_else(|| Arc::clone(&zero), Arc::clone);
                if new[within..within + now.len()] != *now {
                    Arc::make_mut(&mut new)[within..within + now.len()].copy_from_slice(now);
                }
                synced.insert(page, Arc::clone(&new));
                changed.push((page, new));
            }
            at += now.len() as u64;
            rest = behind;
        }
    }
    Ok(changed)
}
