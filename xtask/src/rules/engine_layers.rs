//! Who imports whom inside the engine.
//!
//! Invariants: `index`, `value_log` and `wal` never import each other, the modules above join
//! them; the base (types, errors, io, sync) imports nothing above itself.

use crate::finding::Finding;
use crate::scan::{blank_comments_and_literals, inline_module_depth, line_of, names_after};
use crate::tree::SourceFile;

const ROOT: &str = "engine/src/";
/// What everybody may import; imports only itself.
const BASE: [&str; 7] = ["api", "error", "io", "options", "stats", "sync", "types"];
/// The structures. Each imports the base and itself.
const STRUCTURES: [&str; 3] = ["index", "value_log", "wal"];
/// Modules within modules of one file that are looked into.
const MAX_INLINE_MODULES: usize = 4;
/// Items at the crate's root that stand for a module above the structures.
const ABOVE: [&str; 1] = ["Engine"];

/// The imports of one file.
pub(crate) fn check(file: &SourceFile) -> Vec<Finding> {
    let Some(modules) = module_path(&file.path) else { return Vec::new() };
    let Some(own) = modules.first().copied() else { return Vec::new() };
    if !BASE.contains(&own) && !STRUCTURES.contains(&own) {
        return Vec::new();
    }
    let text = blank_comments_and_literals(&file.text);
    let from_root =
        names_after(&text, "crate::").into_iter().chain(via_super(&text, modules.len()));
    from_root
        .filter(|(_, name)| !allowed(own, name))
        .map(|(position, name)| {
            Finding::error(&file.path, line_of(&text, position), refusal(own, &name))
        })
        .collect()
}

/// Names that a chain of `super::` takes from the root of the crate. An inline module needs one
/// more of them than its file.
fn via_super(text: &str, modules: usize) -> Vec<(usize, String)> {
    let chains = (modules..modules + MAX_INLINE_MODULES).flat_map(|supers| {
        names_after(text, &"super::".repeat(supers)).into_iter().filter(move |(position, name)| {
            name != "super" && modules + inline_module_depth(text, *position) == supers
        })
    });
    chains.collect()
}

/// The modules from the crate's root to a file of the engine; none for other files.
fn module_path(path: &str) -> Option<Vec<&str>> {
    let inner = path.strip_prefix(ROOT)?.strip_suffix(".rs")?;
    let mut modules: Vec<_> = inner.split('/').collect();
    if matches!(modules.last(), Some(&"mod" | &"lib")) {
        modules.pop();
    }
    Some(modules)
}

fn allowed(own: &str, name: &str) -> bool {
    let is_item = name.starts_with(|c: char| c.is_ascii_uppercase());
    name == own || BASE.contains(&name) || (is_item && !ABOVE.contains(&name))
}

fn refusal(own: &str, name: &str) -> String {
    if STRUCTURES.contains(&own) && STRUCTURES.contains(&name) {
        format!("`{own}` must not import `{name}`: let `ops`, `recovery` or `checkpoint` join them")
    } else {
        format!(
            "`{own}` must not import `{name}`, which lies above it: hand in what it needs, or, if \
             `{name}` imports nothing above the base, name it in BASE of this rule"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile { path: format!("{ROOT}{path}"), text: text.into() };
        check(&file).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_structures_do_not_import_each_other() {
        assert_eq!(found("index/shard.rs", "\nuse crate::wal::Ring;\n"), [2]);
        assert_eq!(found("wal/mod.rs", "use crate::{io::Disk, value_log};\n"), [1]);
        assert_eq!(found("value_log/read_path/pread.rs", "fn a() { crate::index::b() }\n"), [1]);
        assert_eq!(found("index/shard.rs", "use super::super::wal::Ring;\n"), [1]);
        assert_eq!(found("index/mod.rs", "use super::wal::Ring;\n"), [1]);
    }

    #[test]
    fn the_base_imports_nothing_above() {
        assert_eq!(found("io/os.rs", "use crate::index::Shard;\n"), [1]);
        assert_eq!(found("types.rs", "use crate::engine::Engine;\n"), [1]);
        assert_eq!(found("sync/gate.rs", "use crate::{types::Lsn, Engine};\n"), [1]);
    }

    #[test]
    fn an_inline_module_is_one_level_deeper() {
        let tests = |path: &str| format!("mod tests {{\n    use {path};\n}}\nfn a() {{}}\n");
        assert!(found("index/filter.rs", &tests("super::super::key_hash")).is_empty());
        assert_eq!(found("index/filter.rs", &tests("super::super::super::wal::Ring")), [2]);
    }

    #[test]
    fn what_is_allowed_passes() {
        let text = "use crate::{Lsn, error::Result, io::Disk};\nuse crate::index::Entry;\n\
                    //! [`crate::wal`]\nuse super::entry::Entry;\n";
        assert!(found("index/shard.rs", text).is_empty());
        assert!(found("ops/put.rs", "use crate::{index, value_log, wal};\n").is_empty());
        assert!(found("lib.rs", "pub use crate::wal::Lsn;\n").is_empty());
    }

    #[test]
    fn other_crates_are_not_looked_at() {
        let file =
            SourceFile { path: "server/src/io/a.rs".into(), text: "use crate::index;".into() };
        assert!(check(&file).is_empty());
    }
}
