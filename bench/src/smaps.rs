//! The memory of this process without the value log's pages: those belong to the page cache, which
//! the kernel takes back at need; what remains is what a key costs.
//!
//! Invariant: everything resident counts but mappings of files in the value log's folder.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Resident memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Resident {
    /// Of everything.
    pub(crate) all_bytes: u64,
    /// Of mappings of value-log segments.
    pub(crate) value_log_bytes: u64,
}

impl Resident {
    /// What this process, with an engine on `data`, has resident now.
    pub(crate) fn now(data: &Path) -> Result<Self> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").context("read smaps")?;
        let resident = parse(&smaps, &data.canonicalize()?.join("t2"));
        ensure!(resident.all_bytes > 0, "/proc/self/smaps lists no resident memory");
        Ok(resident)
    }

    /// Without the value log.
    pub(crate) fn without_value_log(self) -> u64 {
        self.all_bytes - self.value_log_bytes
    }
}

/// Resident memory of this process that no file backs.
pub(crate) fn anonymous_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(1024 * kibibytes.context("/proc/self/status does not say RssAnon")?)
}

fn parse(smaps: &str, value_log: &Path) -> Resident {
    let mut found = Resident::default();
    let mut is_value_log = false;
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kibibytes: u64 =
                rest.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
            found.all_bytes += 1024 * kibibytes;
            if is_value_log {
                found.value_log_bytes += 1024 * kibibytes;
            }
        } else if is_header(line) {
            // Address, permissions, offset, device and inode; then, after blanks, the path.
            let path = line.splitn(6, ' ').nth(5).unwrap_or("").trim_start();
            is_value_log = Path::new(path).starts_with(value_log);
        }
    }
    found
}

/// A mapping begins with its addresses, a field of one with its name and a colon.
fn is_header(line: &str) -> bool {
    let first = line.split(' ').next().unwrap_or("");
    !first.ends_with(':') && first.contains('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0010000 r-xp 00000000 fe:00 123                        /usr/bin/bench
Size:                 64 kB
Rss:                  40 kB
Pss:                  40 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0004000000 rw-s 00000000 fe:00 456                        /data/a b/t2/1.t2
Rss:               65536 kB
Anonymous:             0 kB
7f0004000000-7f0008000000 r--s 00000000 fe:00 456                        /data/a b/t2/1.t2
Rss:                 100 kB
7f0010000000-7f0010001000 rw-p 00000000 00:00 0 
Rss:                   4 kB
7f0010001000-7f0010002000 rw-s 00000000 fe:00 9                          /data/a b/t22/1.t2
Rss:                   8 kB
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                  12 kB
";

    #[test]
    fn the_value_log_is_told_apart() {
        let resident = parse(SMAPS, Path::new("/data/a b/t2"));
        assert_eq!(resident.value_log_bytes, (65_536 + 100) << 10);
        assert_eq!(resident.without_value_log(), (40 + 4 + 8 + 12) << 10);
        assert_eq!(parse("", Path::new("/")), Resident::default());
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(anonymous_bytes().expect("status") > 100 << 10);
        let now = || Resident::now(Path::new(".")).expect("smaps").without_value_log();
        // Other tests of this process give memory back meanwhile: it is looked at several times.
        let grew = (0..50).any(|_| {
            let before = now();
            let more = std::hint::black_box(vec![1u8; 32 << 20]);
            let after = now();
            drop(more);
            std::thread::sleep(std::time::Duration::from_millis(20));
            after >= before + (30 << 20)
        });
        assert!(grew, "32 MiB more are never seen");
    }
}
