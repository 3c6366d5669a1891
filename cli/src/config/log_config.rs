//! The settings of a process's log.
//!
//! Invariant: an unknown field is an error.

use serde::{Deserialize, Serialize};

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What a process logs to stderr, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// A level (error, warn, info, debug, trace) or a filter such as `info,vmemkv_engine=debug`.
    pub level: String,
    /// Text or JSON.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::default() }
    }
}
