//! Comparing the engine with the model.
//!
//! Invariant: changes neither.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use vmemkv_engine::{Engine, ScanOptions};

use super::Model;

pub(crate) fn set(model: &mut Model, key: &[u8], value: Option<&Vec<u8>>) {
    match value {
        Some(value) => model.insert(key.to_vec(), value.clone()),
        None => model.remove(key),
    };
}

/// Everything that the engine holds.
pub(crate) fn contents(engine: &Engine) -> Model {
    let mut options = ScanOptions::default();
    let mut found = Model::new();
    loop {
        let chunk = engine.scan(&options).unwrap();
        found.extend(chunk.entries);
        if chunk.done {
            return found;
        }
        options.range.start = chunk.covered_to;
    }
}

pub(crate) fn difference(found: &Model, expected: &Model) -> String {
    let missing: Vec<_> = expected.keys().filter(|key| !found.contains_key(*key)).take(3).collect();
    let extra: Vec<_> = found.keys().filter(|key| !expected.contains_key(*key)).take(3).collect();
    let other = |key: &&Vec<u8>| found.get(*key).is_some_and(|value| *value != expected[*key]);
    let other: Vec<_> = expected.keys().filter(other).take(3).collect();
    let show = |keys: Vec<&Vec<u8>>| {
        keys.iter().map(|key| key.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
    };
    format!("missing [{}] extra [{}] changed [{}]", show(missing), show(extra), show(other))
}

pub(crate) fn check_scan(engine: &Engine, model: &Model, options: &ScanOptions, at: &str) {
    let mut expected: Vec<_> =
        model.iter().filter(|(key, _)| options.range.contains(key)).collect();
    if options.reverse {
        expected.reverse();
    }
    if options.limit != 0 {
        expected.truncate(options.limit);
    }
    let mut found = Vec::new();
    let mut rest = options.clone();
    loop {
        let chunk = engine.scan(&rest).unwrap();
        found.extend(chunk.entries);
        if chunk.done {
            break;
        }
        if options.reverse {
            rest.range.end = chunk.covered_to;
        } else {
            rest.range.start = chunk.covered_to;
        }
        if options.limit != 0 {
            rest.limit = options.limit - found.len();
        }
    }
    let value = |value: &Vec<u8>| if options.keys_only { Vec::new() } else { value.clone() };
    let expected: Vec<_> = expected.into_iter().map(|(k, v)| (k.clone(), value(v))).collect();
    assert!(found == expected, "{at}: {options:?}");
}
