//! Tests of reading files: broken lines, limits, ends of lines, headers.

use super::*;
use crate::encoding::Encoding;
use crate::transfer::Format;

fn read(format: FormatArgs, text: &[u8]) -> (Vec<(String, String)>, Option<LineError>) {
    let mut records = Records::new(text, format, Start::default());
    let mut all = Vec::new();
    loop {
        match records.next_record() {
            Ok(Some(record)) => all.push((
                String::from_utf8_lossy(&record.key).into_owned(),
                String::from_utf8_lossy(&record.value).into_owned(),
            )),
            Ok(None) => return (all, None),
            Err(error) => return (all, Some(error)),
        }
    }
}

fn broken(format: FormatArgs, text: &[u8]) -> (usize, LineError) {
    let (all, error) = read(format, text);
    (all.len(), error.unwrap())
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

const JSONL: FormatArgs =
    FormatArgs { format: Format::Jsonl, header: false, encoding: Encoding::Utf8 };
const CSV: FormatArgs = FormatArgs { format: Format::Csv, header: false, encoding: Encoding::Utf8 };

#[test]
fn a_broken_json_line_is_named() {
    let good = r#"{"key": "a", "value": "1"}"#;
    for (bad, reason) in [
        ("{\"key\": \"a\"", "EOF while parsing an object (column"),
        (r#"{"key": "a"}"#, "missing field `value`"),
        (r#"{"key": "", "value": ""}"#, "the key is empty"),
        ("null", "not a JSON object"),
    ] {
        let text = format!("{good}\n\n{good}\r\n{bad}\n{good}\n");
        let (before, error) = broken(JSONL, text.as_bytes());
        assert_eq!((before, error.line), (2, 4), "{bad}");
        assert!(error.reason.contains(reason), "{error}");
        assert!(error.to_string().starts_with("line 4: "), "{error}");
    }
}

#[test]
fn a_broken_csv_record_is_named_by_its_first_line() {
    for (text, before, line, reason) in [
        ("a,1\nb\nc,3\n", 1, 2, "1 column instead of 2"),
        ("a,1\n\"b\n\n\",2\nc,3,\n", 2, 5, "3 columns instead of 2"),
        ("a,1\nb,\"x\ny,2\n", 1, 2, "never closed"),
        ("a,\"x\"y\n", 0, 1, "closing quote"),
        (",1\n", 0, 1, "the key is empty"),
    ] {
        let (found, error) = broken(CSV, text.as_bytes());
        assert_eq!((found, error.line), (before, line), "{text}");
        assert!(error.reason.contains(reason), "{error}");
    }
    let (_, error) = broken(CSV, b"a,1\n\xff,2\n");
    assert!(error.reason.contains("the key is not UTF-8"), "{error}");
    assert_eq!(error.line, 2);
}

#[test]
fn wrong_hex_and_base64_are_named() {
    let hex = FormatArgs { encoding: Encoding::Hex, ..CSV };
    let (before, error) = broken(hex, b"61,62\n6,62\n");
    assert_eq!((before, error.line), (1, 2));
    assert!(error.reason.contains("the key is not hex"), "{error}");
    let base64 = FormatArgs { encoding: Encoding::Base64, ..JSONL };
    let (_, error) = broken(base64, br#"{"key": "YQ==", "value": "?"}"#);
    assert!(error.reason.contains("the value is not base64"), "{error}");
}

#[test]
fn limits_of_the_service_hold_before_anything_is_sent() {
    let line = |key: usize, value: usize| {
        format!("{},{}\n", "k".repeat(key), "v".repeat(value)).into_bytes()
    };
    assert_eq!(read(CSV, &line(MAX_KEY_BYTES, 1)).1, None);
    let (_, error) = broken(CSV, &line(MAX_KEY_BYTES + 1, 1));
    assert!(error.reason.contains("4097 bytes, the limit is 4096"), "{error}");
    assert_eq!(read(CSV, &line(1, MAX_VALUE_BYTES)).1, None);
    let (_, error) = broken(CSV, &line(1, MAX_VALUE_BYTES + 1));
    assert!(error.reason.contains("the value is 8388609 bytes"), "{error}");
}

#[test]
fn ends_of_lines_and_marks_do_not_matter() {
    let expected = pairs(&[("a", "1"), ("b", "2")]);
    for text in ["a,1\nb,2\n", "a,1\nb,2", "a,1\r\nb,2\r\n", "\u{feff}a,1\n\nb,2\n\n"] {
        assert_eq!(read(CSV, text.as_bytes()), (expected.clone(), None), "{text:?}");
    }
    let json = "\u{feff}{\"key\":\"a\",\"value\":\"1\"}\r\n \n{\"key\":\"b\",\"value\":\"2\"}";
    assert_eq!(read(JSONL, json.as_bytes()), (expected, None));
}

#[test]
fn a_header_is_skipped() {
    let with_header = FormatArgs { header: true, ..CSV };
    let expected = pairs(&[("a", "1")]);
    assert_eq!(read(with_header, b"name,age\na,1\n"), (expected, None));
    let (_, error) = broken(with_header, b"value,Key\n1,a\n");
    assert!(error.reason.contains("the key comes first"), "{error}");
    assert_eq!(read(with_header, b""), (Vec::new(), None));
    let (_, error) = broken(with_header, b"a\na,1\n");
    assert_eq!(error.line, 1);
    assert_eq!(read(CSV, b"key,value\n").0, pairs(&[("key", "value")]));
}
