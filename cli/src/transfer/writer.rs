//! Writes a file of keys and values, record by record.
//!
//! Invariant: what is written is what [`Records`](super::Records) reads back, or an error.

use std::io::Write;

use super::{Format, FormatArgs, delimited, jsonl};
use crate::encoding::{Encoding, show_key};

/// Writes records to an output.
#[derive(Debug)]
pub struct RecordWriter<W> {
    output: W,
    format: FormatArgs,
    line: Vec<u8>,
}

/// Why a record was not written.
#[derive(Debug)]
pub enum WriteError {
    /// It cannot be written in this encoding.
    Encoding(String),
    /// The output failed.
    Io(std::io::Error),
}

impl<W: Write> RecordWriter<W> {
    /// Writes to `output`.
    pub fn new(output: W, format: FormatArgs) -> Self {
        Self { output, format, line: Vec::new() }
    }

    /// Names the columns, if the format has columns and a header was asked for.
    pub fn header(&mut self) -> std::io::Result<()> {
        match self.format.format.delimiter() {
            Some(delimiter) if self.format.header => {
                self.line.clear();
                delimited::write(&mut self.line, delimiter, b"key", b"value");
                self.output.write_all(&self.line)
            }
            _ => Ok(()),
        }
    }

    /// Writes one record; returns its length as text.
    pub fn write(&mut self, key: &[u8], value: &[u8]) -> Result<u64, WriteError> {
        let encoding = self.format.encoding;
        let text = |what: &str, bytes: &[u8]| {
            encoding
                .encode(what, bytes)
                .map_err(|reason| WriteError::Encoding(format!("key {}: {reason}", show_key(key))))
        };
        match (self.format.format, self.format.format.delimiter()) {
            (Format::Jsonl, _) | (_, None) => {
                let (key, value) = (text("the key", key)?, text("the value", value)?);
                self.line = jsonl::write(&key, &value).map_err(WriteError::Encoding)?;
            }
            (_, Some(delimiter)) => {
                self.line.clear();
                if encoding == Encoding::Utf8 {
                    text("the key", key)?;
                    text("the value", value)?;
                    delimited::write(&mut self.line, delimiter, key, value);
                } else {
                    let (key, value) = (text("the key", key)?, text("the value", value)?);
                    delimited::write(&mut self.line, delimiter, key.as_bytes(), value.as_bytes());
                }
            }
        }
        self.output.write_all(&self.line).map_err(WriteError::Io)?;
        Ok(self.line.len() as u64)
    }

    /// Passes on what is buffered.
    pub fn flush(&mut self) -> std::io::Result<()> {
        self.output.flush()
    }

    /// The output.
    pub fn into_output(self) -> W {
        self.output
    }
}
