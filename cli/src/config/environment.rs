//! Settings from the environment: `VMEMKV_SECTION__KEY`.
//!
//! Invariants: names that Kubernetes injects for a service called vmemkv, or vmemkv-anything
//! (`VMEMKV_PORT*`, `VMEMKV_SERVICE_*`, `VMEMKV_*_PORT*`, `VMEMKV_*_SERVICE_*`), never count, and no
//! setting has such a name.

use std::ffi::OsString;

/// What all our variables begin with.
const PREFIX: &str = "VMEMKV_";

/// Variables that are no settings of a process: they have flags, or belong to tests and tools.
const NOT_SETTINGS: [&str; 1] = ["VMEMKV_ADDR"];

/// A variable that may hold a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    /// Its name, as found.
    pub(crate) name: String,
    /// The setting's path.
    pub(crate) path: Vec<String>,
    /// Its value.
    pub(crate) value: String,
}

/// Whether Kubernetes injects variables of this name for services called `vmemkv` or `vmemkv-*`.
pub(crate) fn is_injected(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    rest.starts_with("PORT")
        || rest.starts_with("SERVICE_")
        || rest.contains("_PORT")
        || rest.contains("_SERVICE_")
}

/// The variables that may hold settings, by name. One that is not text is refused.
pub(crate) fn variables(
    all: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<Variable>, String> {
    let mut found = Vec::new();
    for (name, value) in all {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        if NOT_SETTINGS.contains(&name) || is_injected(name) {
            continue;
        }
        let path = path_of(name);
        let Some(value) = value.to_str().map(str::to_owned) else {
            return Err(format!("environment variable {name} is not UTF-8"));
        };
        found.push(Variable { name: name.to_owned(), path, value });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The path that a variable's name spells.
fn path_of(name: &str) -> Vec<String> {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    rest.split("__").map(str::to_ascii_lowercase).collect()
}

/// The variable that sets `path`.
pub(crate) fn name_of(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        let all = all.iter().map(|name| ((*name).into(), "1".into()));
        variables(all).unwrap().into_iter().map(|variable| variable.name).collect()
    }

    #[test]
    fn what_kubernetes_injects_does_not_count() {
        let injected = [
            "VMEMKV_PORT",
            "VMEMKV_PORT_7400_TCP",
            "VMEMKV_PORT_7400_TCP_ADDR",
            "VMEMKV_PORT_7400_TCP_PORT",
            "VMEMKV_PORT_7400_TCP_PROTO",
            "VMEMKV_SERVICE_HOST",
            "VMEMKV_SERVICE_PORT",
            "VMEMKV_SERVICE_PORT_GRPC",
            "VMEMKV_ROUTER_SERVICE_HOST",
            "VMEMKV_ROUTER_SERVICE_PORT_HTTP",
            "VMEMKV_ROUTER_PORT",
            "VMEMKV_SERVER_PORT_7410_TCP_ADDR",
            "VMEMKV_SERVER__LISTEN_SERVICE_HOST",
        ];
        assert_eq!(names(&injected), Vec::<String>::new());
    }

    #[test]
    fn settings_count_and_other_names_do_not() {
        let all = ["PATH", "VMEMKV_ADDR", "VMEMKV_SERVER__LISTEN", "VMEMKVX_A", "VMEMKV_SERVICES"];
        assert_eq!(names(&all), ["VMEMKV_SERVER__LISTEN", "VMEMKV_SERVICES"]);
    }

    #[test]
    fn names_and_paths_agree() {
        assert_eq!(path_of("VMEMKV_SERVER__ENGINE__BLOOM"), ["server", "engine", "bloom"]);
        assert_eq!(name_of("server.engine.bloom"), "VMEMKV_SERVER__ENGINE__BLOOM");
        assert_eq!(path_of(&name_of("log.level")), ["log", "level"]);
    }
}
