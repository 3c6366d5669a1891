//! Which settings there are, and of which kind: read off the defaults, so that it cannot lag behind.
//!
//! Invariants: every field of the defaults is a setting; below an empty map (labels) every name is.

use figment::value::{Dict, Num, Value};
use serde::Serialize;

use super::{environment, suggest};
use crate::failure::{Failure, Result};

/// The names and kinds of all settings.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    root: Value,
    leaves: Vec<String>,
}

impl Schema {
    /// The settings of `defaults`.
    pub(crate) fn of(defaults: &impl Serialize) -> Result<Self> {
        let root = Value::serialize(defaults)
            .map_err(|error| Failure::failed(format!("the defaults are broken: {error}")))?;
        let mut leaves = Vec::new();
        collect(&root, "", &mut leaves);
        Ok(Self { root, leaves })
    }

    /// The paths of all settings, in order.
    pub(crate) fn leaves(&self) -> &[String] {
        &self.leaves
    }

    /// Whether a value may be given for `path`.
    pub(crate) fn is_setting(&self, path: &str) -> bool {
        match self.find(path) {
            Some(Value::Dict(_, dict)) => dict.is_empty(),
            Some(_) => true,
            None => self.is_free(path),
        }
    }

    fn find(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.root, |value, name| match value {
            Value::Dict(_, dict) => dict.get(name),
            _ => None,
        })
    }

    /// Whether `path` names an entry of a map whose names are free.
    fn is_free(&self, path: &str) -> bool {
        let parent = path.rsplit_once('.').and_then(|(parent, _)| self.find(parent));
        matches!(parent, Some(Value::Dict(_, dict)) if dict.is_empty())
    }

    /// Refuses names in `dict` that are no settings; `source` says where they are from.
    pub(crate) fn check_names(&self, dict: &Dict, source: &str) -> Result {
        let mut wrong = Vec::new();
        self.unknown(&self.root, dict, "", &mut wrong);
        let Some(path) = wrong.first() else { return Ok(()) };
        let more = if wrong.len() > 1 { format!(" (of {})", wrong.len()) } else { String::new() };
        let failure = Failure::usage(format!("{source}: unknown setting `{path}`{more}"));
        Err(match suggest::nearest(path, &self.names()) {
            Some(meant) => failure.with_hint(format!("did you mean `{meant}`?")),
            None => failure.with_hint("`vmemkv config` lists the settings"),
        })
    }

    fn unknown(&self, schema: &Value, dict: &Dict, prefix: &str, wrong: &mut Vec<String>) {
        let Value::Dict(_, known) = schema else { return };
        if known.is_empty() && !prefix.is_empty() {
            return;
        }
        for (name, value) in dict {
            let path = join(prefix, name);
            match (known.get(name), value) {
                (None, _) => wrong.push(path),
                (Some(inner), Value::Dict(_, dict)) => self.unknown(inner, dict, &path, wrong),
                (Some(_), _) => {}
            }
        }
    }

    /// Sections and settings: what can be meant.
    fn names(&self) -> Vec<String> {
        let mut names = self.leaves.clone();
        for leaf in &self.leaves {
            let mut path = leaf.as_str();
            while let Some((parent, _)) = path.rsplit_once('.') {
                if !names.iter().any(|name| name == parent) {
                    names.push(parent.to_owned());
                }
                path = parent;
            }
        }
        names
    }

    /// The variable that was meant by `name`.
    pub(crate) fn suggest_variable(&self, name: &str) -> Option<String> {
        let flat = |name: &str| name.replace("__", "_");
        let variables: Vec<String> =
            self.leaves.iter().map(|leaf| environment::name_of(leaf)).collect();
        if let Some(same) = variables.iter().find(|variable| flat(variable) == flat(name)) {
            return Some(same.clone());
        }
        let nearest = variables
            .iter()
            .map(|variable| (suggest::distance(&flat(variable), &flat(name)), variable))
            .min()?;
        (nearest.0 <= 3).then(|| nearest.1.clone())
    }

    /// Reads the text of a variable as the kind that the setting has.
    pub(crate) fn parse(&self, path: &str, text: &str) -> std::result::Result<Value, String> {
        match self.find(path) {
            Some(Value::Array(..)) => Ok(list(text)),
            Some(Value::Bool(..)) => text
                .trim()
                .parse::<bool>()
                .map(Value::from)
                .map_err(|_| format!("{text:?} is not true or false")),
            Some(Value::Num(_, Num::F32(_) | Num::F64(_))) => text
                .trim()
                .parse::<f64>()
                .map(Value::from)
                .map_err(|_| format!("{text:?} is not a number")),
            Some(Value::Num(..)) => text
                .trim()
                .parse::<u64>()
                .map(Value::from)
                .map_err(|_| format!("{text:?} is not a whole number")),
            _ => Ok(Value::from(text.to_owned())),
        }
    }
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

fn collect(value: &Value, prefix: &str, leaves: &mut Vec<String>) {
    match value {
        Value::Dict(_, dict) if !dict.is_empty() => {
            for (name, inner) in dict {
                collect(inner, &join(prefix, name), leaves);
            }
        }
        _ => leaves.push(prefix.to_owned()),
    }
}

/// A list in a variable: parts between commas, in brackets and quotes or without.
fn list(text: &str) -> Value {
    let text = text.trim();
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let parts: Vec<Value> = inner
        .split(',')
        .map(|part| part.trim().trim_matches('"').trim())
        .filter(|part| !part.is_empty())
        .map(Value::from)
        .collect();
    Value::from(parts)
}
