//! The shape of a Rust file: how long it may be, and that it opens by saying what it owns.

use crate::finding::Finding;
use crate::tree::SourceFile;

/// A longer file fails.
const MAX_LINES: usize = 500;
/// A longer file is worth a look.
const COMFORTABLE_LINES: usize = 350;

/// File length and module header.
pub(crate) fn check(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() || is_generated(&file.text) {
        return Vec::new();
    }
    length(file).into_iter().chain(header(file)).collect()
}

/// Generated code says so in its first lines.
fn is_generated(text: &str) -> bool {
    text.lines().take(3).any(|line| line.starts_with("//") && line.contains("@generated"))
}

fn length(file: &SourceFile) -> Option<Finding> {
    let lines = file.text.lines().count();
    if lines > MAX_LINES {
        let what = format!(
            "{lines} lines, {MAX_LINES} at most: move a type, or the tests, to a file of its own"
        );
        return Some(Finding::error(&file.path, lines, what));
    }
    (lines > COMFORTABLE_LINES).then(|| {
        let what = format!("{lines} lines, {COMFORTABLE_LINES} read well: consider a second file");
        Finding::warning(&file.path, lines, what)
    })
}

fn header(file: &SourceFile) -> Option<Finding> {
    let first = file.text.lines().next().unwrap_or_default();
    let Some(words) = first.strip_prefix("//!") else {
        let what = "the first line must be `//!`: say what the module owns, then its invariants";
        return Some(Finding::error(&file.path, 1, what));
    };
    let words = words.trim();
    if words.is_empty() {
        let what = "the module header is empty: say what the module owns, then its invariants";
        return Some(Finding::error(&file.path, 1, what));
    }
    (words == "Placeholder.").then(|| {
        Finding::warning(&file.path, 1, "a placeholder: say what the module owns once it is there")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    fn file(path: &str, text: String) -> SourceFile {
        SourceFile { path: path.into(), text }
    }

    fn lines(count: usize) -> String {
        "//! Header.\n".repeat(count)
    }

    #[test]
    fn a_long_file_fails_and_a_longish_one_warns() {
        let found = check(&file("a.rs", lines(501)));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].severity, Severity::Error);
        let found = check(&file("a.rs", lines(351)));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].severity, Severity::Warning);
        assert!(check(&file("a.rs", lines(350))).is_empty());
    }

    #[test]
    fn a_file_without_a_header_fails() {
        for text in ["use a::b;\n", "", "//!\nfn a() {}\n", "// A comment.\n"] {
            let found = check(&file("build.rs", text.into()));
            assert_eq!(found.len(), 1, "{text:?}");
            assert_eq!(found[0].severity, Severity::Error);
            assert_eq!(found[0].line, 1);
        }
        assert!(check(&file("a.rs", "//! Owns a.\n".into())).is_empty());
    }

    #[test]
    fn generated_code_and_other_languages_are_free() {
        assert!(check(&file("a.rs", "// @generated\nfn a() {}\n".into())).is_empty());
        assert!(check(&file("a.py", "import sys\n".repeat(600))).is_empty());
    }
}
