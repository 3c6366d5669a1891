//! Data directories that this format version left, opened by the code of today.
//!
//! Each is a text file (see [`pack`]) beside a file that says what is in it. Made by
//! `VMEMKV_REGENERATE=1 cargo test -p vmemkv-engine --test golden todays_code`;
//! docs/on-disk-format.md says when.
//!
//! Invariant: what a directory holds is written down when it is made, from the list of what was
//! done, so a decoder that is wrong in the same way as the encoder is found by the next change.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod make;
mod pack;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vmemkv_engine::{Engine, Options, ScanOptions};

/// Leaves a directory; what is in it.
type Make = fn(&Path) -> make::Expected;
/// The stored directories: name, and who makes them.
const ALL: [(&str, Make); 4] = [
    ("clean", make::clean),
    ("unclean", make::unclean),
    ("shards", make::shards),
    ("references", make::references),
];
/// The variable that makes them anew.
const REGENERATE: &str = "VMEMKV_REGENERATE";
/// Most bytes of all stored directories.
const MAX_BYTES: u64 = 200_000;

fn stored(name: &str, what: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data");
    folder.join(format!("{name}.{what}"))
}

fn contents(engine: &Engine) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut options = ScanOptions::default();
    let mut found = BTreeMap::new();
    loop {
        let chunk = engine.scan(&options).unwrap();
        found.extend(chunk.entries);
        if chunk.done {
            return found;
        }
        options.range.start = chunk.covered_to;
    }
}

/// Magic and version of each kind of file in a directory.
fn versions(root: &Path) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for path in pack::files(root) {
        let bytes = std::fs::read(root.join(&path)).unwrap();
        let magic = bytes[..8].escape_ascii().to_string();
        let version = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        // A file that was made and not begun says nothing.
        if magic != "\\x00".repeat(8) {
            let before = found.insert(magic, version);
            assert!(before.is_none_or(|before| before == version), "{}", path.display());
        }
    }
    found
}

fn options() -> Options {
    Options { create: false, ..make::options() }
}

/// Opens a copy, twice: what the first open changes must be readable too.
fn opens(name: &str) {
    let text = std::fs::read_to_string(stored(name, "dir")).unwrap();
    let expected = std::fs::read_to_string(stored(name, "expected")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    pack::unpack(&text, dir.path());
    for again in [false, true] {
        let engine = Engine::open(dir.path(), options())
            .unwrap_or_else(|error| panic!("{name}, again: {again}: {error:?}"));
        assert_eq!(make::describe(&engine), expected, "{name}, again: {again}");
        assert_eq!(engine.verify(&|| false).unwrap().problems, Vec::<String>::new(), "{name}");
        if again {
            engine.put(b"new", b"value", &vmemkv_engine::Condition::None).unwrap();
            engine.checkpoint().unwrap();
        }
        engine.close().unwrap();
    }
    let engine = Engine::open(dir.path(), options()).unwrap();
    assert_eq!(contents(&engine).remove(&b"new"[..]), Some(b"value".to_vec()));
}

#[test]
fn a_clean_directory_opens() {
    opens("clean");
}

#[test]
fn a_directory_with_an_unclean_end_opens() {
    opens("unclean");
}

#[test]
fn a_directory_with_changed_shards_opens() {
    opens("shards");
}

#[test]
fn a_directory_whose_log_refers_to_values_opens() {
    opens("references");
}

/// Makes a stored directory anew.
fn regenerate(name: &str, make: Make) {
    std::fs::create_dir_all(stored(name, "dir").parent().unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    let expected = make(&root).text();
    std::fs::write(stored(name, "dir"), pack::pack(&root)).unwrap();
    std::fs::write(stored(name, "expected"), expected).unwrap();
}

#[test]
fn todays_code_writes_the_stored_format_version() {
    if std::env::var_os(REGENERATE).is_some() {
        ALL.into_iter().for_each(|(name, make)| regenerate(name, make));
    }
    for (name, make) in ALL {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        pack::unpack(&std::fs::read_to_string(stored(name, "dir")).unwrap(), &old);
        let made = make(&new);
        assert_eq!(
            versions(&new),
            versions(&old),
            "{name}: the format has another version now; see docs/on-disk-format.md, \
             \"When the format changes\""
        );
        let expected = std::fs::read_to_string(stored(name, "expected")).unwrap();
        assert_eq!(made.text(), expected, "{name}: the same work leaves something else");
    }
}

#[test]
fn the_stored_directories_are_small_and_complete() {
    let size = |what| move |(name, _): &(&str, _)| stored(name, what).metadata().unwrap().len();
    let bytes: u64 = ALL.iter().map(size("dir")).chain(ALL.iter().map(size("expected"))).sum();
    assert!(bytes < MAX_BYTES, "{bytes} bytes");
}
