//! Where the engine's atomics, locks and threads come from.
//!
//! Invariant: whatever a thread of the engine may wait for, or be interrupted at while others
//! look, comes from `sync::primitives`, so that the explorer of thread schedules sees it. A lock
//! from elsewhere would stop the explorer for ever: all its threads are one.

use crate::finding::Finding;
use crate::scan::{blank_comments_and_literals, inline_module_depth, line_of};
use crate::tree::SourceFile;

const ROOT: &str = "engine/src/";
/// Files and folders with a reason of their own: the primitives themselves, disks (whose locks are
/// never held over a step of the engine), counters that order nothing, a signal handler.
const EXEMPT: [&str; 5] =
    ["sync/primitives.rs", "sync/explore", "io/", "stats.rs", "value_log/bus_error.rs"];
const FORBIDDEN: [&str; 10] = [
    "parking_lot",
    "std::sync::atomic",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::Condvar",
    "std::sync::mpsc",
    "std::thread",
    "std::hint::spin_loop",
    "arc_swap::ArcSwap",
    "crossbeam_channel",
];
/// What begins like something forbidden and is no step.
const HARMLESS: [&str; 3] =
    ["std::sync::atomic::Ordering", "std::thread::available_parallelism", "std::thread::panicking"];

/// The primitives of one file. Tests, in files or inline modules of their own, are free.
pub(crate) fn check(file: &SourceFile) -> Vec<Finding> {
    let Some(inner) = file.path.strip_prefix(ROOT) else { return Vec::new() };
    let is_test = inner.ends_with("_test.rs") || inner.contains("test");
    if !file.is_rust() || is_test || EXEMPT.iter().any(|exempt| inner.starts_with(exempt)) {
        return Vec::new();
    }
    let text = blank_comments_and_literals(&file.text);
    let mut findings = Vec::new();
    for forbidden in FORBIDDEN {
        for (position, _) in text.match_indices(forbidden) {
            let is_harmless = HARMLESS.iter().any(|name| text[position..].starts_with(name));
            if !is_harmless && inline_module_depth(&text, position) == 0 {
                let what = format!(
                    "`{forbidden}`: take it from `crate::sync::primitives`, so that the explorer \
                     of thread schedules sees it"
                );
                findings.push(Finding::error(&file.path, line_of(&text, position), what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile { path: format!("{ROOT}{path}"), text: text.into() };
        check(&file).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn real_primitives_are_refused() {
        assert_eq!(found("wal/space.rs", "\nuse parking_lot::Mutex;\n"), [2]);
        assert_eq!(found("core.rs", "use std::sync::atomic::{AtomicU64, Ordering};\n"), [1]);
        assert_eq!(found("jobs/a.rs", "fn a() {\n    std::thread::spawn(|| ());\n}\n"), [2]);
    }

    #[test]
    fn tests_disks_and_what_is_no_step_are_free() {
        assert!(found("wal/ring_test.rs", "use std::thread;\n").is_empty());
        assert!(found("wal/ring.rs", "mod tests {\n    use std::thread;\n}\n").is_empty());
        assert!(found("io/durable.rs", "use parking_lot::Mutex;\n").is_empty());
        let text = "use crate::sync::primitives::Mutex;\nfn a() { std::thread::panicking() }\n";
        assert!(found("wal/flusher.rs", text).is_empty());
    }
}
