//! The settings of the processes: defaults, then a file, then the environment, then flags.
//!
//! Invariants: the later source wins, setting by setting; a name that is not a setting is an error
//! that names its file or variable and the setting that was probably meant; what Kubernetes injects
//! is no setting.

mod environment;
mod file;
mod log_config;
mod schema;
mod suggest;

use std::ffi::OsString;
use std::path::Path;

use figment::Figment;
use figment::providers::Serialized;
use figment::value::{Dict, Map, Value};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use environment::Variable;
use schema::Schema;

pub use log_config::{LogConfig, LogFormat};

/// Everything that a file or the environment can set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// A server process.
    pub server: vmemkv_server::Config,
    /// A router process.
    pub router: vmemkv_router::Config,
    /// The log of any process.
    pub log: LogConfig,
}

/// Settings that flags give: each with the flag's name.
#[derive(Clone, Debug, Default)]
pub struct FlagSettings(Vec<(String, String, Value)>);

impl FlagSettings {
    /// Sets `path` (such as `server.listen`) because `flag` was given.
    pub fn set(&mut self, flag: &str, path: &str, value: impl Into<Value>) {
        self.0.push((flag.to_owned(), path.to_owned(), value.into()));
    }

    /// Whether no flag was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same if there is a value.
    pub fn set_if(&mut self, flag: &str, path: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(flag, path, value);
        }
    }
}

/// The settings in force, and where each came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// What should be said about the sources, a sentence each.
    pub warnings: Vec<String>,
    figment: Figment,
    schema: Schema,
}

impl Loaded {
    /// Reads all sources of this process.
    pub fn from_process(file: Option<&Path>, flags: FlagSettings) -> Result<Self> {
        Self::from_sources(&Settings::default(), file, std::env::vars_os(), flags)
    }

    /// Reads the sources given. `defaults` are those of the command.
    pub fn from_sources(
        defaults: &Settings,
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        flags: FlagSettings,
    ) -> Result<Self> {
        let schema = Schema::of(defaults)?;
        let mut warnings = Vec::new();
        let mut figment = Figment::new().merge(Serialized::defaults(defaults));
        if let Some(path) = file {
            let dict = file::read(path)?;
            schema.check_names(&dict, &format!("{}", path.display()))?;
            figment = figment.merge(Source { name: path.display().to_string(), dict });
        }
        for variable in environment::variables(environment).map_err(Failure::usage)? {
            if let Some(value) = environment_value(&schema, &variable, &mut warnings)? {
                let dict = nest(&variable.path, value);
                figment = figment.merge(Source { name: variable.name, dict });
            }
        }
        for (flag, path, value) in flags.0 {
            let path: Vec<String> = path.split('.').map(str::to_owned).collect();
            figment = figment.merge(Source { name: flag, dict: nest(&path, value) });
        }
        let settings = figment.extract().map_err(|error| wrong_value(&error))?;
        Ok(Self { settings, warnings, figment, schema })
    }

    /// Every setting: its path, its value as JSON, and where it came from.
    pub fn listing(&self) -> Result<Vec<(String, serde_json::Value, String)>> {
        let in_force = Schema::of(&self.settings)?;
        let mut rows = Vec::new();
        for path in in_force.leaves() {
            let value = self.figment.find_value(path).ok();
            let value = value.and_then(|value| serde_json::to_value(&value).ok());
            rows.push((path.clone(), value.unwrap_or_default(), self.origin(path)));
        }
        Ok(rows)
    }

    /// Where a setting came from: `default`, a file, a variable or a flag.
    pub fn origin(&self, path: &str) -> String {
        let metadata = self.figment.find_metadata(path).map(|metadata| metadata.name.as_ref());
        match metadata {
            Some(name) if !name.contains("Settings") => name.to_owned(),
            _ => "default".to_owned(),
        }
    }

    /// Whether a source other than the defaults has set `path`.
    pub fn is_set(&self, path: &str) -> bool {
        self.origin(path) != "default"
    }

    /// The paths of all settings.
    pub fn paths(&self) -> &[String] {
        self.schema.leaves()
    }
}

/// The value of a variable; none: it is not a setting, and only looks like one of ours.
fn environment_value(
    schema: &Schema,
    variable: &Variable,
    warnings: &mut Vec<String>,
) -> Result<Option<Value>> {
    let path = variable.path.join(".");
    if schema.is_setting(&path) {
        return schema.parse(&path, &variable.value).map(Some).map_err(|reason| {
            Failure::usage(format!("environment variable {}: {reason}", variable.name))
        });
    }
    let meant = schema.suggest_variable(&variable.name);
    if variable.path.len() == 1 && meant.is_none() {
        warnings.push(format!("environment variable {} is not a setting", variable.name));
        return Ok(None);
    }
    let failure =
        Failure::usage(format!("environment variable {} is not a setting", variable.name));
    Err(match meant {
        Some(meant) => failure.with_hint(format!("did you mean {meant}?")),
        None => failure.with_hint("`vmemkv config` lists the settings"),
    })
}

/// One source with a name of its own, so that errors and listings can say where a value is from.
struct Source {
    name: String,
    dict: Dict,
}

impl figment::Provider for Source {
    fn metadata(&self) -> figment::Metadata {
        figment::Metadata::named(self.name.clone())
    }

    fn data(&self) -> figment::Result<Map<figment::Profile, Dict>> {
        Ok(figment::Profile::Default.collect(self.dict.clone()))
    }
}

fn nest(path: &[String], value: Value) -> Dict {
    let Some((first, rest)) = path.split_first() else { return Dict::new() };
    let inner = if rest.is_empty() { value } else { nest(rest, value).into() };
    Dict::from([(first.clone(), inner)])
}

/// A value of the wrong kind: names the setting and its source.
fn wrong_value(error: &figment::Error) -> Failure {
    let Some(first) = error.clone().into_iter().next() else {
        return Failure::usage("the configuration cannot be read");
    };
    let path = first.path.join(".");
    let source = match first.metadata.as_ref().map(|metadata| metadata.name.as_ref()) {
        Some(name) if !name.contains("Settings") => format!("{name}: "),
        _ => String::new(),
    };
    let is_address = path.ends_with("listen");
    Failure::usage(format!("{source}{path}: {}", first.kind))
        .with_hint_if(is_address, "give IP:PORT, such as 127.0.0.1:7410")
}

#[cfg(test)]
mod config_test;
