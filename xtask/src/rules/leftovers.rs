//! What must not stay in the tree: markers of unfinished work, tests that do not run, characters
//! outside ASCII in sources, paths of one developer's machine.
//!
//! The patterns are put together from halves, so that this file does not find itself.

use crate::finding::Finding;
use crate::scan::is_word;
use crate::tree::SourceFile;

/// Whole words that say that something is unfinished.
const MARKERS: [&str; 6] = [
    concat!("todo", "!"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("dbg", "!"),
];

/// An attribute that hides a test.
const IGNORE: &str = concat!("#[ign", "ore");

/// Starts of paths that exist on one machine only.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/tmp", "/wt"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

/// All of them, line by line.
pub(crate) fn check(file: &SourceFile) -> Vec<Finding> {
    let is_source = file.is_source();
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let mut add = |what: String| findings.push(Finding::error(&file.path, index + 1, what));
        if is_source {
            if let Some(marker) = MARKERS.iter().find(|marker| has_word(line, marker)) {
                add(format!("`{marker}`: do it now, or open an issue and remove the marker"));
            }
            if let Some(c) = line.chars().find(|c| !c.is_ascii()) {
                let code = u32::from(c);
                add(format!("the character U+{code:04X} is not ASCII: write it as an escape"));
            }
        }
        if file.is_rust() && line.contains(IGNORE) {
            add("an ignored test checks nothing: make it run, or remove it".into());
        }
        if let Some(path) = MACHINE_PATHS.iter().find(|path| has_path(line, path)) {
            add(format!("`{path}` is a path of one machine: take it from the environment"));
        }
    }
    findings
}

/// Whether `word` stands in `line` with no letter or digit on either side.
fn has_word(line: &str, word: &str) -> bool {
    let bytes = line.as_bytes();
    line.match_indices(word).any(|(start, _)| {
        let end = start + word.len();
        let open = start > 0 && is_word(bytes[start - 1]);
        let close = !word.ends_with('!') && bytes.get(end).is_some_and(|&b| is_word(b));
        !open && !close
    })
}

/// Whether an absolute path starts with `path` in `line`: `a/home/b` is a relative one.
fn has_path(line: &str, path: &str) -> bool {
    let bytes = line.as_bytes();
    line.match_indices(path).any(|(start, _)| {
        let before = if start == 0 { b' ' } else { bytes[start - 1] };
        !is_word(before) && !matches!(before, b'.' | b'-' | b'/' | b'}' | b'~')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&SourceFile { path: path.into(), text: text.into() }).len()
    }

    #[test]
    fn each_marker_fails_as_a_word_only() {
        for marker in MARKERS {
            assert_eq!(count("a.rs", &format!("fn a() {{}} // {marker} later")), 1, "{marker}");
            assert_eq!(count("a.rs", &format!("let a{marker}")), 0, "{marker}");
        }
        assert_eq!(count("a.sh", concat!("mktemp -d a.XX", "XXXX")), 0);
    }

    #[test]
    fn an_ignored_test_fails() {
        assert_eq!(count("a.rs", &format!("{IGNORE}]\nfn a() {{}}")), 1);
        assert_eq!(count("a.rs", &format!("{IGNORE} = \"slow\"]\nfn a() {{}}")), 1);
    }

    #[test]
    fn other_characters_fail_in_sources_only() {
        assert_eq!(count("a.rs", "// 3 \u{b5}s"), 1);
        assert_eq!(count("a.md", "3 \u{b5}s"), 0);
    }

    #[test]
    fn a_path_of_a_machine_fails_everywhere() {
        for path in MACHINE_PATHS {
            assert_eq!(count("a.md", &format!("see {path}main")), 1, "{path}");
            assert_eq!(count("a.rs", &format!("\"{path}main\"")), 1, "{path}");
            assert_eq!(count("a.md", &format!("see a{path}main")), 0, "{path}");
        }
    }

    #[test]
    fn the_line_is_named() {
        let text = format!("a\nb\n{}\n", MARKERS[2]);
        let found = check(&SourceFile { path: "a.toml".into(), text });
        assert_eq!(found[0].line, 3);
    }
}
