//! A data directory as text: small, and the same bytes again when it is unpacked.
//!
//! Invariant: `unpack(pack(dir))` is `dir`, but for the lock file and empty files that are left out.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const TITLE: &str = "vmemkv golden directory 1";
/// Bytes of a line.
const LINE: usize = 48;
/// As many equal bytes are said in one word.
const RUN: usize = 8;

/// How often the byte at this place comes there.
fn run_at(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().take_while(|byte| **byte == bytes[at]).count()
}

/// The files below a directory, as paths within it, sorted.
pub(crate) fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if entry.file_name() != "LOCK" {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The directory as text: of each file its path and length, and what is not zero in it, runs of one byte as `byte*count`.
pub(crate) fn pack(root: &Path) -> String {
    let mut text = format!("{TITLE}\n");
    for path in files(root) {
        let bytes = fs::read(root.join(&path)).unwrap();
        writeln!(text, "file {} {}", path.display(), bytes.len()).unwrap();
        let mut at = 0;
        while at < bytes.len() {
            let run = run_at(&bytes, at);
            if run >= RUN {
                // Zeros are what a file has where nothing is said.
                if bytes[at] != 0 {
                    writeln!(text, "{at} {:02x}*{run}", bytes[at]).unwrap();
                }
                at += run;
                continue;
            }
            let rest = at..bytes.len().min(at + LINE);
            let end = rest.clone().find(|next| run_at(&bytes, *next) >= RUN).unwrap_or(rest.end);
            writeln!(text, "{at} {}", hex(&bytes[at..end])).unwrap();
            at = end;
        }
    }
    text
}

/// Makes the directory that a text stands for.
pub(crate) fn unpack(text: &str, root: &Path) {
    for folder in ["t1", "t2", "wal"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(TITLE));
    let mut file = None;
    for line in lines {
        if let Some(described) = line.strip_prefix("file ") {
            let (path, len) = described.split_once(' ').unwrap();
            let made = fs::File::create(root.join(path)).unwrap();
            made.set_len(len.parse().unwrap()).unwrap();
            file = Some(made);
        } else {
            let (offset, bytes) = line.split_once(' ').unwrap();
            let bytes = match bytes.split_once('*') {
                Some((byte, count)) => unhex(byte).repeat(count.parse().unwrap()),
                None => unhex(bytes),
            };
            let file = file.as_ref().expect("a file before its bytes");
            file.write_all_at(&bytes, offset.parse().unwrap()).unwrap();
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

#[test]
fn a_directory_comes_back_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("wal")).unwrap();
    let mut bytes = vec![0; 10_000];
    bytes[..100].fill(7);
    bytes[5000] = 1;
    bytes[9998] = 255;
    fs::write(from.join("wal/1.wal"), &bytes).unwrap();
    fs::write(from.join("MANIFEST"), b"\0abc\0").unwrap();
    unpack(&pack(&from), &to);
    assert_eq!(fs::read(to.join("wal/1.wal")).unwrap(), bytes);
    assert_eq!(fs::read(to.join("MANIFEST")).unwrap(), b"\0abc\0");
    assert_eq!(pack(&to), pack(&from));
}
