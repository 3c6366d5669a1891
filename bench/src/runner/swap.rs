//! A swap file for the time of a run, on machines that have no swap at all.
//!
//! Invariants: a machine with swap is left as it is; ours is switched off and removed when the run
//! ends, and one that a killed run left is by the next run and by `clean`.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

const NAME: &str = "swap";
const PAGE_BYTES: u64 = 4096;

/// The swap file of a run; removed when dropped.
#[derive(Debug)]
pub(crate) struct Swap {
    path: PathBuf,
}

impl Swap {
    /// Makes and switches on a file of `bytes` in `dir`; none where the machine has swap.
    pub(crate) fn make(dir: &Path, bytes: u64) -> Result<Option<Self>> {
        remove_left(dir)?;
        let swaps = fs::read_to_string("/proc/swaps").context("read /proc/swaps")?;
        if has_swap(&swaps) {
            return Ok(None);
        }
        let path = dir.join(NAME);
        let swap = Self { path: path.clone() };
        swap.fill(bytes).with_context(|| format!("make the swap file {}", path.display()))?;
        let name = CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: swapon reads the path, which ends with a zero byte, and touches no memory of ours.
        let failed = unsafe { libc::swapon(name.as_ptr(), 0) } != 0;
        let error = io::Error::last_os_error();
        ensure!(!failed, "switch on the swap file {}: {error}", path.display());
        Ok(Some(swap))
    }

    fn fill(&self, bytes: u64) -> io::Result<()> {
        let pages = bytes / PAGE_BYTES;
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&self.path)?;
        // SAFETY: the descriptor is open; fallocate touches no memory of ours.
        let failed =
            unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, (pages * PAGE_BYTES) as i64) != 0 };
        if failed {
            return Err(io::Error::last_os_error());
        }
        file.write_all_at(&header(pages), 0)?;
        file.sync_all()
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            eprintln!("vmemkv-bench: the swap file {} stays: {error}", self.path.display());
        }
    }
}

/// Switches off and removes the swap file that a killed run left in `dir`.
pub(crate) fn remove_left(dir: &Path) -> Result<()> {
    let path = dir.join(NAME);
    if path.exists() {
        remove(&path).with_context(|| format!("remove the swap file {}", path.display()))?;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: swapoff reads the path, which ends with a zero byte, and touches no memory of ours.
    let failed = unsafe { libc::swapoff(name.as_ptr()) } != 0;
    let error = io::Error::last_os_error();
    // Not in use as swap is just as well.
    if failed && error.raw_os_error() != Some(libc::EINVAL) {
        let is_ours_in_use = fs::read_to_string("/proc/swaps").is_ok_and(|swaps| {
            swaps.lines().any(|line| line.starts_with(&*path.to_string_lossy()))
        });
        if is_ours_in_use {
            return Err(error);
        }
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether `/proc/swaps` lists any.
fn has_swap(swaps: &str) -> bool {
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

/// The first page of a swap area, as `mkswap` writes it: version 1 and the number of the last page
/// at 1024, the magic at the end.
fn header(pages: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES as usize];
    let last = u32::try_from(pages.saturating_sub(1)).unwrap_or(u32::MAX);
    page[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&last.to_le_bytes());
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_seen() {
        let none = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!has_swap(none));
        assert!(has_swap(&format!("{none}/dev/sda2 partition 8388604 0 -2\n")));
    }

    #[test]
    fn the_header_is_that_of_mkswap() {
        let header = header(2048);
        assert_eq!(header.len(), 4096);
        assert_eq!(&header[4086..], b"SWAPSPACE2");
        assert_eq!(header[1024..1032], [1, 0, 0, 0, 0xff, 0x07, 0, 0]);
    }

    #[test]
    fn a_file_that_a_killed_run_left_is_removed() {
        let dir = tempfile::tempdir().expect("dir");
        fs::write(dir.path().join(NAME), "not in use").expect("write");
        remove_left(dir.path()).expect("remove");
        remove_left(dir.path()).expect("nothing to remove");
        assert!(!dir.path().join(NAME).exists());
    }
}
