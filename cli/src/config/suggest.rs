//! Finds the setting that somebody meant.
//!
//! Invariant: a suggestion is near, or shares the last word; a far one is worse than none.

/// The candidate nearest to `name`, if one is near. Both are dotted paths.
pub(crate) fn nearest<'a>(name: &str, candidates: &'a [String]) -> Option<&'a str> {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().replace('-', "_");
    let meant = last(name);
    let best = candidates
        .iter()
        .map(|candidate| {
            let whole = distance(name, candidate);
            // The right word in the wrong section, or a wrong word in it.
            let tail = distance(&meant, &last(candidate)) + 1;
            (whole.min(tail), whole, candidate)
        })
        .min()?;
    let allowed = (meant.len() / 3).clamp(1, 4);
    (best.0 <= allowed).then_some(best.2.as_str())
}

/// How many letters must be added, removed, replaced or swapped with a neighbour.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in
            [("", "", 0), ("listen", "listen", 0), ("lisen", "listen", 1), ("lsiten", "listen", 1)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
        assert_eq!(distance("abc", ""), 3);
    }

    #[test]
    fn typing_errors_and_wrong_sections_find_the_right_name() {
        let known: Vec<String> = ["server.listen", "server.engine.bloom", "router.listen", "log"]
            .map(str::to_owned)
            .into();
        assert_eq!(nearest("server.lisen", &known), Some("server.listen"));
        assert_eq!(nearest("serer.listen", &known), Some("server.listen"));
        assert_eq!(nearest("server.bloom", &known), Some("server.engine.bloom"));
        assert_eq!(nearest("logs", &known), Some("log"));
        assert_eq!(nearest("server.quorum_size", &known), None);
    }
}
