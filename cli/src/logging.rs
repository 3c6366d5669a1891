//! The log of a process: to stderr, as text or JSON, with a filter that can be replaced while it runs.
//!
//! Invariants: there is one log a process, whoever starts it first; a filter that cannot be read
//! changes nothing; a bare level is for vmemkv's own parts, libraries then log `warn` at most.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::config::{LogConfig, LogFormat};
use crate::failure::{Failure, Result};

/// The log of this process: what replaces its filter, and the filter as it was given.
struct Log {
    handle: reload::Handle<EnvFilter, Registry>,
    filter: Mutex<String>,
}

static LOG: OnceLock<Log> = OnceLock::new();

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Starts the log. A second start only replaces the filter.
pub fn start(config: &LogConfig) -> Result {
    let filter = parse(&config.level).map_err(|reason| {
        Failure::usage(reason).with_hint("a level is error, warn, info, debug or trace")
    })?;
    if LOG.get().is_some() {
        return replace(&config.level).map(|_| ()).map_err(Failure::usage);
    }
    let (filter, handle) = reload::Layer::new(filter);
    let writer = std::io::stderr;
    let lines = match config.format {
        LogFormat::Text => {
            fmt::layer().with_writer(writer).with_ansi(std::io::stderr().is_terminal()).boxed()
        }
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(writer).boxed(),
    };
    // A host that has set up a log of its own keeps it: then there is nothing to replace.
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        let _ = LOG.set(Log { handle, filter: Mutex::new(config.level.clone()) });
    }
    Ok(())
}

/// Replaces the filter and returns the one before; the error says what is wrong with it.
pub fn replace(filter: &str) -> std::result::Result<String, String> {
    let parsed = parse(filter)?;
    let log = LOG.get().ok_or("the log of this process is not ours to change")?;
    let mut current = log.filter.lock().unwrap_or_else(PoisonError::into_inner);
    log.handle.reload(parsed).map_err(|error| error.to_string())?;
    Ok(std::mem::replace(&mut current, filter.to_owned()))
}

/// What a server calls when it is asked for another filter.
pub fn setter() -> vmemkv_server::SetLogFilter {
    Arc::new(replace)
}

/// A filter whose first part is a level, or names a module.
fn parse(filter: &str) -> std::result::Result<EnvFilter, String> {
    let wrong = |part: &str| format!("{part:?} is not a log level or filter");
    if filter.trim().is_empty() {
        return Err(wrong(filter));
    }
    // A bare word that is no level would be taken for a module, and silence everything else.
    for part in filter.split(',').map(str::trim) {
        let known = LEVELS.contains(&part.to_ascii_lowercase().as_str());
        if !known && !part.contains('=') && !part.contains("::") && !part.contains('[') {
            return Err(wrong(part));
        }
    }
    let quiet = match filter.trim().to_ascii_lowercase().as_str() {
        level @ ("info" | "debug" | "trace") => format!("warn,vmemkv={level}"),
        _ => filter.to_owned(),
    };
    quiet.parse::<EnvFilter>().map_err(|error| format!("{}: {error}", wrong(filter)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked() {
        for filter in ["info", "WARN", "info,vmemkv_engine=debug", "vmemkv_server::service=trace"] {
            parse(filter).unwrap();
        }
        for filter in ["", "loud", "info,loudly", "vmemkv_engine=loud"] {
            assert!(parse(filter).is_err(), "{filter}");
        }
    }

    #[test]
    fn libraries_stay_quiet_under_a_bare_level() {
        let text = parse("debug").unwrap().to_string();
        assert!(text.contains("vmemkv=debug") && text.contains("warn"), "{text}");
        assert_eq!(parse("h2=debug").unwrap().to_string(), "h2=debug");
    }
}
