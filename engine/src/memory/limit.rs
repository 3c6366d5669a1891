//! The memory that this process may take: the least of what its control groups and the machine
//! allow, less what all but the indexes needs.
//!
//! Invariants: a pure function of the texts that the kernel shows, which are handed in; a limit
//! that cannot be read is none; the answer is never 0.

use std::path::{Path, PathBuf};

/// Where the groups are mounted.
const V2: &str = "/sys/fs/cgroup";
const V1: &str = "/sys/fs/cgroup/memory";
/// Threads, connections, requests under way: what a process takes that holds no keys.
const PROCESS_BYTES: u64 = 64 << 20;

/// Reads a file of the kernel; `None` when there is none.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The budget of the indexes of an engine whose rings and buffers take `buffers_bytes`.
pub(crate) fn default_budget(buffers_bytes: u64) -> u64 {
    let limit = process_limit(&|path| std::fs::read_to_string(path).ok());
    limit.map_or(u64::MAX, |limit| budget(limit, buffers_bytes))
}

/// The indexes' part of `limit` bytes: all but the buffers, the process itself and an eighth for
/// what the allocator loses and the page cache of what is being written. At least a quarter: where
/// the rest does not fit either, no budget helps.
fn budget(limit: u64, buffers_bytes: u64) -> u64 {
    let rest = buffers_bytes.saturating_add(PROCESS_BYTES).saturating_add(limit / 8);
    limit.saturating_sub(rest).max(limit / 4).max(1)
}

/// The least of all limits in bytes; `None` when nothing limits.
fn process_limit(read: Read<'_>) -> Option<u64> {
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| total(&text));
    groups
        .lines()
        .flat_map(limit_files)
        .filter_map(|path| limit(&read(&path)?))
        .chain(machine)
        .min()
}

/// The files with the limits of a group and of all groups around it; for a line of
/// `/proc/self/cgroup`.
///
/// In a container the path may be one of the host's, of which only the root is to be seen: that is
/// the container's own group then, so the root is always among them.
fn limit_files(line: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
    else {
        return Vec::new();
    };
    let (mount, files): (_, &[&str]) = if controllers.is_empty() {
        (V2, &["memory.max", "memory.high"])
    } else if controllers.split(',').any(|controller| controller == "memory") {
        (V1, &["memory.limit_in_bytes"])
    } else {
        return Vec::new();
    };
    let group = Path::new(mount).join(path.trim_start_matches('/'));
    let around = group.ancestors().take_while(|group| group.starts_with(mount));
    around.flat_map(|group| files.iter().map(|file| group.join(file))).collect()
}

/// A limit of version 1 or 2. Version 1 says "none" by a number beyond every machine.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes > 0)
}

/// The memory of the machine.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: (&str, &str) = ("/proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\n");

    fn found(files: &[(&str, &str)]) -> Option<u64> {
        process_limit(&|path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn without_groups_the_machine_counts() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[MACHINE]), Some(1_024_000));
        assert_eq!(found(&[MACHINE, ("/proc/self/cgroup", "0::/\n")]), Some(1_024_000));
        for broken in ["", "MemTotal:", "MemTotal: x kB", "MemTotal: 7"] {
            assert_eq!(found(&[("/proc/meminfo", broken)]), None, "{broken}");
        }
    }

    #[test]
    fn version_2_with_groups_in_groups() {
        let own = ("/proc/self/cgroup", "0::/a/b\n");
        let at = |group: &str, file: &str| format!("/sys/fs/cgroup{group}/{file}");
        let (max_b, max_a) = (at("/a/b", "memory.max"), at("/a", "memory.max"));
        let (high_b, root) = (at("/a/b", "memory.high"), at("", "memory.max"));
        assert_eq!(found(&[MACHINE, own, (&max_b, "max\n")]), Some(1_024_000));
        assert_eq!(found(&[MACHINE, own, (&max_b, "5000\n")]), Some(5000));
        // The group around it allows less.
        assert_eq!(found(&[MACHINE, own, (&max_b, "5000\n"), (&max_a, "4000\n")]), Some(4000));
        assert_eq!(found(&[MACHINE, own, (&max_b, "max\n"), (&max_a, "4000\n")]), Some(4000));
        assert_eq!(found(&[MACHINE, own, (&max_b, "5000\n"), (&high_b, "3000\n")]), Some(3000));
        // A container whose own group is what it sees as the root.
        assert_eq!(found(&[MACHINE, own, (&root, "2000\n")]), Some(2000));
        // More than there is.
        assert_eq!(found(&[MACHINE, own, (&max_b, "99999999999\n")]), Some(1_024_000));
    }

    #[test]
    fn version_1_alone_and_beside_version_2() {
        let none = "9223372036854771712\n";
        let own = ("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/a/b\n0::/\n");
        let b = "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes";
        let root = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(found(&[MACHINE, own, (b, none)]), Some(1_024_000));
        assert_eq!(found(&[MACHINE, own, (b, "6000\n"), (root, none)]), Some(6000));
        assert_eq!(found(&[MACHINE, own, (b, none), (root, "5000\n")]), Some(5000));
        // A group of another controller says nothing of memory.
        let cpu = "/sys/fs/cgroup/cpu,cpuacct/x/memory.limit_in_bytes";
        assert_eq!(found(&[MACHINE, own, (cpu, "1\n")]), Some(1_024_000));
    }

    #[test]
    fn odd_lines_are_no_groups() {
        for line in ["", "0", "0:", "0::", "x:memory", ":memory:"] {
            let files = limit_files(line);
            assert!(files.iter().all(|file| file.starts_with(V2)), "{line}: {files:?}");
        }
        // Out of the mount by way of the parent: no file of ours to read, and no panic.
        assert!(limit_files("0::/../../x").iter().all(|file| file.starts_with(V2)));
    }

    #[test]
    fn the_rest_is_left_out_and_something_always_remains() {
        assert_eq!(budget(1 << 30, 32 << 20), (1 << 30) - (32 << 20) - (64 << 20) - (128 << 20));
        assert_eq!(budget(64 << 20, 32 << 20), 16 << 20);
        assert_eq!(budget(1, u64::MAX), 1);
        assert!(budget(u64::MAX, 0) > 1 << 60);
    }
}
