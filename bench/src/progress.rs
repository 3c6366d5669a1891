//! How far a long step is, on standard error: a bar on a terminal, a line now and then in a pipe.
//!
//! Invariant: nothing goes to standard output, which belongs to the result.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

const ON_A_TERMINAL: Duration = Duration::from_millis(200);
const IN_A_PIPE: Duration = Duration::from_secs(5);
const BAR_CELLS: u64 = 30;

/// The progress of one step.
pub(crate) struct Progress {
    what: String,
    total: u64,
    began: Instant,
    shown: Instant,
    is_terminal: bool,
}

impl Progress {
    /// Begins a step of `total` parts.
    pub(crate) fn new(what: impl Into<String>, total: u64) -> Self {
        let now = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        Self { what: what.into(), total, began: now, shown: now, is_terminal }
    }

    /// Shows that `done` parts are done, unless something was shown a moment ago.
    pub(crate) fn show(&mut self, done: u64) {
        let every = if self.is_terminal { ON_A_TERMINAL } else { IN_A_PIPE };
        if self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        let line = line(&self.what, done, self.total, self.is_terminal);
        if self.is_terminal {
            eprint!("\r{line}\x1b[K");
            // A bar that cannot be shown is no reason to fail.
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    /// Ends the step and says how long it took.
    pub(crate) fn end(&self) {
        let seconds = self.began.elapsed().as_secs_f64();
        let back = if self.is_terminal { "\r\x1b[K" } else { "" };
        eprintln!("{back}{}: done in {seconds:.1} s", self.what);
    }
}

fn line(what: &str, done: u64, total: u64, bar: bool) -> String {
    if !bar {
        return format!("{what}: {done} of {total}");
    }
    let full = (done.min(total) * BAR_CELLS / total.max(1)) as usize;
    let empty = BAR_CELLS as usize - full;
    let percent = 100 * done.min(total) / total.max(1);
    format!("{what} [{}{}] {percent} %", "#".repeat(full), ".".repeat(empty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_and_a_line_counts() {
        assert_eq!(line("loading", 5, 10, false), "loading: 5 of 10");
        assert_eq!(line("x", 0, 10, true), format!("x [{}] 0 %", ".".repeat(30)));
        assert_eq!(line("x", 10, 10, true), format!("x [{}] 100 %", "#".repeat(30)));
        assert_eq!(line("x", 99, 10, true), format!("x [{}] 100 %", "#".repeat(30)));
        assert!(line("x", 0, 0, true).ends_with("0 %"));
    }
}
