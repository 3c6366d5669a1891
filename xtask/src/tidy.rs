//! `cargo xtask tidy`: every rule over the real tree.
//!
//! Invariant: findings come in the order of file and line, whatever rule they are from.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::finding::{Finding, Severity};
use crate::rules::{
    crate_directions, durability_rows, engine_layers, engine_primitives, leftovers, lock_file,
    shape,
};
use crate::tree::{self, SourceFile};

/// Prints the findings; whether the tree passes.
pub(crate) fn command() -> Result<bool> {
    let findings = check_tree()?;
    for finding in &findings {
        println!("{finding}");
    }
    let errors = count(&findings, Severity::Error);
    let warnings = count(&findings, Severity::Warning);
    println!("tidy: {errors} errors, {warnings} warnings");
    Ok(errors == 0)
}

/// Every rule over the repository that this crate lies in.
fn check_tree() -> Result<Vec<Finding>> {
    let root = tree::root()?;
    let files = tree::read(&root)?;
    let mut findings = check_files(&files);
    findings.extend(durability_rows::check(&files));
    let edges = crate_directions::edges(&cargo_metadata(&root.join("Cargo.toml"))?)?;
    findings.extend(crate_directions::check(&edges, |manifest, dependency| {
        let file = files.iter().find(|file| file.path == manifest);
        file.map_or(1, |file| crate_directions::line_in_manifest(&file.text, dependency))
    }));
    findings.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    Ok(findings)
}

/// The rules that look at one file at a time.
fn check_files(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        findings.extend(shape::check(file));
        findings.extend(leftovers::check(file));
        findings.extend(engine_layers::check(file));
        findings.extend(engine_primitives::check(file));
        if file.path == "Cargo.lock" {
            findings.extend(lock_file::check(&file.path, &file.text));
        }
    }
    findings
}

fn count(findings: &[Finding], severity: Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == severity).count()
}

fn cargo_metadata(manifest: &std::path::Path) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .context("start cargo metadata")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata failed: {complaint}");
    serde_json::from_slice(&output.stdout).context("read the output of cargo metadata")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let findings = check_tree().expect("tidy");
        let errors: Vec<_> = findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error)
            .map(ToString::to_string)
            .collect();
        assert!(errors.is_empty(), "\n{}", errors.join("\n"));
    }
}
