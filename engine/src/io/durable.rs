//! The only ways to make a name durable: write aside, sync, rename, sync the folder.
//!
//! Invariants: a reader of `path` sees the old content or the new one, whole, after any crash; a
//! function that returned `Ok` left nothing that a power cut could take back.

use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, File};
use crate::error::{Error, Result};

/// What is appended to the name of a file that is being written aside.
pub const ASIDE_SUFFIX: &str = ".tmp";

/// Puts `content` under the name `path`, replacing what was there, and makes both durable.
///
/// A crash in between leaves the old file, and perhaps `<path>.tmp`, which the next call replaces.
/// `DiskFull` means that nothing was replaced; after any other error the new content may be there.
pub fn replace_file(disk: &dyn Disk, path: &Path, content: &[u8]) -> Result<()> {
    let aside = aside_of(path);
    write_aside(disk, &aside, content)
        .and_then(|()| {
            disk.rename(&aside, path).map_err(|error| {
                Error::io("rename a new version to", disk.root().join(path), &error)
            })
        })
        .inspect_err(|_| {
            // Best effort: the next attempt removes it too.
            let _ = disk.remove(&aside);
        })?;
    sync_parent(disk, path)
}

/// Creates an empty file whose name is durable. An existing file is an error.
pub fn create_durable(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn File>> {
    let file =
        disk.create(path).map_err(|error| Error::io("create", disk.root().join(path), &error))?;
    sync_parent(disk, path)?;
    Ok(file)
}

/// Makes a folder whose name is durable. An existing one is fine (its name is synced all the same).
pub fn create_dir_durable(disk: &dyn Disk, folder: &Path) -> Result<()> {
    disk.create_dir(folder)
        .map_err(|error| Error::io("create", disk.root().join(folder), &error))?;
    sync_parent(disk, folder)
}

/// The whole content of a file; `None` when there is none.
pub fn read_file(disk: &dyn Disk, path: &Path) -> Result<Option<Vec<u8>>> {
    let wrong = |error| Error::io("read", disk.root().join(path), &error);
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == NotFound => return Ok(None),
        Err(error) => return Err(wrong(error)),
    };
    let len = file.len().map_err(wrong)?;
    let len = usize::try_from(len).map_err(|_| Error::foreign(&file.path(), "too large"))?;
    let mut content = vec![0; len];
    file.read_at(0, &mut content).map_err(wrong)?;
    Ok(Some(content))
}

fn aside_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ASIDE_SUFFIX);
    name.into()
}

fn write_aside(disk: &dyn Disk, aside: &Path, content: &[u8]) -> Result<()> {
    let create = || match disk.create(aside) {
        Err(error) if error.kind() == AlreadyExists => {
            disk.remove(aside)?;
            disk.create(aside)
        }
        other => other,
    };
    let write = || {
        let file = create()?;
        file.write_at(0, content)?;
        Ok(file)
    };
    let file = write().map_err(|error| Error::io("write", disk.root().join(aside), &error))?;
    file.sync().map_err(|error| Error::sync(file.path(), &error))
}

fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    disk.sync_dir(folder).map_err(|error| Error::sync(disk.root().join(folder), &error))
}

/// Bytes that [`sync_in_pieces`] writes out at once: few enough that another's sync beside it does
/// not wait long.
const PIECE_BYTES: u64 = 256 << 10;

/// Makes `[start, end)` of a file durable, stores through a mapping included, piece by piece;
/// `between`, which may sleep, is called after each but the last. For what is large: a sync
/// alone hands the device everything at once, and whoever syncs another file meanwhile waits.
pub fn sync_in_pieces(
    file: &dyn File,
    start: u64,
    end: u64,
    between: &dyn Fn(),
) -> std::io::Result<()> {
    let mut at = start;
    while end.saturating_sub(at) > PIECE_BYTES {
        file.write_back(at, PIECE_BYTES)?;
        at += PIECE_BYTES;
        between();
    }
    file.sync_range(start, end.saturating_sub(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::io::OsDisk;
    use crate::io::testing::{Fault, FaultDisk, Operation};

    #[test]
    fn replaces_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let disk = OsDisk::new(dir.path());
        let path = Path::new("M");
        assert_eq!(read_file(&disk, path).unwrap(), None);
        replace_file(&disk, path, b"one").unwrap();
        replace_file(&disk, path, b"").unwrap();
        assert_eq!(read_file(&disk, path).unwrap().unwrap(), b"");
        std::fs::write(dir.path().join("M.tmp"), b"left by a crash").unwrap();
        replace_file(&disk, path, b"two").unwrap();
        assert_eq!(read_file(&disk, path).unwrap().unwrap(), b"two");
        assert_eq!(disk.list(Path::new("")).unwrap(), ["M"]);
    }

    #[test]
    fn a_failure_at_any_operation_leaves_the_old_or_the_new_content() {
        let dir = tempfile::tempdir().unwrap();
        let disk = FaultDisk::new(Arc::new(OsDisk::new(dir.path())));
        let path = Path::new("M");
        replace_file(&*disk, path, b"old").unwrap();
        for n in 0..5 {
            disk.inject(Fault::new(Operation::ALL, libc::ENOSPC).at(n));
            let error = replace_file(&*disk, path, b"new").unwrap_err();
            // 2 and 4 are syncs: after those nobody knows.
            let kind = if n % 2 == 0 && n > 0 { ErrorKind::Io } else { ErrorKind::DiskFull };
            assert_eq!(error.kind(), kind, "{error}");
            disk.heal();
            let content = read_file(&*disk, path).unwrap().unwrap();
            assert_eq!(content, if n < 4 { b"old" } else { b"new" }, "operation {n}");
        }
        replace_file(&*disk, path, b"new").unwrap();
    }
}
