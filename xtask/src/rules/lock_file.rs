//! What may be in `Cargo.lock`: one version of the crates whose types meet, none of the crates
//! that would need a C toolchain, a protoc or a second TLS stack.

use crate::finding::Finding;

/// One version each, and why.
const SINGLE: [(&str, &str); 5] = [
    ("tonic", "two versions do not know each other's Status and Channel"),
    ("prost", "two versions do not know each other's Message"),
    ("prost-types", "two versions do not know each other's Any"),
    ("tokio", "two runtimes do not drive each other's timers and sockets"),
    ("http", "two versions do not know each other's HeaderMap"),
];

/// Not at all, and why.
const FORBIDDEN: [(&str, &str); 7] = [
    ("openssl", "TLS is rustls with ring"),
    ("openssl-sys", "TLS is rustls with ring"),
    ("native-tls", "TLS is rustls with ring"),
    ("aws-lc-rs", "it builds C; choose the `ring` feature of the crate that brings it"),
    ("aws-lc-sys", "it builds C; choose the `ring` feature of the crate that brings it"),
    ("protoc-bin-vendored", "protox compiles the .proto files"),
    ("protobuf-src", "protox compiles the .proto files"),
];

/// One `[[package]]`.
struct Locked<'a> {
    line: usize,
    name: &'a str,
    version: &'a str,
}

/// Duplicates and forbidden crates in the text of the lock file at `path`.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    let packages = packages(text);
    let mut findings = Vec::new();
    for (name, reason) in SINGLE {
        let versions: Vec<_> = packages.iter().filter(|package| package.name == name).collect();
        if let [_, .., last] = versions.as_slice() {
            let list: Vec<_> = versions.iter().map(|package| package.version).collect();
            let what = format!(
                "{name} in versions {}: {reason}; find who brings it: cargo tree -i {name}@{}",
                list.join(" and "),
                last.version
            );
            findings.push(Finding::error(path, last.line, what));
        }
    }
    for package in &packages {
        if let Some((name, reason)) = FORBIDDEN.iter().find(|(name, _)| *name == package.name) {
            let what = format!("{name} is not allowed: {reason} (cargo tree -i {name})");
            findings.push(Finding::error(path, package.line, what));
        }
    }
    findings
}

fn packages(text: &str) -> Vec<Locked<'_>> {
    let mut packages = Vec::new();
    let mut name = None;
    for (index, line) in text.lines().enumerate() {
        if let Some(value) = quoted(line, "name = ") {
            name = Some((index + 1, value));
        } else if let (Some(version), Some((line, found))) = (quoted(line, "version = "), name) {
            packages.push(Locked { line, name: found, version });
            name = None;
        }
    }
    packages
}

fn quoted<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(packages: &[(&str, &str)]) -> String {
        let entries = packages.iter().map(|(name, version)| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n")
        });
        format!("version = 4\n\n{}", entries.collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn a_second_tonic_fails_where_it_stands() {
        let text = lock(&[("tonic", "0.13.1"), ("tonic", "0.14.9"), ("rand", "0.9.0")]);
        let found = check("Cargo.lock", &text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 8);
        assert!(found[0].message.contains("0.13.1 and 0.14.9"));
    }

    #[test]
    fn two_versions_of_other_crates_are_fine() {
        let text = lock(&[("tonic", "0.14.9"), ("rand", "0.9.0"), ("rand", "0.10.0")]);
        assert!(check("Cargo.lock", &text).is_empty());
    }

    #[test]
    fn each_forbidden_crate_fails() {
        for (name, _) in FORBIDDEN {
            assert_eq!(check("Cargo.lock", &lock(&[(name, "1.0.0")])).len(), 1, "{name}");
        }
    }
}
