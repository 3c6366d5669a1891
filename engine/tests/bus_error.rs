//! A page of a mapped value segment that cannot be read: in child processes, for it ends them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vmemkv_engine::{
    Condition, EXIT_BUS_ERROR, Engine, ErrorKind, Options, ReadPolicy, ScanOptions,
};

const CHILD: &str = "VMEMKV_BUS_ERROR_CHILD";
/// How a process ends whose own handler was passed the fault.
const EXIT_OWN_HANDLER: i32 = 42;

/// Runs the child part of a test in a process of its own.
fn child(test: &str, dir: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, dir)
        .output()
        .unwrap()
}

/// Where the child works; `None` in the parent.
fn child_dir() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// An engine with base records of two pages, whose segment file is then cut under its mapping.
fn cut_engine(dir: &Path, policy: ReadPolicy) -> Engine {
    let options = Options { read_policy: policy, ..Options::for_tests() };
    let engine = Engine::open(dir.join("data"), options).unwrap();
    for key in [&b"a"[..], b"b", b"c"] {
        engine.put(key, &[7; 8000], &Condition::None).unwrap();
    }
    engine.checkpoint().unwrap();
    let file = fs::OpenOptions::new().write(true).open(dir.join("data/t2/0.t2")).unwrap();
    file.set_len(4096).unwrap();
    engine
}

fn assert_named(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(EXIT_BUS_ERROR), "{:?}: {stderr}", output.status);
    let line = stderr.lines().find(|line| line.starts_with("vmemkv: ")).unwrap();
    assert!(line.contains("data/t2/0.t2 at offset "), "{line}");
    let offset = line.split("at offset ").nth(1).unwrap().split(' ').next().unwrap();
    // Behind what was left of the file, and inside the records.
    let offset: u64 = offset.parse().unwrap();
    assert!((4096..40_000).contains(&offset), "{line}");
}

#[test]
fn a_lost_page_of_a_mapping_is_named_and_ends_the_process() {
    if let Some(dir) = child_dir() {
        let engine = cut_engine(&dir, ReadPolicy::Random);
        println!("{:?}", engine.get(b"b"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert_named(&child("a_lost_page_of_a_mapping_is_named_and_ends_the_process", dir.path()));
}

#[test]
fn a_lost_page_under_a_scan_too() {
    if let Some(dir) = child_dir() {
        let engine = cut_engine(&dir, ReadPolicy::Sequential);
        // On another thread, with its own signal stack.
        std::thread::scope(|scope| {
            scope.spawn(|| println!("{:?}", engine.scan(&ScanOptions::default())));
        });
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert_named(&child("a_lost_page_under_a_scan_too", dir.path()));
}

/// A page of a file of somebody else's, lost.
fn fault_elsewhere(dir: &Path) {
    let file = fs::File::options().read(true).write(true).create_new(true).open(dir.join("own"));
    let file = file.unwrap();
    file.set_len(4096).unwrap();
    // SAFETY: a new mapping of an own file; read below, which is what the test is about.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    file.set_len(0).unwrap();
    // SAFETY: the page is mapped; the read faults, on purpose.
    println!("{}", unsafe { page.cast::<u8>().read_volatile() });
}

#[test]
fn a_fault_elsewhere_ends_the_process_as_without_us() {
    if let Some(dir) = child_dir() {
        let _engine = Engine::open(dir.join("data"), Options::for_tests()).unwrap();
        fault_elsewhere(&dir);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = child("a_fault_elsewhere_ends_the_process_as_without_us", dir.path());
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

extern "C" fn own_handler(_signal: i32) {
    // SAFETY: ends the process; async-signal-safe.
    unsafe { libc::_exit(EXIT_OWN_HANDLER) };
}

#[test]
fn a_fault_elsewhere_goes_to_the_handler_of_before() {
    if let Some(dir) = child_dir() {
        // SAFETY: the handler is async-signal-safe.
        unsafe { libc::signal(libc::SIGBUS, own_handler as *const () as libc::sighandler_t) };
        for _ in 0..2 {
            // Installed once: the second open must not take our own handler for the one before.
            drop(Engine::open(dir.join("data"), Options::for_tests()).unwrap());
        }
        fault_elsewhere(&dir);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = child("a_fault_elsewhere_goes_to_the_handler_of_before", dir.path());
    assert_eq!(output.status.code(), Some(EXIT_OWN_HANDLER), "{output:?}");
}

#[test]
fn a_sigbus_that_somebody_sends_is_not_ours() {
    if let Some(dir) = child_dir() {
        let _engine = Engine::open(dir.join("data"), Options::for_tests()).unwrap();
        // The handler of the standard library takes the first for a fault that will come again.
        for _ in 0..2 {
            // SAFETY: sends a signal to the own process.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = child("a_sigbus_that_somebody_sends_is_not_ours", dir.path());
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

/// A cold record is read by `pread`: an error, no signal, and the rest serves.
#[test]
fn a_cold_record_that_cannot_be_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let engine = cut_engine(dir.path(), ReadPolicy::Adaptive);
    engine.put(b"d", b"inline", &Condition::None).unwrap();
    for key in [&b"a"[..], b"b", b"c"] {
        let error = engine.get(key).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(error.key(), Some(key));
        assert!(error.message().contains("t2/0.t2"), "{error}");
    }
    assert_eq!(engine.get(b"d").unwrap().unwrap(), b"inline");
}
