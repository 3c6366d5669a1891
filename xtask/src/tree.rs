//! The text files of the repository.
//!
//! Invariants: build output (any folder with a `CACHEDIR.TAG`), `.git` (a file in a linked
//! worktree), data directories and files that are not UTF-8 are not part of the tree; the order
//! is that of the paths.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Folders that hold data of a run or of another tool, never sources.
const SKIPPED: [&str; 7] =
    [".git", "target", "node_modules", "vmemkv-data", "vmemkv-bench-data", "corpus", ".venv"];

/// One text file.
#[derive(Clone, Debug)]
pub(crate) struct SourceFile {
    /// From the root of the repository, with `/`.
    pub(crate) path: String,
    /// All of it.
    pub(crate) text: String,
}

impl SourceFile {
    /// Whether it is Rust.
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether it is something that a machine reads: code, configuration or a script.
    pub(crate) fn is_source(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        matches!(extension, Some("rs" | "proto" | "toml" | "sh" | "py" | "yml" | "yaml"))
            || name.starts_with("Dockerfile")
            || self.text.starts_with("#!/")
    }
}

/// The root of the repository: the folder above this crate. Cargo says at run time where that is;
/// the place at build time may be another one when two checkouts share a target directory.
pub(crate) fn root() -> Result<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    Ok(here.parent().context("this crate lies at the root of a file system")?.to_path_buf())
}

/// Every text file below `root`.
pub(crate) fn read(root: &Path) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    visit(root, root, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn visit(root: &Path, folder: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let name = entry.file_name();
            let skipped = SKIPPED.iter().any(|skipped| name == *skipped);
            if !skipped && !path.join("CACHEDIR.TAG").exists() {
                visit(root, &path, files)?;
            }
        } else if kind.is_file() && entry.file_name() != ".git" {
            let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            if let Ok(text) = String::from_utf8(bytes) {
                let path = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
                files.push(SourceFile { path, text });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_the_sources_and_no_build_output() {
        let files = read(&root().expect("root")).expect("tree");
        assert!(files.iter().any(|file| file.path == "xtask/src/tree.rs"));
        assert!(files.iter().any(|file| file.path == "Cargo.lock"));
        assert!(!files.iter().any(|file| file.path.starts_with("target/")));
        assert!(!files.iter().any(|file| file.path.starts_with(".git/")));
    }

    #[test]
    fn a_script_without_an_extension_is_a_source() {
        let script = SourceFile { path: ".ci/run".into(), text: "#!/bin/bash\n".into() };
        let prose = SourceFile { path: "README.md".into(), text: "# Read me\n".into() };
        assert!(script.is_source());
        assert!(!prose.is_source());
    }
}
