//! `vmemkv put`: writes a key.
//!
//! Invariant: exit status 0 means that the value is stored; a condition that does not hold is 1.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use vmemkv_client::{Condition, PutOptions};
use vmemkv_proto::limits::MAX_VALUE_BYTES;

use super::get::key_argument;
use crate::args::parse_duration;
use crate::context::{Context, client_failure};
use crate::encoding::Encoding;
use crate::failure::{Failure, Result};

const EXAMPLES: &str = "\
Examples:
  vmemkv put user:1 Ada
  vmemkv put user:1 --file picture.jpg           the value is the file's bytes
  vmemkv put lock me --if-absent                 exit status 1 if the key exists
  vmemkv put counter 2 --if-value 1              compare and set
  vmemkv put 00ff 01 --encoding hex";

/// Flags of `vmemkv put`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PutArgs {
    /// The key
    pub key: String,
    /// The value
    #[arg(required_unless_present = "file", conflicts_with = "file", allow_hyphen_values = true)]
    pub value: Option<String>,
    /// Read the value's bytes from this file (-: stdin), whatever the encoding
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Only if the key does not exist
    #[arg(long, group = "condition")]
    pub if_absent: bool,
    /// Only if the key exists
    #[arg(long, group = "condition")]
    pub if_present: bool,
    /// Only if the key has this value
    #[arg(long, group = "condition", value_name = "VALUE", allow_hyphen_values = true)]
    pub if_value: Option<String>,
    /// The key is gone this long after the write, such as 30s or 7d (not built yet)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub ttl: Option<Duration>,
    /// How key and value are written
    #[arg(long, value_enum, default_value_t, value_name = "ENCODING")]
    pub encoding: Encoding,
}

/// Runs the command.
pub async fn run(args: &PutArgs, context: &Context) -> Result {
    let key = key_argument(args.encoding, &args.key)?;
    let value = value_of(args)?;
    let mut options = PutOptions::new().condition(condition_of(args)?);
    options.ttl = args.ttl;
    let client = context.client().await?;
    let written = client.put_with(&key, value, options).await.map_err(client_failure)?;
    if written.applied {
        return context
            .output
            .either(|| serde_json::json!({ "applied": true }), || "ok".to_owned());
    }
    Err(not_applied(args.encoding, written.current.as_deref(), context)?)
}

/// The condition did not hold: an answer for scripts on stdout, and exit status 1.
pub(super) fn not_applied(
    encoding: Encoding,
    current: Option<&[u8]>,
    context: &Context,
) -> Result<Failure> {
    let shown = current.map(|value| encoding.encode("the value", value));
    if context.output.is_json() {
        let mut answer = serde_json::json!({ "applied": false, "exists": current.is_some() });
        if let Some(Ok(text)) = &shown {
            answer["current"] = text.as_str().into();
            answer["encoding"] = encoding.name().into();
        }
        context.output.value(&answer)?;
    }
    let state = match shown {
        None => "the key does not exist".to_owned(),
        Some(Ok(text)) if text.chars().count() <= 80 => format!("the key has the value {text:?}"),
        Some(_) => "the key has another value".to_owned(),
    };
    Ok(Failure::failed(format!("the condition does not hold: {state}; nothing was changed")))
}

fn value_of(args: &PutArgs) -> Result<Bytes> {
    let value = match (&args.value, &args.file) {
        (_, Some(path)) if path.as_os_str() == "-" => {
            let mut value = Vec::new();
            let limit = MAX_VALUE_BYTES as u64 + 1;
            std::io::Read::read_to_end(
                &mut std::io::Read::take(std::io::stdin().lock(), limit),
                &mut value,
            )
            .map_err(|error| Failure::io("read stdin", &error))?;
            value
        }
        (_, Some(path)) => {
            let failure = |error| Failure::io(format!("read {}", path.display()), &error);
            let bytes = std::fs::metadata(path).map_err(failure)?.len();
            if bytes > MAX_VALUE_BYTES as u64 {
                return Err(too_long(bytes));
            }
            std::fs::read(path).map_err(failure)?
        }
        (Some(text), None) => args.encoding.decode("the value", text).map_err(Failure::usage)?,
        (None, None) => return Err(Failure::usage("name a value, or --file")),
    };
    if value.len() > MAX_VALUE_BYTES {
        return Err(too_long(value.len() as u64));
    }
    Ok(value.into())
}

fn too_long(bytes: u64) -> Failure {
    Failure::usage(format!("the value is {bytes} bytes or more, the limit is {MAX_VALUE_BYTES}"))
}

fn condition_of(args: &PutArgs) -> Result<Condition> {
    Ok(match &args.if_value {
        Some(text) => {
            let value = args.encoding.decode("--if-value", text).map_err(Failure::usage)?;
            Condition::IfValueEquals(value.into())
        }
        None if args.if_absent => Condition::IfAbsent,
        None if args.if_present => Condition::IfPresent,
        None => Condition::default(),
    })
}
