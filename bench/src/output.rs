//! What a subcommand reports: one JSON object, and a few lines for people.
//!
//! Invariants: the field names are fixed, tools read them; a figure is always a number.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::runner::LimitReport;

/// The result of one cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CellResult {
    pub(crate) scenario: String,
    pub(crate) workload: String,
    pub(crate) flavour: String,
    pub(crate) store: String,
    pub(crate) store_version: String,
    pub(crate) threads: usize,
    pub(crate) records: u64,
    pub(crate) ops_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) cpu_s: f64,
    pub(crate) device_reads: u64,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) verified: bool,
    /// Operations that count, in the window.
    pub(crate) operations: u64,
    /// The window; shorter than asked for if a thread ran out of new keys.
    pub(crate) seconds: f64,
    /// Records in the store before the window.
    pub(crate) loaded_records: u64,
    /// How values were read.
    pub(crate) touch: String,
    /// How many operations the quantiles are from.
    pub(crate) latency_samples: u64,
    /// Bytes that the process had read from a device.
    pub(crate) device_read_bytes: u64,
    /// `device`: reads by all processes of the machine; `process pages`: there is no device to
    /// ask, so pages read by this one.
    pub(crate) device_reads_source: String,
    /// ycsb-e: scans by second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) timeline: Vec<u64>,
    /// ycsb-e: the jobs that were forced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<EventResult>,
    /// Larger than memory: the limit.
    #[serde(flatten)]
    pub(crate) limit: Option<LimitReport>,
}

/// A job that was forced in the window.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EventResult {
    pub(crate) event: String,
    pub(crate) began_s: f64,
    pub(crate) took_s: f64,
}

/// What a subcommand found.
pub(crate) trait Report: Serialize {
    /// Lines for people.
    fn text(&self) -> String;
}

impl Report for CellResult {
    fn text(&self) -> String {
        let limit = self.limit.as_ref().map_or_else(String::new, |limit| limit.text() + "\n");
        format!(
            "{limit}{} {} {} {} {}, {} threads, {} records\n\
             {:.0} ops/s   p50 {:.2} us   p99 {:.2} us   p99.9 {:.2} us\n\
             cpu {:.2} s   device reads {}   peak memory {} MiB   {}",
            self.scenario,
            self.workload,
            self.flavour,
            self.store,
            self.store_version,
            self.threads,
            self.records,
            self.ops_per_s,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.cpu_s,
            self.device_reads,
            self.peak_rss_bytes >> 20,
            if self.verified { "verified" } else { "NOT VERIFIED" },
        )
    }
}

/// Writes the object to `json` if it is given. Standard output gets the object alone (`-`), or
/// the lines for people.
pub(crate) fn write(result: &impl Report, json: Option<&Path>) -> Result<()> {
    let mut line = serde_json::to_string(result)?;
    line.push('\n');
    let text = match json {
        Some(path) if path == Path::new("-") => line,
        Some(path) => {
            fs::write(path, line).with_context(|| format!("write {}", path.display()))?;
            result.text() + "\n"
        }
        None => result.text() + "\n",
    };
    std::io::stdout().write_all(text.as_bytes()).context("write to standard output")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> CellResult {
        CellResult {
            scenario: "1kb-mem".into(),
            workload: "insert".into(),
            flavour: "seed".into(),
            store: "vmemkv".into(),
            store_version: "0.1.0".into(),
            threads: 2,
            records: 1000,
            ops_per_s: 12.5,
            p50_us: 1.0,
            p99_us: 2.0,
            p999_us: 3.0,
            cpu_s: 0.5,
            device_reads: 7,
            peak_rss_bytes: 1 << 30,
            verified: true,
            operations: 25,
            seconds: 2.0,
            loaded_records: 0,
            touch: "line".into(),
            latency_samples: 25,
            device_read_bytes: 4096,
            device_reads_source: "device".into(),
            timeline: Vec::new(),
            events: Vec::new(),
            limit: None,
        }
    }

    #[test]
    fn the_fixed_fields_are_there() {
        let value = serde_json::to_value(example()).expect("json");
        for field in "scenario workload flavour store store_version".split(' ') {
            assert!(value[field].is_string(), "{field}");
        }
        let numbers = "threads records ops_per_s p50_us p99_us p999_us cpu_s device_reads \
                       peak_rss_bytes";
        for field in numbers.split(' ') {
            assert!(value[field].is_number(), "{field}");
        }
        assert!(value["verified"].is_boolean());
        assert!(value.get("timeline").is_none());
    }

    #[test]
    fn a_file_gets_one_line() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("cell.json");
        write(&example(), Some(&path)).expect("write");
        let text = fs::read_to_string(&path).expect("read");
        assert_eq!(text.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).expect("json");
        assert_eq!(value["ops_per_s"], 12.5);
    }

    #[test]
    fn people_are_told_when_it_is_not_verified() {
        let result = CellResult { verified: false, ..example() };
        assert!(result.text().contains("NOT VERIFIED"));
    }
}
