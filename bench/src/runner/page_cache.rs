//! Dropping the page cache of the data, and a look at what stayed.
//!
//! Invariant: only the named files are dropped, not the machine's cache, so that neighbours keep
//! theirs; what stayed is counted, not assumed away.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use anyhow::{Context, Result};

const PAGE_BYTES: usize = 4096;

/// Syncs every file below `dir` and drops its pages. Returns the bytes that are still in memory: of
/// pages that another process has mapped, for example.
pub(crate) fn drop_below(dir: &Path) -> Result<u64> {
    let mut left = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            left += drop_below(&path)?;
        } else {
            let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
            left += drop_file(&file)
                .with_context(|| format!("drop {} from the page cache", path.display()))?;
        }
    }
    Ok(left)
}

/// Syncs every file below `dir`; files may go meanwhile.
pub(crate) fn sync_below(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            sync_below(&path)?;
            continue;
        }
        match File::open(&path).and_then(|file| file.sync_data()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("sync {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

fn drop_file(file: &File) -> io::Result<u64> {
    // A dirty page is not dropped.
    file.sync_all()?;
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    let error = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    resident_bytes(file)
}

/// How much of a file is in the page cache.
fn resident_bytes(file: &File) -> io::Result<u64> {
    let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    if bytes == 0 {
        return Ok(0);
    }
    let (shared, read) = (libc::MAP_SHARED, libc::PROT_READ);
    // SAFETY: a new mapping at an address that the kernel chooses; it is never read, only asked
    // about, and goes below.
    let address =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, read, shared, file.as_raw_fd(), 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut pages = vec![0u8; bytes.div_ceil(PAGE_BYTES)];
    // SAFETY: mincore reads nothing of the mapping and writes one byte for each page of it; the
    // mapping is ours, and nobody refers to it after munmap.
    let failed = unsafe {
        let failed = libc::mincore(address, bytes, pages.as_mut_ptr()) != 0;
        libc::munmap(address, bytes);
        failed
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    let resident = pages.iter().filter(|&&page| page & 1 == 1).count();
    Ok((resident * PAGE_BYTES) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_resident_until_it_is_dropped() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("dir");
        fs::create_dir(dir.path().join("inner")).expect("mkdir");
        let path = dir.path().join("inner/file");
        fs::write(&path, vec![7; 1 << 20]).expect("write");
        fs::write(dir.path().join("empty"), "").expect("write");
        let file = File::open(&path).expect("open");
        assert!(resident_bytes(&file).expect("resident") > 0);
        assert_eq!(drop_below(dir.path()).expect("drop"), 0);
        assert_eq!(resident_bytes(&file).expect("resident"), 0);
    }
}
