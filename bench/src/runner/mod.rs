//! Measured processes: this program started again, under a memory limit if asked for.
//!
//! Invariants: a measured process does one task and answers on its standard output, one JSON object
//! a line; it ends when its standard input does, so it never outlives the run; one that the kernel
//! killed for memory is reported as that, never as a figure.

mod cgroup;
pub(crate) mod page_cache;
pub(crate) mod swap;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use cgroup::Cgroup;
use swap::Swap;

use crate::task::Task;

/// Exit status of a measured process whose starter is gone.
const ORPHANED: i32 = 3;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The usual limit.
pub(crate) const MEMORY_LIMIT_BYTES: u64 = 1 << 30;
/// The usual swap file.
pub(crate) const SWAP_FILE_BYTES: u64 = 8 << 30;

/// What limits a measured process.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    /// Most memory in bytes, page cache included.
    pub(crate) memory_bytes: u64,
    /// Size of the swap file for a machine without swap; 0 = none is made.
    pub(crate) swap_bytes: u64,
    /// Where the swap file goes.
    pub(crate) dir: PathBuf,
}

/// What the limit was and how near the process came.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LimitReport {
    /// Most memory in bytes, page cache included.
    pub(crate) memory_limit_bytes: u64,
    /// The most that was used; null where the kernel does not say.
    pub(crate) memory_peak_bytes: Option<u64>,
    /// The most that was in swap, seen every 100 ms; null where the kernel does not say.
    pub(crate) swap_peak_bytes: Option<u64>,
    /// Size of the swap file that was made for the run; 0 = the machine has swap, or none was
    /// wanted.
    pub(crate) swap_file_bytes: u64,
    /// `v1` or `v2`.
    pub(crate) cgroup: String,
}

impl LimitReport {
    /// A line for people.
    pub(crate) fn text(&self) -> String {
        let mebibytes = |bytes: Option<u64>| match bytes {
            Some(bytes) => format!("{} MiB", bytes >> 20),
            None => "unknown".to_owned(),
        };
        format!(
            "memory limit {} MiB (cgroup {}): peak {}, swap {}",
            self.memory_limit_bytes >> 20,
            self.cgroup,
            mebibytes(self.memory_peak_bytes),
            mebibytes(self.swap_peak_bytes)
        )
    }
}

/// A running measured process.
pub(crate) struct Measured {
    child: Child,
    /// Held open: its end ends the process.
    _input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    limits: Option<Limits>,
}

/// The limit's own resources, in the order in which they go.
struct Limits {
    watch: Watch,
    cgroup: Arc<Cgroup>,
    swap_bytes: u64,
    _swap: Option<Swap>,
}

impl Measured {
    /// Starts the task in a process of its own.
    pub(crate) fn start(task: &Task, limit: Option<&Limit>) -> Result<Self> {
        leave_interrupts_to_the_child();
        let limits = limit.map(Limits::make).transpose()?;
        let program = std::env::current_exe().context("find the path of this program")?;
        let mut command = Command::new(program);
        command.arg("measured").arg("--task").arg(serde_json::to_string(task)?);
        if let Some(limits) = &limits {
            command.arg("--cgroup").arg(limits.cgroup.path());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the measured process")?;
        let _input = child.stdin.take();
        let output = child.stdout.take().context("the measured process has no output")?;
        Ok(Self { child, _input, output: BufReader::new(output), limits })
    }

    /// The next answer; an error if the process ended instead.
    pub(crate) fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("read from the measured process")?;
        if line.is_empty() {
            let status = self.child.wait().context("wait for the measured process")?;
            let limits = self.limits.as_ref();
            if let Some(limits) = limits.filter(|limits| limits.cgroup.memory_use().kills > 0) {
                let limit = limits.cgroup.limit_bytes();
                bail!("the measured process was killed for memory (limit {limit} bytes)");
            }
            if let Some(signal) = status.signal() {
                bail!("the measured process was killed by signal {signal}");
            }
            bail!("the measured process failed ({status})");
        }
        serde_json::from_str(&line).with_context(|| format!("the measured process said {line:?}"))
    }

    /// Kills it with SIGKILL, as a crash would.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill().context("kill the measured process")?;
        self.child.wait().context("wait for the measured process")?;
        Ok(())
    }

    /// Waits for its end. What the limit did, if there was one.
    pub(crate) fn finish(mut self) -> Result<Option<LimitReport>> {
        let status = self.child.wait().context("wait for the measured process")?;
        if !status.success() {
            bail!("the measured process failed ({status})");
        }
        Ok(self.limits.as_ref().map(Limits::report))
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        // Only after an error is it still there; its group cannot go before it.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a task to its end: its one answer, and what the limit did.
pub(crate) fn run<T: DeserializeOwned>(
    task: &Task,
    limit: Option<&Limit>,
) -> Result<(T, Option<LimitReport>)> {
    let mut process = Measured::start(task, limit)?;
    let answer = process.answer()?;
    Ok((answer, process.finish()?))
}

impl Limits {
    fn make(limit: &Limit) -> Result<Self> {
        let cgroup = Arc::new(Cgroup::make(limit.memory_bytes)?);
        let swap = match limit.swap_bytes {
            0 => None,
            bytes => Swap::make(&limit.dir, bytes)?,
        };
        let swap_bytes = swap.as_ref().map_or(0, |_| limit.swap_bytes);
        let watch = Watch::start(Arc::clone(&cgroup));
        Ok(Self { watch, cgroup, swap_bytes, _swap: swap })
    }

    fn report(&self) -> LimitReport {
        LimitReport {
            memory_limit_bytes: self.cgroup.limit_bytes(),
            memory_peak_bytes: self.cgroup.memory_use().peak_bytes,
            swap_peak_bytes: self.watch.swap_peak(),
            swap_file_bytes: self.swap_bytes,
            cgroup: self.cgroup.version().to_owned(),
        }
    }
}

/// Looks at the swap use of a group until it is dropped: kernels before 6.5 keep no peak.
struct Watch {
    shared: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

struct Watched {
    /// Set once; the thread sees it at its next look. Orders nothing.
    is_over: AtomicBool,
    /// The peak plus 1; 0 = the kernel does not say. Orders nothing.
    swap_peak: AtomicU64,
}

impl Watch {
    fn start(cgroup: Arc<Cgroup>) -> Self {
        let shared =
            Arc::new(Watched { is_over: AtomicBool::new(false), swap_peak: AtomicU64::new(0) });
        let watched = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !watched.is_over.load(Ordering::Relaxed) {
                if let Some(bytes) = cgroup.memory_use().swap_bytes {
                    watched.swap_peak.fetch_max(bytes + 1, Ordering::Relaxed);
                }
                std::thread::sleep(LOOK_EVERY);
            }
        });
        Self { shared, thread: Some(thread) }
    }

    fn swap_peak(&self) -> Option<u64> {
        self.shared.swap_peak.load(Ordering::Relaxed).checked_sub(1)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It holds the group; one that panicked does not any more.
            let _ = thread.join();
        }
    }
}

/// Ctrl-C goes to the whole process group: the measured process ends, and this one then reports
/// that, takes back limits and removes copies.
fn leave_interrupts_to_the_child() {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
}

/// The measured process's side: enters the limit before it does anything else, and ends with the
/// process that started it.
pub(crate) fn enter(cgroup: Option<&Path>) -> Result<()> {
    // SAFETY: the default action installs no handler.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    cgroup.map_or(Ok(()), Cgroup::enter)?;
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        // The pipe is never written to: it ends, or cannot be read, when nobody waits for us.
        let _ = std::io::stdin().read_to_end(&mut rest);
        std::process::exit(ORPHANED);
    });
    Ok(())
}

/// Sends an answer to the process that started this one.
pub(crate) fn reply<T: Serialize>(answer: &T) -> Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    let mut output = std::io::stdout().lock();
    output.write_all(line.as_bytes()).and_then(|()| output.flush()).context("answer")
}

/// Waits to be killed.
pub(crate) fn wait_for_the_kill() -> ! {
    loop {
        std::thread::park();
    }
}
