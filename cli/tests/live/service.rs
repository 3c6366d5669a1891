//! A `vmemkv dev` of a test's own, and the command line that talks to it.
//!
//! Invariant: the process ends with the test, however the test ends.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The binary that this test was built with.
pub(crate) fn vmemkv() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmemkv"));
    command.env_remove("VMEMKV_ADDR").stdin(Stdio::null());
    command
}

/// A running `vmemkv dev`.
pub(crate) struct Service {
    child: Child,
    pub(crate) ready: Value,
    dir: tempfile::TempDir,
}

impl Service {
    pub(crate) fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), &[])
    }

    pub(crate) fn start_in(dir: tempfile::TempDir, arguments: &[&str]) -> Self {
        let mut child = vmemkv()
            .args(["dev", "--router-port", "0", "--server-port", "0", "--json", "--data"])
            .arg(dir.path().join("data"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Self { child, ready, dir }
    }

    pub(crate) fn address(&self, name: &str) -> &str {
        self.ready[name].as_str().unwrap()
    }

    /// A file of this test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command to this service.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = vmemkv();
        command.args(["--addr", self.address("router")]).args(arguments).current_dir(&self.dir);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        Run::of(&self.command(arguments).output().unwrap())
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Run {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        Run::of(&child.wait_with_output().unwrap())
    }

    /// Sends a signal to the service.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    /// Ends it gracefully; the directory is the caller's.
    pub(crate) fn stop(mut self) -> tempfile::TempDir {
        self.signal("TERM");
        assert!(self.wait().success());
        self.into_dir()
    }

    /// The same with SIGKILL.
    pub(crate) fn kill(mut self) -> tempfile::TempDir {
        self.signal("KILL");
        assert!(!self.wait().success());
        self.into_dir()
    }

    fn into_dir(mut self) -> tempfile::TempDir {
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a command printed, and its exit status.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout.clone()).unwrap(),
            err: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    /// It did its work: what it printed.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// It did its work: the JSON that it printed.
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// It ended with this status and one line of error: the line.
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        let line = self.err.lines().last().unwrap_or_default().to_owned();
        assert!(line.starts_with("error: "), "{self:?}");
        line
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

/// Waits for a process that is about to end.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let since = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "the process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Writes a file of a test.
pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) {
    std::fs::write(path, text).unwrap();
}
