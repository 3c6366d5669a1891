//! Progress of an import or export: a bar on a terminal, a line now and then elsewhere.
//!
//! Invariant: it is on stderr, and never more than a line each [`LINE_EVERY`].

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::{Output, bytes_text};

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// How far a transfer has come.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    output: Output,
    bar: Option<ProgressBar>,
    total: Option<u64>,
    started: Instant,
    printed: Instant,
}

impl Progress {
    /// Begins; `total` is in bytes, if it is known.
    pub fn start(what: &'static str, output: Output, total: Option<u64>) -> Self {
        let bar = output.stderr_is_terminal().then(|| {
            let bar = match total {
                Some(total) => ProgressBar::new(total),
                None => ProgressBar::new_spinner(),
            };
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            let template = if total.is_some() {
                "{prefix} [{bar:30}] {bytes}/{total_bytes} {msg} ({binary_bytes_per_sec}, {eta} left)"
            } else {
                "{prefix} {spinner} {bytes} {msg} ({binary_bytes_per_sec})"
            };
            let style = ProgressStyle::with_template(template);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.with_prefix(what)
        });
        let now = Instant::now();
        Self { what, output, bar, total, started: now, printed: now }
    }

    /// So many bytes and entries are done.
    pub fn update(&mut self, bytes: u64, entries: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
            bar.set_message(format!("{entries} entries"));
            return;
        }
        if self.printed.elapsed() < LINE_EVERY {
            return;
        }
        self.printed = Instant::now();
        let done = match self.total {
            Some(total) if total > 0 => format!(
                "{} of {} ({} %)",
                bytes_text(bytes),
                bytes_text(total),
                bytes * 100 / total
            ),
            _ => bytes_text(bytes),
        };
        let seconds = self.seconds();
        self.output.note(format!("{}: {done}, {entries} entries, {seconds:.0} s", self.what));
    }

    /// Since the beginning.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Takes the bar away, so that other lines can be printed.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
