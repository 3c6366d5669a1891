//! The table of `docs/durability.md` that says which test proves which row.
//!
//! Invariants: every row that there must be is in the table, in the list "Not yet", or (but for F)
//! in the list "Not here", once;
//! a test that the table names exists in the file that it names; at least one test of a schedule
//! F<n> carries the number. What is not yet there is a warning.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::tree::SourceFile;

const DOCUMENT: &str = "docs/durability.md";
/// Letters of the rows, and how many there are of each.
const ROWS: [(char, u32); 5] = [('F', 28), ('B', 26), ('C', 20), ('N', 77), ('S', 4)];

type Row = (char, u32);

/// The table against the tree.
pub(crate) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else {
        return vec![Finding::error(DOCUMENT, 1, "is missing: it says which test proves what")];
    };
    let mut findings = Vec::new();
    // Row to its line and whether it is not yet tested.
    let mut seen: BTreeMap<Row, (usize, bool)> = BTreeMap::new();
    let mut section = "";
    for (number, line) in (1..).zip(document.text.lines()) {
        let mut error = |what: String| findings.push(Finding::error(DOCUMENT, number, what));
        if line.starts_with('#') {
            section = line.trim_start_matches('#').trim();
            continue;
        }
        let (ids, tests) = match section {
            "Rows and tests" if line.starts_with("| ") && !line.starts_with("| row") => {
                let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
                let [ids, _, tests] = cells[..] else {
                    error("a row has three cells: row, what, tests".into());
                    continue;
                };
                (ids, Some(tests))
            }
            "Not yet" | "Not here" if line.starts_with("- ") => {
                let Some((ids, _)) = line[2..].split_once(':') else {
                    error("say what it waits for: `- F1: ...`".into());
                    continue;
                };
                (ids, None)
            }
            _ => continue,
        };
        let Some(rows) = parse_rows(ids) else {
            error(format!("`{}` names no rows (such as `F1`, `B2, B3`, `N4-N9`)", ids.trim()));
            continue;
        };
        if let Some(tests) = tests {
            check_tests(&rows, tests, files).into_iter().for_each(&mut error);
        }
        for row in rows {
            if section == "Not here" && row.0 == 'F' {
                error(format!("F{}: every schedule needs a test", row.1));
            }
            if seen.insert(row, (number, section == "Not yet")).is_some() {
                error(format!("{}{} is listed twice", row.0, row.1));
            }
        }
    }
    for (letter, count) in ROWS {
        for number in 1..=count {
            let name = format!("{letter}{number}");
            match seen.remove(&(letter, number)) {
                None => findings.push(Finding::error(DOCUMENT, 1, format!("{name} has no row"))),
                Some((line, true)) => {
                    findings.push(Finding::warning(DOCUMENT, line, format!("{name}: not yet")));
                }
                Some((_, false)) => {}
            }
        }
    }
    for ((letter, number), (line, _)) in seen {
        let what = format!("{letter}{number}: there is no such row");
        findings.push(Finding::error(DOCUMENT, line, what));
    }
    findings
}

/// What is wrong with the tests of some rows.
fn check_tests(rows: &[Row], cell: &str, files: &[SourceFile]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut names = Vec::new();
    for test in cell.split('`').skip(1).step_by(2) {
        let Some((path, name)) = test.split_once("::") else {
            wrong.push(format!("`{test}`: name a test as `path/of/file.rs::function`"));
            continue;
        };
        match files.iter().find(|file| file.path == path) {
            None => wrong.push(format!("`{test}`: there is no file {path}")),
            Some(file) if !is_test(&file.text, name) => {
                wrong.push(format!("`{test}`: {path} has no test of that name"));
            }
            Some(_) => names.push(name),
        }
    }
    if names.is_empty() {
        wrong.push("a row needs a test; without one it belongs under \"Not yet\"".into());
    }
    for (letter, number) in rows.iter().filter(|row| row.0 == 'F') {
        let mark = format!("f{number:02}_");
        if !names.iter().any(|name| name.contains(&mark)) {
            wrong.push(format!("no test of {letter}{number} has `{mark}` in its name"));
        }
    }
    wrong
}

/// Whether there is a function of that name under a test attribute: `#[test]`, `#[tokio::test]` or the
/// same with arguments, among the attributes and comments right before it.
fn is_test(text: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let defines = |line: &str| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("async ").unwrap_or(line).starts_with(&head)
    };
    lines.iter().enumerate().filter(|(_, line)| defines(line)).any(|(at, _)| {
        // Back to the end of what comes before; an attribute may go over several lines.
        let before = lines[..at].iter().rev();
        let own = before.take_while(|line| !line.is_empty() && !line.ends_with(['}', ';', '{']));
        own.into_iter().any(|line| is_test_attribute(line))
    })
}

fn is_test_attribute(line: &str) -> bool {
    let Some(attribute) = line.strip_prefix("#[") else { return false };
    let path = attribute.split(['(', ']']).next().unwrap_or_default().trim();
    path == "test" || path.ends_with("::test")
}

/// `F1, B2-B4` as single rows.
fn parse_rows(ids: &str) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    for part in ids.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (parse_row(first)?, parse_row(last)?);
        if first.0 != last.0 || first.1 > last.1 {
            return None;
        }
        rows.extend((first.1..=last.1).map(|number| (first.0, number)));
    }
    Some(rows)
}

fn parse_row(id: &str) -> Option<Row> {
    let id = id.trim();
    let letter = id.chars().next().filter(char::is_ascii_uppercase)?;
    Some((letter, id[1..].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    fn table(rows: &str, not_yet: &str) -> Vec<String> {
        let text = format!("## Rows and tests\n{rows}\n### Not yet\n{not_yet}\n");
        let tests = "#[test]\nfn f01_a() {}\nfn f02_b() {}\n#[test]\nfn other() {}\n";
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let files = [file(DOCUMENT, &text), file("engine/tests/a.rs", tests)];
        let errors = check(&files).into_iter().filter(|f| f.severity == Severity::Error);
        errors.map(|finding| finding.message).collect()
    }

    /// All rows but F1, and F1 as given.
    fn with(row: &str) -> Vec<String> {
        table(row, "- F2-F28, B1-B26, C1-C20, N1-N77, S1-S4: waits\n")
    }

    #[test]
    fn a_row_with_its_test_passes() {
        assert_eq!(with("| F1 | what | `engine/tests/a.rs::f01_a` |"), [""; 0]);
    }

    #[test]
    fn only_functions_under_a_test_attribute_are_tests() {
        for (text, is) in [
            ("#[test]\nfn f() {}", true),
            ("    #[tokio::test(flavor = \"multi_thread\")]\n    async fn f() {}", true),
            ("#[test]\n#[cfg(unix)]\n// why\nfn f() {}", true),
            ("#[test]\n#[should_panic(\n    expected = \"x\"\n)]\nfn f() {}", true),
            // Helpers near a test, or with the word near them.
            ("#[test]\nfn t() {}\n\n#[inline]\nfn f() {}", false),
            ("#[test]\nfn t() {}\n#[inline]\nfn f() {}", false),
            ("#[cfg(test)]\nfn f() {}", false),
            ("#[allow(dead_code)] // for the test\nfn f() {}", false),
            ("#[test]\nfn t() { f(1) }\n", false),
            ("#[test]\nfn other_fn f() {}", false),
            ("fn f() {}", false),
        ] {
            assert_eq!(is_test(text, "f"), is, "{text}");
        }
        // Any text may stand before it: 200 bytes back is inside a character.
        for padding in 190..210 {
            let text = format!("// \u{e9}{}\n#[test]\nfn f() {{}}", "\u{e9}".repeat(padding));
            assert!(is_test(&text, "f"));
            let text = format!("//\u{e9}{}\n#[inline]\nfn f() {{}}", "\u{e9}".repeat(padding));
            assert!(!is_test(&text, "f"));
        }
    }

    #[test]
    fn a_row_id_that_is_not_ascii_is_an_error() {
        assert_eq!(parse_rows("\u{c9}1"), None);
        assert_eq!(parse_rows("F\u{e9}"), None);
        assert_eq!(parse_rows(""), None);
    }

    #[test]
    fn missing_rows_tests_files_and_numbers_are_errors() {
        let one = |row: &str, part: &str| {
            let errors = with(row);
            assert!(errors.iter().any(|error| error.contains(part)), "{row}: {errors:?}");
        };
        one("", "F1 has no row");
        one("| F1 | what | none |", "a row needs a test");
        one("| F1 | what | `engine/tests/b.rs::f01_a` |", "no file");
        one("| F1 | what | `engine/tests/a.rs::f01_x` |", "no test of that name");
        one("| F1 | what | `engine/tests/a.rs::f02_b` |", "no test of that name");
        one("| F1 | what | `engine/tests/a.rs::other` |", "`f01_`");
        one("| F1, F2 | what | `engine/tests/a.rs::f01_a` |", "F2 is listed twice");
        one("| F1, F99 | what | `engine/tests/a.rs::f01_a` |", "no such row");
        one("| F1 and so on | what | `engine/tests/a.rs::f01_a` |", "names no rows");
    }
}
