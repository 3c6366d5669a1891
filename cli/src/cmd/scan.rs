//! `vmemkv scan`: reads a range of keys in byte order.
//!
//! Invariants: entries are printed as they come, none is held; with `--json` each is an object on a
//! line of its own.

use clap::Args;
use futures::TryStreamExt as _;

use crate::context::{Context, client_failure};
use crate::encoding::{Encoding, show_key};
use crate::failure::{Failure, Result};
use crate::output::printable;
use crate::range::RangeArgs;

const EXAMPLES: &str = "\
Prints the key, a tab and the value on a line, as they are: values that hold tabs or line ends are
told apart with --json or --encoding hex.

Examples:
  vmemkv scan --prefix user: --limit 10
  vmemkv scan --start a --end b --keys-only
  vmemkv scan --reverse --limit 1              the last key there is
  vmemkv scan --prefix user: --json            a JSON object a line";

/// Flags of `vmemkv scan`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ScanArgs {
    /// The keys.
    #[command(flatten)]
    pub range: RangeArgs,
    /// At most this many entries; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub limit: u64,
    /// From the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// Leave the values out
    #[arg(long)]
    pub keys_only: bool,
    /// How keys and values are written
    #[arg(long, value_enum, default_value_t, value_name = "ENCODING")]
    pub encoding: Encoding,
}

/// Runs the command.
pub async fn run(args: &ScanArgs, context: &Context) -> Result {
    let range = args.range.to_range(args.encoding)?;
    let client = context.client().await?;
    let mut scan = client.scan(range.clone()).limit(args.limit);
    if args.reverse {
        scan = scan.reverse();
    }
    if args.keys_only {
        scan = scan.keys_only();
    }
    if range.is_empty() {
        return Ok(());
    }
    let output = context.output;
    let mut lines = output.writer();
    let mut entries = scan.stream();
    loop {
        let entry = match entries.try_next().await {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(error) => {
                lines.flush()?;
                return Err(client_failure(error));
            }
        };
        let text = |what: &str, bytes: &[u8]| {
            args.encoding.encode(what, bytes).map_err(|reason| {
                Failure::failed(format!("key {}: {reason}", show_key(&entry.key)))
            })
        };
        let line = text("the key", &entry.key).and_then(|key| {
            let value = if args.keys_only { None } else { Some(text("the value", &entry.value)?) };
            Ok(line_of(output.is_json(), key, value))
        });
        let line = match line {
            Ok(line) => line,
            Err(failure) => {
                lines.flush()?;
                return Err(failure);
            }
        };
        if output.stdout_is_terminal() && !output.is_json() {
            let shown: Vec<_> = line.splitn(2, '\t').map(printable).collect();
            lines.line(&shown.join("\t"))?;
        } else {
            lines.line(&line)?;
        }
    }
    lines.finish()
}

fn line_of(json: bool, key: String, value: Option<String>) -> String {
    match (json, value) {
        (true, Some(value)) => serde_json::json!({ "key": key, "value": value }).to_string(),
        (true, None) => serde_json::json!({ "key": key }).to_string(),
        (false, Some(value)) => format!("{key}\t{value}"),
        (false, None) => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let line = |json, value: Option<&str>| line_of(json, "k".into(), value.map(str::to_owned));
        assert_eq!(line(false, Some("v")), "k\tv");
        assert_eq!(line(false, None), "k");
        assert_eq!(line(true, Some("v")), r#"{"key":"k","value":"v"}"#);
        assert_eq!(line(true, None), r#"{"key":"k"}"#);
    }
}
