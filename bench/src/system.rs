//! What the operating system knows about this process and the disk under a directory.
//!
//! Invariant: a figure that the system does not give is an error or has a named substitute, never
//! a silent zero.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;
const PAGE_BYTES: u64 = 4096;

/// The block device that holds a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Device {
    statistics: Option<PathBuf>,
}

impl Device {
    /// The device under `dir`; none for file systems without one, such as overlays.
    pub(crate) fn of(dir: &Path) -> Result<Self> {
        let device = fs::metadata(dir).with_context(|| format!("look at {}", dir.display()))?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        Ok(Self { statistics: path.exists().then_some(path) })
    }

    /// Where the number of device reads comes from.
    pub(crate) fn source(&self) -> &'static str {
        if self.statistics.is_some() { "device" } else { "process pages" }
    }

    /// Reads that the device has completed, of all processes.
    fn reads(&self) -> Option<u64> {
        self.statistic(0)
    }

    /// Bytes that the device has written, of all processes.
    pub(crate) fn written_bytes(&self) -> Option<u64> {
        // Sectors, which are of 512 bytes there whatever the device's own are.
        Some(512 * self.statistic(6)?)
    }

    fn statistic(&self, position: usize) -> Option<u64> {
        let text = fs::read_to_string(self.statistics.as_ref()?).ok()?;
        text.split_whitespace().nth(position)?.parse().ok()
    }
}

/// Resources used, since some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// Processor time of all threads of this process, in seconds.
    pub(crate) cpu_s: f64,
    /// Reads of the device by all processes; without a device, pages that this process read.
    pub(crate) device_reads: u64,
    /// Bytes that this process had read from a device.
    pub(crate) device_read_bytes: u64,
}

impl Usage {
    /// Since the process started (the device: since the machine did).
    pub(crate) fn now(device: &Device) -> Self {
        let device_read_bytes = field("/proc/self/io", "read_bytes:").unwrap_or(0);
        Self {
            cpu_s: cpu_seconds(),
            device_reads: device.reads().unwrap_or(device_read_bytes / PAGE_BYTES),
            device_read_bytes,
        }
    }

    /// The difference to an earlier look.
    pub(crate) fn since(self, earlier: &Self) -> Self {
        Self {
            cpu_s: self.cpu_s - earlier.cpu_s,
            device_reads: self.device_reads.saturating_sub(earlier.device_reads),
            device_read_bytes: self.device_read_bytes.saturating_sub(earlier.device_read_bytes),
        }
    }
}

fn cpu_seconds() -> f64 {
    // SAFETY: a zeroed rusage is a valid value of a plain C struct, and getrusage only writes to
    // the one it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The most memory that this process has had, in bytes.
pub(crate) fn peak_rss_bytes() -> Result<u64> {
    let kibibytes = field("/proc/self/status", "VmHWM:");
    Ok(1024 * kibibytes.context("/proc/self/status has no VmHWM")?)
}

/// The number behind `name` at the start of a line of `file`.
fn field(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Refuses a directory that lives in memory: nothing there would be durable.
pub(crate) fn refuse_memory_file_system(dir: &Path) -> Result<()> {
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes())?;
    // SAFETY: a zeroed statfs is a valid value of a plain C struct; statfs reads the path, which
    // ends with a zero byte, and writes to the struct only.
    let (status, kind) = unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        let status = libc::statfs(path.as_ptr(), &raw mut stat);
        (status, stat.f_type)
    };
    if status != 0 {
        let error = std::io::Error::last_os_error();
        return Err(error).with_context(|| format!("look at the file system of {}", dir.display()));
    }
    if is_memory(kind) {
        bail!("{} is on a file system in memory: choose a disk with --dir", dir.display());
    }
    Ok(())
}

fn is_memory(kind: i64) -> bool {
    kind == TMPFS_MAGIC || kind == RAMFS_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_processor_time() {
        let before = Usage::now(&Device::default());
        let mut sum = 0u64;
        while Usage::now(&Device::default()).since(&before).cpu_s < 0.02 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }

    #[test]
    fn memory_is_seen() {
        assert!(peak_rss_bytes().expect("peak") > 1 << 20);
    }

    #[test]
    fn file_systems_in_memory_are_refused() {
        assert!(is_memory(TMPFS_MAGIC) && is_memory(RAMFS_MAGIC) && !is_memory(0xef53));
        let shared = Path::new("/dev/shm");
        if fs::read_to_string("/proc/mounts").is_ok_and(|m| m.contains("tmpfs /dev/shm ")) {
            assert!(refuse_memory_file_system(shared).is_err());
        }
        assert!(refuse_memory_file_system(Path::new("/nowhere/at/all")).is_err());
    }
}
