//! What is written in any format and encoding is read back byte for byte.

use super::*;
use crate::encoding::Encoding;

fn formats() -> Vec<FormatArgs> {
    let mut all = Vec::new();
    for format in [Format::Jsonl, Format::Csv, Format::Tsv] {
        for encoding in [Encoding::Utf8, Encoding::Hex, Encoding::Base64] {
            for header in [false, true] {
                if !(header && format == Format::Jsonl) {
                    all.push(FormatArgs { format, header, encoding });
                }
            }
        }
    }
    all
}

fn write(format: FormatArgs, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<u8>, WriteError> {
    let mut writer = RecordWriter::new(Vec::new(), format);
    writer.header().unwrap();
    for (key, value) in entries {
        writer.write(key, value)?;
    }
    Ok(writer.into_output())
}

fn read(format: FormatArgs, text: &[u8]) -> Vec<Record> {
    let mut records = Records::new(text, format, Start::default());
    let mut all = Vec::new();
    while let Some(record) = records.next_record().unwrap() {
        all.push(record);
    }
    all
}

#[test]
fn every_format_and_encoding_is_lossless() {
    let text = ["plain", "", "a\tb", "a,b", "\"", "\"\"", "a\r\nb\n", " x ", "\u{feff}x", "\\n"];
    let mut entries: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (n, value) in text.iter().enumerate() {
        entries.push((format!("\u{feff}{n}\n{value}").into_bytes(), value.as_bytes().to_vec()));
    }
    for format in formats() {
        let mut entries = entries.clone();
        if format.encoding != Encoding::Utf8 {
            entries.push((vec![0xff, 0, b'"', b'\n'], (0..=255).collect()));
        }
        let file = write(format, &entries).unwrap();
        let records = read(format, &file);
        let back: Vec<_> =
            records.iter().map(|record| (record.key.to_vec(), record.value.to_vec())).collect();
        assert_eq!(back, entries, "{format:?}");
        assert_eq!(records.last().unwrap().end, file.len() as u64, "{format:?}");
        assert!(records.iter().all(|record| record.terminated), "{format:?}");
    }
}

#[test]
fn reading_goes_on_behind_any_record() {
    let entries: Vec<_> = (0..20)
        .map(|n| (format!("k{n}").into_bytes(), format!("line\n\"{n}\"").into_bytes()))
        .collect();
    for format in formats() {
        let file = write(format, &entries).unwrap();
        let all = read(format, &file);
        for (n, record) in all.iter().enumerate() {
            let rest = &file[usize::try_from(record.end).unwrap()..];
            let start = Start { offset: record.end, lines: record.line };
            let mut records = Records::new(rest, format, start);
            let next = records.next_record().unwrap();
            let expected = all.get(n + 1).map(|record| (&record.key, record.end));
            assert_eq!(next.as_ref().map(|record| (&record.key, record.end)), expected);
        }
    }
}

#[test]
fn bytes_that_are_not_utf8_are_never_written_lossily() {
    for format in formats() {
        for (key, value) in [(&b"k"[..], &b"\xff"[..]), (b"\xff", b"v")] {
            let written = write(format, &[(key.to_vec(), value.to_vec())]);
            match (format.encoding, written) {
                (Encoding::Utf8, Err(WriteError::Encoding(reason))) => {
                    assert!(reason.contains("--encoding hex"), "{reason}");
                }
                (Encoding::Utf8, other) => panic!("{other:?}"),
                (_, written) => assert_eq!(read(format, &written.unwrap())[0].value, value),
            }
        }
    }
}
