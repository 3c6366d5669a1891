//! JSON lines: `{"key": "..", "value": ".."}`.
//!
//! Invariants: exactly these two fields, both strings; another or a doubled one is an error, since it
//! would be lost.

use serde::{Deserialize, Serialize};

/// A line as it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: String,
    value: String,
}

/// A line as it is written.
#[derive(Serialize)]
struct LineRef<'a> {
    key: &'a str,
    value: &'a str,
}

/// Key and value of a line.
pub(crate) fn parse(line: &[u8]) -> Result<(String, String), String> {
    let expected = r#"expected {"key": "..", "value": ".."}"#;
    // serde would take an array for the fields in their order.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err(format!("not a JSON object; {expected}"));
    }
    serde_json::from_slice::<Line>(line).map(|line| (line.key, line.value)).map_err(|error| {
        // The parser counts lines within this one: only its column means something here.
        let text = error.to_string();
        let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
        match error.column() {
            0 => format!("{reason}; {expected}"),
            column => format!("{reason} (column {column}); {expected}"),
        }
    })
}

/// A line, with its end.
pub(crate) fn write(key: &str, value: &str) -> Result<Vec<u8>, String> {
    let mut line = Vec::with_capacity(key.len() + value.len() + 32);
    serde_json::to_writer(&mut line, &LineRef { key, value }).map_err(|error| error.to_string())?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_written() {
        let line = br#" {"value": "v\u20ac\n", "key": "k"} "#;
        assert_eq!(parse(line).unwrap(), ("k".to_owned(), "v\u{20ac}\n".to_owned()));
        assert_eq!(write("k", "\"\n").unwrap(), b"{\"key\":\"k\",\"value\":\"\\\"\\n\"}\n");
    }

    #[test]
    fn broken_lines_say_why() {
        for (line, reason) in [
            (&br#"{"key": "k"}"#[..], "missing field `value`"),
            (br#"{"key": "k", "value": 1}"#, "invalid type: integer `1`, expected a string"),
            (br#"{"key": "k", "value": "v", "ttl": 3}"#, "unknown field `ttl`"),
            (br#"{"key": "k", "key": "k", "value": "v"}"#, "duplicate field `key`"),
            (br#"{"key": "k", "value": "v"} x"#, "trailing characters"),
            (br#"{"key": "k", "val"#, "EOF while parsing"),
            (br#"["k", "v"] "#, "not a JSON object"),
            (b"{\"key\": \"\xff\", \"value\": \"v\"}", "invalid unicode"),
            (br#"{"key": "\ud800", "value": "v"}"#, ""),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{error}");
            assert!(!error.contains("line 1"), "{error}");
        }
    }
}
