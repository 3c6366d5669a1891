//! Reads a file of keys and values, record by record.
//!
//! Invariants: `Record::end` is the offset behind the record, where reading can go on; a record obeys
//! the service's limits; nothing longer than a record is held.

use std::fmt;
use std::io::{BufRead, Read as _};

use bytes::Bytes;
use vmemkv_proto::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

use super::delimited::Columns;
use super::{FormatArgs, MAX_RECORD_BYTES, delimited, jsonl};

/// What some programs put in front of UTF-8.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A key with its value, and where it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The line on which it begins, from 1.
    pub line: u64,
    /// The offset behind it.
    pub end: u64,
    /// Its last line had an end: it has not been cut off there.
    pub terminated: bool,
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// The line, from 1.
    pub line: u64,
    /// Why.
    pub reason: String,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

/// Where reading begins: at the start, or behind what has been read before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Offset in the file.
    pub offset: u64,
    /// Lines before it.
    pub lines: u64,
}

/// The records of an input.
#[derive(Debug)]
pub struct Records<R> {
    input: R,
    format: FormatArgs,
    header_is_due: bool,
    offset: u64,
    lines: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Records<R> {
    /// Reads from `input`, which stands at `start`.
    pub fn new(input: R, format: FormatArgs, start: Start) -> Self {
        let header_is_due = format.header && start.offset == 0;
        let (offset, lines) = (start.offset, start.lines);
        Self { input, format, header_is_due, offset, lines, buffer: Vec::new() }
    }

    /// Where the next record begins.
    pub fn position(&self) -> Start {
        Start { offset: self.offset, lines: self.lines }
    }

    /// The input.
    pub fn input(&self) -> &R {
        &self.input
    }

    /// The input, when reading is over.
    pub fn into_input(self) -> R {
        self.input
    }

    /// The next record; none: the end.
    pub fn next_record(&mut self) -> Result<Option<Record>, LineError> {
        if self.header_is_due {
            self.header_is_due = false;
            self.read_header()?;
        }
        match self.format.format.delimiter() {
            None => self.next_json(),
            Some(delimiter) => self.next_delimited(delimiter),
        }
    }

    fn next_json(&mut self) -> Result<Option<Record>, LineError> {
        loop {
            if !self.read_line()? {
                return Ok(None);
            }
            if self.buffer.trim_ascii().is_empty() {
                continue;
            }
            let line = self.lines;
            let fail = |reason| LineError { line, reason };
            let (key, value) = jsonl::parse(self.buffer.trim_ascii_end()).map_err(fail)?;
            return self.record(line, key, value).map(Some);
        }
    }

    fn next_delimited(&mut self, delimiter: u8) -> Result<Option<Record>, LineError> {
        let Some((line, (key, value))) = self.read_columns(delimiter)? else { return Ok(None) };
        let text = |what: &str, bytes: Vec<u8>| {
            String::from_utf8(bytes).map_err(|error| LineError {
                line,
                reason: format!(
                    "the {what} is not UTF-8 (byte {}): write it as hex or base64 and say --encoding",
                    error.utf8_error().valid_up_to()
                ),
            })
        };
        let (key, value) = (text("key", key)?, text("value", value)?);
        self.record(line, key, value).map(Some)
    }

    /// The next record that is not blank: its first line, and its columns.
    fn read_columns(&mut self, delimiter: u8) -> Result<Option<(u64, Columns)>, LineError> {
        loop {
            if !self.read_line()? {
                return Ok(None);
            }
            if !matches!(self.buffer.as_slice(), b"\n" | b"\r\n") {
                break;
            }
        }
        let line = self.lines;
        let fail = |reason: String| LineError { line, reason };
        let mut parser = delimited::Parser::new(delimiter);
        while !parser.line(&self.buffer).map_err(fail)? {
            if parser.len() > MAX_RECORD_BYTES {
                return Err(fail(too_long()));
            }
            if !self.read_line()? {
                return Err(fail("a quote is opened and never closed".to_owned()));
            }
        }
        let columns = parser.finish().map_err(fail)?;
        Ok(Some((line, columns)))
    }

    fn read_header(&mut self) -> Result<(), LineError> {
        let Some(delimiter) = self.format.format.delimiter() else { return Ok(()) };
        if let Some((line, (first, second))) = self.read_columns(delimiter)?
            && first.eq_ignore_ascii_case(b"value")
            && second.eq_ignore_ascii_case(b"key")
        {
            let reason = "the columns are value, key: the key comes first".to_owned();
            return Err(LineError { line, reason });
        }
        Ok(())
    }

    fn record(&self, line: u64, key: String, value: String) -> Result<Record, LineError> {
        let fail = |reason: String| LineError { line, reason };
        let encoding = self.format.encoding;
        let key = encoding.decode_owned("the key", key).map_err(fail)?;
        let value = encoding.decode_owned("the value", value).map_err(fail)?;
        if key.is_empty() {
            return Err(fail("the key is empty".to_owned()));
        }
        for (what, length, limit) in
            [("key", key.len(), MAX_KEY_BYTES), ("value", value.len(), MAX_VALUE_BYTES)]
        {
            if length > limit {
                return Err(fail(format!("the {what} is {length} bytes, the limit is {limit}")));
            }
        }
        let terminated = self.buffer.ends_with(b"\n");
        Ok(Record { key: key.into(), value: value.into(), line, end: self.offset, terminated })
    }

    /// The next line, with its end, into the buffer; false: there is none.
    fn read_line(&mut self) -> Result<bool, LineError> {
        self.buffer.clear();
        let fail = |reason: String| LineError { line: self.lines + 1, reason };
        let read = (&mut self.input)
            .take(MAX_RECORD_BYTES as u64 + 1)
            .read_until(b'\n', &mut self.buffer)
            .map_err(|error| fail(format!("cannot read on: {error}")))?;
        if read > MAX_RECORD_BYTES {
            return Err(fail(too_long()));
        }
        if self.offset == 0 && self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.buffer.drain(..BYTE_ORDER_MARK.len());
        }
        self.offset += read as u64;
        self.lines += u64::from(read > 0);
        Ok(read > 0)
    }
}

fn too_long() -> String {
    format!("the record is longer than {MAX_RECORD_BYTES} bytes")
}

#[cfg(test)]
mod records_test;
