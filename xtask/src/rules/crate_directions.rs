//! Which of our crates may depend on which, from `cargo metadata`.
//!
//! Invariants: the table is the whole truth, for build and dev dependencies too; a crate may
//! dev-depend on itself, to switch on a feature for its tests; the engine is a synchronous
//! library that knows neither a runtime nor gRPC.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::finding::Finding;

const PREFIX: &str = "vmemkv-";

/// A crate, and those that it may import.
const MAY_IMPORT: [(&str, &[&str]); 10] = [
    ("failpoint", &[]),
    ("proto", &[]),
    ("engine", &[]),
    ("client", &["proto"]),
    ("router", &["proto", "client", "failpoint"]),
    ("server", &["proto", "engine", "failpoint"]),
    ("cli", &["proto", "engine", "client", "router", "server"]),
    ("bench", &["engine", "client", "router", "server"]),
    ("tests", &["proto", "engine", "client", "router", "server", "cli", "bench", "failpoint"]),
    ("xtask", &[]),
];

/// What the engine does without.
const NOT_IN_ENGINE: [&str; 6] = ["tokio", "tonic", "prost", "futures", "async-trait", "hyper"];

/// One dependency between packages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Edge {
    /// The manifest of the one that depends, from the root of the repository.
    pub(crate) manifest: String,
    /// The package that depends.
    pub(crate) from: String,
    /// What it depends on.
    pub(crate) to: String,
    /// Whether for tests only.
    pub(crate) dev: bool,
}

/// The dependencies of the workspace's members in the output of `cargo metadata --no-deps`.
pub(crate) fn edges(metadata: &Value) -> Result<Vec<Edge>> {
    let text = |value: &Value, field: &str| -> Result<String> {
        let found = value[field].as_str().map(str::to_owned);
        found.with_context(|| format!("cargo metadata: no `{field}` in {value}"))
    };
    let root = text(metadata, "workspace_root")?;
    let mut edges = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata: no packages")? {
        let path = text(package, "manifest_path")?;
        let manifest = path.strip_prefix(&root).unwrap_or(&path).trim_start_matches('/').to_owned();
        let from = text(package, "name")?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            edges.push(Edge {
                manifest: manifest.clone(),
                from: from.clone(),
                to: text(dependency, "name")?,
                dev: dependency["kind"].as_str() == Some("dev"),
            });
        }
    }
    Ok(edges)
}

/// Dependencies that the table does not allow. `line_of` finds a dependency in a manifest.
pub(crate) fn check(edges: &[Edge], line_of: impl Fn(&str, &str) -> usize) -> Vec<Finding> {
    edges
        .iter()
        .filter_map(|edge| {
            let what = refusal(edge)?;
            Some(Finding::error(&edge.manifest, line_of(&edge.manifest, &edge.to), what))
        })
        .collect()
}

/// The line of `manifest` that names the dependency; 1 if none does.
pub(crate) fn line_in_manifest(manifest: &str, dependency: &str) -> usize {
    let names = |line: &str| {
        line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    manifest.lines().position(names).map_or(1, |index| index + 1)
}

fn refusal(edge: &Edge) -> Option<String> {
    let from = short(&edge.from);
    if from == "engine" && !edge.dev && NOT_IN_ENGINE.contains(&edge.to.as_str()) {
        return Some(format!(
            "the engine is a plain synchronous library and does without `{}`: use threads, and \
             let the server join both worlds",
            edge.to
        ));
    }
    let Some(&(_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == from) else {
        return Some(format!("the crate `{}` is not in the table of this rule: add it", edge.from));
    };
    let to = edge.to.strip_prefix(PREFIX)?;
    let itself = edge.dev && to == from;
    if itself || allowed.contains(&to) {
        return None;
    }
    let allowed = if allowed.is_empty() { "nothing of ours".into() } else { allowed.join(", ") };
    Some(format!("`{from}` must not depend on `{to}`; it may import: {allowed}"))
}

fn short(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edge(from: &str, to: &str, dev: bool) -> Edge {
        Edge { manifest: "x/Cargo.toml".into(), from: from.into(), to: to.into(), dev }
    }

    fn fails(from: &str, to: &str, dev: bool) -> bool {
        !check(&[edge(from, to, dev)], |_, _| 7).is_empty()
    }

    #[test]
    fn a_dependency_against_the_direction_fails() {
        assert!(fails("vmemkv-engine", "vmemkv-proto", false));
        assert!(fails("vmemkv-client", "vmemkv-server", false));
        assert!(fails("vmemkv-router", "vmemkv-engine", false));
        assert!(fails("vmemkv-client", "vmemkv-server", true));
        assert!(fails("xtask", "vmemkv-engine", false));
    }

    #[test]
    fn a_runtime_in_the_engine_fails() {
        assert!(fails("vmemkv-engine", "tokio", false));
        assert!(fails("vmemkv-engine", "tonic", false));
        assert!(!fails("vmemkv-server", "tokio", false));
    }

    #[test]
    fn a_crate_that_nobody_listed_fails() {
        assert!(fails("vmemkv-extra", "vmemkv-engine", false));
    }

    #[test]
    fn what_the_table_allows_passes() {
        assert!(!fails("vmemkv-server", "vmemkv-engine", false));
        assert!(!fails("vmemkv-engine", "vmemkv-engine", true));
        assert!(fails("vmemkv-engine", "vmemkv-engine", false));
        assert!(!fails("vmemkv-tests", "vmemkv-cli", true));
    }

    #[test]
    fn edges_come_from_metadata() {
        let metadata = json!({"workspace_root": "/r", "packages": [{
            "name": "vmemkv-server", "manifest_path": "/r/server/Cargo.toml",
            "dependencies": [{"name": "vmemkv-engine", "kind": null}, {"name": "x", "kind": "dev"}],
        }]});
        let edges = edges(&metadata).expect("edges");
        assert_eq!(edges.len(), 2);
        assert_eq!(edges[0].manifest, "server/Cargo.toml");
        assert!(edges[1].dev && !edges[0].dev);
    }

    #[test]
    fn the_line_of_a_dependency_is_found() {
        let manifest = "[dependencies]\ntokio-util.workspace = true\ntokio.workspace = true\n";
        assert_eq!(line_in_manifest(manifest, "tokio"), 3);
        assert_eq!(line_in_manifest(manifest, "bytes"), 1);
    }
}
