//! A memory cgroup for one measured process, v1 or v2: found, made, watched and removed.
//!
//! Invariants: the group lies below the one that this process is in (v2: the nearest that hands the
//! memory controller down), so the limits around us still hold; it is removed when the run ends;
//! where none can be made that is an error that says why.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

const NAME: &str = "vmemkv-bench-";

/// Which interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    /// One hierarchy for each controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// Where this process is.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    version: Version,
    /// The directory of our group.
    group: PathBuf,
    /// Where its hierarchy is mounted.
    mount: PathBuf,
}

/// A group that was made for a run; removed when dropped.
#[derive(Debug)]
pub(crate) struct Cgroup {
    version: Version,
    path: PathBuf,
    limit_bytes: u64,
}

/// Memory at one moment; `None` where the kernel does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MemoryUse {
    /// The most so far, page cache included.
    pub(crate) peak_bytes: Option<u64>,
    /// In swap now.
    pub(crate) swap_bytes: Option<u64>,
    /// Processes killed for memory.
    pub(crate) kills: u64,
}

impl Cgroup {
    /// Makes a group whose processes get at most `limit_bytes` of memory, page cache included, and
    /// whatever swap there is.
    pub(crate) fn make(limit_bytes: u64) -> Result<Self> {
        Self::try_make(limit_bytes).context(
            "a memory limit needs a cgroup, and none can be made: run as root, or in a group that \
             is delegated with its memory controller (`systemd-run --user --scope -p Delegate=yes`)",
        )
    }

    fn try_make(limit_bytes: u64) -> Result<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?;
        let place = locate(&groups, &mounts).context("no memory cgroup is mounted")?;
        let parent = match place.version {
            Version::V1 => place.group,
            Version::V2 => delegating(&place)?,
        };
        remove_stale(&parent);
        let path = parent.join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        let group = Self { version: place.version, path, limit_bytes };
        let limit = group.file("memory.limit_in_bytes", "memory.max");
        fs::write(&limit, limit_bytes.to_string())
            .with_context(|| format!("write {}", limit.display()))?;
        // The kernel rounds down to pages.
        let set: u64 = fs::read_to_string(&limit)?.trim().parse().unwrap_or(u64::MAX);
        ensure!(
            set.abs_diff(limit_bytes) <= 1 << 16,
            "{} took {set} instead of {limit_bytes}",
            limit.display()
        );
        Ok(group)
    }

    /// Moves the calling process into the group at `path`: what it uses from now on counts there.
    pub(crate) fn enter(path: &Path) -> Result<()> {
        let file = path.join("cgroup.procs");
        fs::write(&file, "0").with_context(|| format!("write {}", file.display()))
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The limit.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// `v1` or `v2`.
    pub(crate) fn version(&self) -> &'static str {
        match self.version {
            Version::V1 => "v1",
            Version::V2 => "v2",
        }
    }

    /// What its processes use.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        let number = |name| fs::read_to_string(self.path.join(name)).ok()?.trim().parse().ok();
        let text = |name| fs::read_to_string(self.path.join(name)).unwrap_or_default();
        match self.version {
            Version::V1 => MemoryUse {
                peak_bytes: number("memory.max_usage_in_bytes"),
                swap_bytes: field(&text("memory.stat"), "swap"),
                kills: field(&text("memory.oom_control"), "oom_kill").unwrap_or(0),
            },
            Version::V2 => MemoryUse {
                peak_bytes: number("memory.peak").or_else(|| number("memory.current")),
                swap_bytes: number("memory.swap.current"),
                kills: field(&text("memory.events"), "oom_kill").unwrap_or(0),
            },
        }
    }

    fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.path.join(if self.version == Version::V1 { v1 } else { v2 })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has just ended may still be counted for a moment.
        for _ in 0..50 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("vmemkv-bench: cannot remove the cgroup {}", self.path.display());
    }
}

/// The nearest group, from ours up, that gives its children the memory controller.
fn delegating(place: &Place) -> Result<PathBuf> {
    let within = place.group.ancestors().take_while(|path| path.starts_with(&place.mount));
    for path in within {
        let given = fs::read_to_string(path.join("cgroup.subtree_control")).unwrap_or_default();
        if given.split_whitespace().any(|controller| controller == "memory") {
            return Ok(path.to_owned());
        }
    }
    bail!("no cgroup from {} up hands its memory controller down", place.group.display())
}

/// Removes groups of runs that were killed.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(NAME));
        let is_stale = pid.is_some_and(|pid| {
            pid.bytes().all(|byte| byte.is_ascii_digit()) && !Path::new("/proc").join(pid).exists()
        });
        if is_stale {
            // One that cannot go is in nobody's way: ours has another name.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Finds our group from `/proc/self/cgroup` and `/proc/self/mountinfo`. A v1 memory hierarchy wins
/// over v2: then v2 has no memory controller.
fn locate(groups: &str, mounts: &str) -> Option<Place> {
    let group_of = |wanted: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            wanted(controllers).then_some(path)
        })
    };
    let mount_of = |wanted: &dyn Fn(&str, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut after = after.split(' ');
            let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
            let mut before = before.split(' ').skip(3);
            let (root, at) = (before.next()?, before.next()?);
            wanted(kind, options).then_some((root, at))
        })
    };
    let place = |version, path: &str, (root, at): (&str, &str)| {
        let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
        let group = Path::new(at).join(below.trim_start_matches('/'));
        Some(Place { version, group, mount: at.into() })
    };
    let is_memory = |list: &str| list.split(',').any(|controller| controller == "memory");
    if let Some(path) = group_of(&|controllers| is_memory(controllers))
        && let Some(mount) = mount_of(&|kind, options| kind == "cgroup" && is_memory(options))
    {
        return place(Version::V1, path, mount);
    }
    let path = group_of(&str::is_empty)?;
    place(Version::V2, path, mount_of(&|kind, _| kind == "cgroup2")?)
}

/// The number behind a name in a file of `name number` lines.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (found, number) = line.split_once(' ')?;
        (found == name).then(|| number.trim().parse().ok())?
    })
}

#[cfg(test)]
#[path = "cgroup_test.rs"]
mod tests;
