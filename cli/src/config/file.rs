//! Reads a file of settings: TOML or YAML, by its extension.
//!
//! Invariant: an error names the file, and the line where the parser knows it.

use std::path::Path;

use figment::providers::{Format, Toml, Yaml};
use figment::value::Dict;

use crate::failure::{Failure, Result};

/// Largest file of settings, bytes: a data file given by mistake is not read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The settings in a file, by section.
pub(crate) fn read(path: &Path) -> Result<Dict> {
    let shown = path.display();
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let is_toml = match extension {
        "toml" => true,
        "yaml" | "yml" => false,
        _ => {
            let message = format!("{shown}: a file of settings ends in .toml, .yaml or .yml");
            return Err(Failure::usage(message));
        }
    };
    let unreadable =
        |error: std::io::Error| Failure::usage(format!("cannot read {shown}: {error}"));
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(Failure::usage(format!("{shown} is {bytes} bytes: not a file of settings")));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let parsed = if is_toml {
        Toml::from_str::<Dict>(&text).map_err(|error| error.to_string())
    } else if text.lines().all(|line| line.trim().is_empty() || line.trim().starts_with('#')) {
        // A YAML document of comments alone is null, not a mapping.
        Ok(Dict::new())
    } else {
        Yaml::from_str::<Dict>(&text).map_err(|error| error.to_string())
    };
    parsed.map_err(|error| Failure::usage(format!("{shown}: {error}")))
}
