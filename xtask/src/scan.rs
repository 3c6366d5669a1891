//! Reading Rust text without parsing it: comments and literals blanked out, and the paths that
//! a file names.
//!
//! Invariant: blanking keeps every line break, so positions still say which line they are on.

/// `text` with comments, strings and character literals replaced by spaces.
pub(crate) fn blank_comments_and_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_or_comment_end(bytes, at);
        if end == at {
            out.push(bytes[at]);
            at += 1;
        } else {
            out.extend(bytes[at..end].iter().map(|&b| if b == b'\n' { b'\n' } else { b' ' }));
            at = end;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts there.
fn literal_or_comment_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let in_word = at > 0 && is_word(bytes[at - 1]);
    if rest.starts_with(b"//") {
        return find(bytes, at, b"\n");
    }
    if rest.starts_with(b"/*") {
        return block_comment_end(bytes, at);
    }
    if rest[0] == b'"' {
        return quoted_end(bytes, at);
    }
    if rest[0] == b'r' && (!in_word || bytes[at - 1] == b'b') {
        let hashes = rest[1..].iter().take_while(|&&b| b == b'#').count();
        if rest.get(1 + hashes) == Some(&b'"') {
            let mut close = vec![b'"'];
            close.resize(1 + hashes, b'#');
            return (find(bytes, at + 2 + hashes, &close) + close.len()).min(bytes.len());
        }
    }
    if rest[0] == b'\'' {
        // A lifetime has no closing quote behind its first character.
        if rest.get(1) == Some(&b'\\') {
            return (find(bytes, at + 3, b"'") + 1).min(bytes.len());
        }
        if let Some(width) = (2..=5).find(|&width| rest.get(width) == Some(&b'\''))
            && std::str::from_utf8(&rest[1..width]).is_ok_and(|s| s.chars().count() == 1)
        {
            return at + width + 1;
        }
    }
    at
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn quoted_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    let from = from.min(bytes.len());
    bytes[from..].windows(what.len()).position(|w| w == what).map_or(bytes.len(), |p| from + p)
}

/// Whether the byte can be part of an identifier.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The line of a byte position, from 1.
pub(crate) fn line_of(text: &str, position: usize) -> usize {
    1 + text.as_bytes()[..position].iter().filter(|&&b| b == b'\n').count()
}

/// What follows each `prefix` (such as `crate::`) in blanked text: position and first names; a
/// brace list gives one name for each of its members.
pub(crate) fn names_after(text: &str, prefix: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for (position, _) in text.match_indices(prefix) {
        if position > 0
            && (is_word(text.as_bytes()[position - 1]) || text[..position].ends_with(':'))
        {
            continue;
        }
        let rest = &text[position + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(list) => {
                let members = first_names_of_list(list);
                names.extend(members.into_iter().map(|name| (position, name)));
            }
            None => names.push((position, word(rest))),
        }
    }
    names.retain(|(_, name)| !name.is_empty());
    names
}

/// How many inline modules (`mod tests {`) of blanked text a position lies in.
pub(crate) fn inline_module_depth(text: &str, position: usize) -> usize {
    let mut opened = Vec::new();
    for (at, c) in text[..position].char_indices() {
        match c {
            '{' => opened.push(opens_module(&text[..at])),
            '}' => drop(opened.pop()),
            _ => {}
        }
    }
    opened.into_iter().filter(|&is_module| is_module).count()
}

/// Whether `before` an opening brace ends with `mod name`.
fn opens_module(before: &str) -> bool {
    let trimmed = before.trim_end();
    let without_name = trimmed.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let keyword = without_name.trim_end();
    keyword.len() < without_name.len()
        && without_name.len() < trimmed.len()
        && keyword.strip_suffix("mod").is_some_and(|rest| !rest.bytes().last().is_some_and(is_word))
}

/// The first names of `a::b, c::{d, e}, f}`.
fn first_names_of_list(list: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 0usize;
    let mut at_start = true;
    for (position, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => at_start = true,
            c if at_start && !c.is_whitespace() => {
                names.push(word(&list[position..]));
                at_start = false;
            }
            _ => {}
        }
    }
    names
}

/// The identifier at the start of `text`; a macro call (`name!`) is none.
fn word(text: &str) -> String {
    let end = text.bytes().position(|b| !is_word(b)).unwrap_or(text.len());
    let is_macro = text[end..].starts_with('!');
    if is_macro { String::new() } else { text[..end].to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_become_spaces_and_lines_stay() {
        let text = "a // b\nc /* d\n /* e */ */ f \"g \\\" h\" i r#\"j\"k\"# l 'm' '\\n' n 'o: p";
        let blank = blank_comments_and_literals(text);
        let words: Vec<_> = blank.split_whitespace().collect();
        assert_eq!(words, ["a", "c", "f", "i", "l", "n", "'o:", "p"]);
        assert_eq!(blank.matches('\n').count(), text.matches('\n').count());
        assert_eq!(blank.len(), text.len());
    }

    #[test]
    fn names_come_from_paths_and_lists() {
        let text = "use crate::{a::B, c::{d, e}, F};\nfn x() { crate::g::h(); crate::m!(1) }";
        let names: Vec<_> = names_after(text, "crate::").into_iter().map(|(_, n)| n).collect();
        assert_eq!(names, ["a", "c", "F", "g"]);
    }

    #[test]
    fn inline_modules_nest_and_end() {
        let text = "fn a() { A } mod b { mod c { B } C } pub(crate) mod d { D } struct mod_e { E }";
        let depth = |name: &str| inline_module_depth(text, text.find(name).expect("name"));
        assert_eq!(["A", "B", "C", "D", "E"].map(depth), [0, 2, 1, 1, 0]);
    }

    #[test]
    fn a_longer_word_is_not_the_prefix() {
        assert!(names_after("my_crate::a", "crate::").is_empty());
        assert!(names_after("super::super::a", "super::a").is_empty());
    }
}
