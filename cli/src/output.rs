//! What a command prints, and where: data on stdout, everything else on stderr.
//!
//! Invariants: with `--json` stdout carries JSON only; a write to a pipe whose reader has gone ends
//! the command quietly; nothing here panics on a failed write.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::Value;

use crate::failure::{Failure, Result};

/// Where results go, and in which form.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
}

impl Output {
    /// Prints JSON if `json` is set, else text.
    pub fn new(json: bool) -> Self {
        Self {
            json,
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Whether `--json` was given.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Whether a person reads stdout.
    pub fn stdout_is_terminal(self) -> bool {
        self.stdout_is_terminal
    }

    /// Whether a person reads stderr.
    pub fn stderr_is_terminal(self) -> bool {
        self.stderr_is_terminal
    }

    /// One line of text on stdout.
    pub fn line(self, text: impl AsRef<str>) -> Result {
        let mut out = self.writer();
        out.line(text.as_ref())?;
        out.finish()
    }

    /// One JSON value on stdout, on a line of its own.
    pub fn value(self, value: &Value) -> Result {
        self.line(value.to_string())
    }

    /// `value` with `--json`, else `text`.
    pub fn either(self, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> Result {
        if self.json { self.value(&value()) } else { self.line(text()) }
    }

    /// Many lines on stdout, buffered.
    pub fn writer(self) -> Lines {
        Lines { out: BufWriter::with_capacity(64 << 10, io::stdout()) }
    }

    /// One line for a person on stderr; not a result, and lost without harm.
    pub fn note(self, text: impl AsRef<str>) {
        // A stderr that cannot be written leaves nobody to tell.
        let _ = writeln!(io::stderr(), "{}", text.as_ref());
    }

    /// A command's end, on stderr.
    pub fn failure(self, failure: &Failure) {
        if !failure.is_broken_pipe() {
            self.note(if self.json { failure.to_json() } else { failure.to_text() });
        }
    }
}

/// Buffered lines on stdout.
#[derive(Debug)]
pub struct Lines {
    out: BufWriter<Stdout>,
}

impl Lines {
    /// One line.
    pub fn line(&mut self, text: &str) -> Result {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.write_all(b"\n"));
        written.map_err(|error| Failure::io("write to stdout", &error))
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result {
        self.out.write_all(bytes).map_err(|error| Failure::io("write to stdout", &error))
    }

    /// Passes on what is buffered: what has been printed is seen.
    pub fn flush(&mut self) -> Result {
        self.out.flush().map_err(|error| Failure::io("write to stdout", &error))
    }

    /// Passes on what is buffered.
    pub fn finish(mut self) -> Result {
        self.flush()
    }
}

/// A table for people: headers, rows, and which columns hold numbers.
#[derive(Debug)]
pub struct Grid {
    table: Table,
    columns: usize,
    rows: usize,
}

impl Grid {
    /// A table with these headers; one that begins with `#` is a column of numbers.
    pub fn new(headers: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(headers.iter().map(|header| header.trim_start_matches('#')));
        for (index, header) in headers.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((0, 2));
                if header.starts_with('#') {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        Self { table, columns: headers.len(), rows: 0 }
    }

    /// Adds a row; missing cells are empty.
    pub fn row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells: Vec<String> =
            cells.into_iter().take(self.columns).map(|cell| printable(&cell.to_string())).collect();
        self.table.add_row(cells);
        self.rows += 1;
    }

    /// The lines, without trailing spaces.
    pub fn to_text(&self, empty: &str) -> String {
        if self.rows == 0 {
            return empty.to_owned();
        }
        let text = self.table.to_string();
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }
}

/// Text for a terminal: control characters are shown, not obeyed.
pub fn printable(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars().fold(String::with_capacity(text.len() + 8), |mut shown, c| {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
        shown
    })
}

/// A number of bytes for people.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A time for people.
pub fn micros_text(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_plain_text() {
        let mut grid = Grid::new(&["node", "#keys"]);
        assert_eq!(grid.to_text("no nodes"), "no nodes");
        grid.row(["a\x1b[2J", "7"]);
        grid.row(["long name", "12345"]);
        let text = grid.to_text("");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("node"), "{text}");
        assert!(lines[1].starts_with("a\\u{1b}[2J"), "{text}");
        assert!(lines[1].ends_with("     7"), "{text}");
    }

    #[test]
    fn sizes_and_times_read_well() {
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text(u64::MAX), "16384.0 PiB");
        assert_eq!(micros_text(12), "12 us");
        assert_eq!(micros_text(1500), "1.5 ms");
        assert_eq!(micros_text(2_500_000), "2.5 s");
    }
}
