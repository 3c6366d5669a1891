//! Where the data lives: corpora that are loaded once and reused, and copies to write to.
//!
//! Invariants: a corpus without its `complete` file is loaded anew; a window that writes gets a
//! copy, synced before the clock runs; only a directory with our marker is ever removed.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::keygen::{KeyKind, Keys};
use crate::progress::Progress;
use crate::runner::swap;
use crate::store::{Pair, StoreName};
use crate::system;
use crate::values::Values;
use crate::workload::{Cell, Flavour, Scenario, name};

const MARKER: &str = ".vmemkv-bench";
const COMPLETE: &str = "complete";
const DATA: &str = "data";
const RUN: &str = "run-";
const CHUNK_BYTES: usize = 4 << 20;

/// Makes the directory of all data, or refuses it. Returns its canonical path.
pub(crate) fn open_directory(dir: &Path) -> Result<PathBuf> {
    let context = || format!("make {}", dir.display());
    let absolute = std::path::absolute(dir).with_context(context)?;
    if let Some(existing) = absolute.ancestors().find(|path| path.exists()) {
        system::refuse_memory_file_system(existing)?;
    }
    fs::create_dir_all(dir).with_context(context)?;
    ensure!(
        dir.join(MARKER).exists() || fs::read_dir(dir)?.next().is_none(),
        "{} holds other files: name an empty or a new directory with --dir",
        dir.display()
    );
    fs::write(dir.join(MARKER), "Data of vmemkv-bench; `vmemkv-bench clean` removes it.\n")
        .with_context(context)?;
    dir.canonicalize().with_context(context)
}

/// Removes the directory; whether there was one.
pub(crate) fn clean(dir: &Path) -> Result<bool> {
    if !dir.exists() {
        return Ok(false);
    }
    if !dir.join(MARKER).exists() {
        bail!("{} is not a directory of vmemkv-bench: it stays", dir.display());
    }
    swap::remove_left(dir)?;
    fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
    Ok(true)
}

/// What a corpus consists of.
#[derive(Clone, Debug)]
pub(crate) struct Corpus {
    /// The size of values.
    pub(crate) scenario: Scenario,
    /// The keys and their order.
    pub(crate) flavour: Flavour,
    /// How many.
    pub(crate) records: u64,
    /// Where.
    pub(crate) store: StoreName,
}

impl Corpus {
    /// The corpus that a cell starts from.
    pub(crate) fn of(cell: &Cell, store: &StoreName) -> Self {
        Self {
            scenario: cell.scenario,
            flavour: cell.flavour,
            records: cell.loaded_records(),
            store: store.clone(),
        }
    }

    /// Its place below the directory of all data.
    pub(crate) fn path(&self, dir: &Path) -> PathBuf {
        let (scenario, flavour) = (name(self.scenario), name(self.flavour));
        let store = format!("{}-{}", self.store.name().replace(':', "-"), self.store.version());
        dir.join(format!("corpus-{scenario}-{flavour}-{}-{store}", self.records))
    }

    /// Whether it has been loaded.
    pub(crate) fn is_complete(&self, dir: &Path) -> bool {
        self.path(dir).join(COMPLETE).exists()
    }

    /// The store's own directory.
    pub(crate) fn data(&self, dir: &Path) -> PathBuf {
        self.path(dir).join(DATA)
    }

    /// Loads it from the start.
    pub(crate) fn load(&self, dir: &Path) -> Result<()> {
        let path = self.path(dir);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))?;
        }
        fs::create_dir_all(&path)?;
        let keys = Keys::new(self.flavour, self.records);
        let values = Values::new(self.scenario, self.flavour);
        let store = self.store.open(&self.data(dir))?;
        let mut progress = Progress::new("loading", self.records);
        let records = (0..self.records).map(|position| keys.load_order(position));
        let pairs =
            records.map(|record| (keys.key(KeyKind::Existing, record), values.loaded(record)));
        in_chunks(pairs, |chunk, done| {
            store.load(chunk)?;
            progress.show(done);
            Ok(())
        })?;
        store.settle()?;
        store.close()?;
        progress.end();
        File::create(path.join(COMPLETE))?.sync_all()?;
        Ok(())
    }

    /// Updates a tenth of the records of a copy and deletes a twentieth, in load order.
    pub(crate) fn age(&self, data: &Path) -> Result<()> {
        let keys = Keys::new(self.flavour, self.records);
        let values = Values::new(self.scenario, self.flavour);
        let store = self.store.open(data)?;
        let mut progress = Progress::new("updating and deleting", self.records);
        let records = || (0..self.records).map(|position| keys.load_order(position));
        let updates = records().filter(|&record| is_aged_update(record)).map(|record| {
            (keys.key(KeyKind::Existing, record), values.updated(record, AGED).to_vec())
        });
        in_chunks(updates, |chunk, done| {
            store.load(chunk)?;
            progress.show(done);
            Ok(())
        })?;
        let deletes = records().filter(|&record| is_aged_delete(record));
        store.unload(deletes.map(|record| keys.key(KeyKind::Existing, record)).collect())?;
        store.settle()?;
        store.close()?;
        progress.end();
        Ok(())
    }
}

/// The number of an update by ageing, for [`Values::updated`].
pub(crate) const AGED: u64 = 0;

/// Whether ageing updates the record.
pub(crate) fn is_aged_update(record: u64) -> bool {
    record % 10 == 3
}

/// Whether ageing deletes the record.
pub(crate) fn is_aged_delete(record: u64) -> bool {
    record % 20 == 7
}

fn in_chunks(
    pairs: impl Iterator<Item = Pair>,
    mut write: impl FnMut(Vec<Pair>, u64) -> Result<()>,
) -> Result<()> {
    let (mut chunk, mut bytes, mut done) = (Vec::new(), 0, 0);
    for pair in pairs {
        bytes += pair.0.len() + pair.1.len();
        chunk.push(pair);
        done += 1;
        if bytes >= CHUNK_BYTES {
            write(std::mem::take(&mut chunk), done)?;
            bytes = 0;
        }
    }
    if chunk.is_empty() { Ok(()) } else { write(chunk, done) }
}

/// A directory for one run, removed with it.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// An empty one. Those of runs that were killed go.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        remove_stale(dir)?;
        let path = dir.join(format!("{RUN}{}", std::process::id()));
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// One with a synced copy of `data`.
    pub(crate) fn copy_of(dir: &Path, data: &Path) -> Result<Self> {
        let scratch = Self::new(dir)?;
        copy_synced(data, &scratch.data())?;
        Ok(scratch)
    }

    /// Makes it a synced copy of `data` again.
    pub(crate) fn restore(&self, data: &Path) -> Result<()> {
        copy_synced(data, &self.data())
    }

    /// The store's own directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.path(DATA)
    }

    /// Another directory in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("vmemkv-bench: cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Removes the directories of runs whose process is gone.
fn remove_stale(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let pid: Option<u32> = name.to_str().and_then(|name| name.strip_prefix(RUN)?.parse().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            fs::remove_dir_all(entry.path())
                .with_context(|| format!("remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Makes `to` a synced copy of `from`. Files that are there already are overwritten in place: to
/// free and to allocate gigabytes makes the drive's syncs slow for minutes (discard).
fn copy_synced(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut wanted = HashSet::new();
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        wanted.insert(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_synced(&entry.path(), &target)?;
        } else {
            copy_file(&entry.path(), &target)
                .with_context(|| format!("copy {}", entry.path().display()))?;
        }
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if !wanted.contains(&entry.file_name()) {
            let path = entry.path();
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.with_context(|| format!("remove {}", path.display()))?;
        }
    }
    File::open(to)?.sync_all().with_context(|| format!("sync {}", to.display()))
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = File::open(from)?;
    let mut to = File::options().write(true).create(true).truncate(false).open(to)?;
    let bytes = io::copy(&mut from, &mut to)?;
    to.set_len(bytes)?;
    to.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_directory_is_removed() {
        let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("dir");
        let dir = parent.path().join("data");
        assert!(!clean(&dir).expect("nothing"));
        open_directory(&dir).expect("open");
        open_directory(&dir).expect("open again");
        assert!(clean(&dir).expect("clean"));
        fs::create_dir(&dir).expect("mkdir");
        fs::write(dir.join("thesis.txt"), "precious").expect("write");
        assert!(clean(&dir).is_err());
        assert!(open_directory(&dir).is_err());
        assert!(dir.join("thesis.txt").exists());
    }

    #[test]
    fn chunks_lose_nothing() {
        let pairs = (0..10u8).map(|i| (vec![i], vec![0; 1 << 20]));
        let mut seen = Vec::new();
        in_chunks(pairs, |chunk, done| {
            seen.extend(chunk.iter().map(|pair| pair.0[0]));
            assert_eq!(seen.len() as u64, done);
            Ok(())
        })
        .expect("chunks");
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_copy_is_whole_and_goes_with_the_run() {
        let dir = tempfile::tempdir().expect("dir");
        let data = dir.path().join("data");
        fs::create_dir_all(data.join("inner")).expect("mkdir");
        fs::write(data.join("inner/a"), "abc").expect("write");
        let scratch = Scratch::copy_of(dir.path(), &data).expect("copy");
        let copy = scratch.data();
        assert_eq!(fs::read(copy.join("inner/a")).expect("read"), b"abc");
        fs::write(copy.join("inner/a"), "longer than before").expect("write");
        fs::write(copy.join("inner/more"), "x").expect("write");
        fs::create_dir(copy.join("other")).expect("mkdir");
        scratch.restore(&data).expect("restore");
        assert_eq!(fs::read(copy.join("inner/a")).expect("read"), b"abc");
        assert!(!copy.join("inner/more").exists() && !copy.join("other").exists());
        drop(scratch);
        assert!(!copy.exists());
    }

    #[test]
    fn directories_of_killed_runs_go_with_the_next_run() {
        let dir = tempfile::tempdir().expect("dir");
        for name in ["run-999999999", "run-1", "run-x", "corpus"] {
            fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        let scratch = Scratch::new(dir.path()).expect("scratch");
        assert!(!dir.path().join("run-999999999").exists());
        assert!(["run-1", "run-x", "corpus"].iter().all(|name| dir.path().join(name).exists()));
        drop(scratch);
    }

    #[test]
    fn ageing_updates_and_deletes_different_records() {
        assert!((0..1000).all(|record| !(is_aged_update(record) && is_aged_delete(record))));
        assert_eq!((0..1000).filter(|&record| is_aged_delete(record)).count(), 50);
    }
}
