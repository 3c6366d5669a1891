//! The part of the configuration that bounds what clients can ask of a server.
//!
//! Invariants: every queue, window and count of the service is bounded by one of these; limits of
//! the API itself (key, value, message, frame) are fixed and not here.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Limits of the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Most calls under way in the process; beyond it calls get RESOURCE_EXHAUSTED.
    pub max_concurrent_calls: usize,
    /// Most streams of one connection at a time.
    pub max_concurrent_streams: u32,
    /// Most frames of one BatchGet or BatchPut stream, or scans of one BatchScan stream, under way
    /// at a time; more wait in the transport.
    pub frames_in_flight: usize,
    /// HTTP/2 window of one stream, bytes.
    pub stream_window_bytes: u32,
    /// HTTP/2 window of one connection, bytes.
    pub connection_window_bytes: u32,
    /// How often an idle connection is pinged, milliseconds.
    pub keepalive_ms: u64,
    /// After this time a connection is asked to end, milliseconds; 0: never.
    pub connection_age_ms: u64,
    /// A connection that has been asked to end is cut after this time, milliseconds; 0: never.
    pub connection_age_grace_ms: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            max_concurrent_calls: 16_384,
            max_concurrent_streams: 1024,
            frames_in_flight: 16,
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 16 << 20,
            keepalive_ms: 20_000,
            connection_age_ms: 0,
            connection_age_grace_ms: 0,
        }
    }
}

impl LimitsConfig {
    /// Checks the limits; the error names the one at fault.
    pub fn validate(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::Config(format!("limits.{what}")));
        if self.max_concurrent_calls == 0 {
            return wrong("max_concurrent_calls: must be at least 1");
        }
        if self.max_concurrent_streams == 0 {
            return wrong("max_concurrent_streams: must be at least 1");
        }
        if !(1..=1024).contains(&self.frames_in_flight) {
            return wrong("frames_in_flight: must be from 1 to 1024");
        }
        let windows = (1 << 16)..=(1 << 30);
        if !windows.contains(&self.stream_window_bytes) {
            return wrong("stream_window_bytes: must be from 64 KiB to 1 GiB");
        }
        if !windows.contains(&self.connection_window_bytes) {
            return wrong("connection_window_bytes: must be from 64 KiB to 1 GiB");
        }
        if self.connection_window_bytes < self.stream_window_bytes {
            return wrong("connection_window_bytes: must be at least stream_window_bytes");
        }
        if self.keepalive_ms < 1000 {
            return wrong("keepalive_ms: must be at least 1000");
        }
        Ok(())
    }
}
