//! One process at a time over a directory: the file `LOCK`, locked with `flock`.
//!
//! Invariants: the lock belongs to the open file, so it ends with the process however that dies,
//! and excludes a second open in the same process too. The process id in the file is for messages
//! only: it may be stale or missing, the lock never is.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use super::{Disk, File};
use crate::error::{Error, ErrorKind, Result};

const NAME: &str = "LOCK";
/// The process id is written at this width, so that no write ever needs new space.
const PID_WIDTH: usize = 20;

/// The exclusive use of a directory, until it is dropped.
pub struct LockFile {
    _file: Arc<dyn File>,
}

impl LockFile {
    /// Takes the lock, or says who has it ([`ErrorKind::InUse`]).
    pub fn acquire(disk: &dyn Disk) -> Result<LockFile> {
        let path = Path::new(NAME);
        let file = match disk.create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => disk.open(path),
            other => other,
        }
        .map_err(|error| Error::io("open", disk.root().join(path), &error))?;
        match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let root = disk.root().display();
                let holder = holder(&*file);
                let message = format!("directory {root} is in use by {holder}");
                return Err(Error::new(ErrorKind::InUse, message));
            }
            Err(error) => return Err(Error::io("lock", file.path(), &error.into())),
        }
        // Only a message depends on it; a full disk must not keep the engine from opening.
        let _ = file.write_at(0, format!("{:<PID_WIDTH$}\n", std::process::id()).as_bytes());
        Ok(LockFile { _file: file })
    }
}

fn holder(file: &dyn File) -> String {
    let mut bytes = [0; PID_WIDTH];
    let text = file.read_at(0, &mut bytes).ok().and_then(|()| std::str::from_utf8(&bytes).ok());
    match text.and_then(|text| text.trim().parse::<u32>().ok()) {
        Some(pid) if pid == std::process::id() => format!("this process ({pid})"),
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::OsDisk;

    #[test]
    fn a_second_open_says_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let disk = OsDisk::new(dir.path());
        let lock = LockFile::acquire(&disk).unwrap();
        let error = LockFile::acquire(&disk).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(error.message().contains(&std::process::id().to_string()), "{error}");
        assert!(error.message().contains(&*dir.path().to_string_lossy()), "{error}");
        drop(lock);
        LockFile::acquire(&disk).unwrap();
    }

    #[test]
    fn garbage_in_the_file_does_not_matter() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), [0xff; 100]).unwrap();
        LockFile::acquire(&OsDisk::new(dir.path())).unwrap();
    }
}
