//! `vmemkv watch`: follows the changes of a range.
//!
//! Invariant: an event is printed when it comes; the last token lets a later watch go on behind it.

use clap::Args;
use vmemkv_proto::v1;

use crate::context::Context;
use crate::encoding::Encoding;
use crate::failure::{Failure, Result};
use crate::range::RangeArgs;

const EXAMPLES: &str = "\
Prints put or delete, the key and the value, with tabs between them, until it is interrupted.

Examples:
  vmemkv watch --prefix user:
  vmemkv watch --json                 with the token of each event
  vmemkv watch --token 0a1b           go on behind it (hex)";

/// Flags of `vmemkv watch`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct WatchArgs {
    /// The keys.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Go on behind this token of an earlier watch, in hex
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// How keys and values are written
    #[arg(long, value_enum, default_value_t, value_name = "ENCODING")]
    pub encoding: Encoding,
}

/// Runs the command.
pub async fn run(args: &WatchArgs, context: &Context) -> Result {
    let Some((start, end)) = args.range.to_wire(args.encoding)? else { return Ok(()) };
    let token = args.token.as_deref().unwrap_or_default();
    let token = Encoding::Hex.decode("--token", token).map_err(Failure::usage)?.into();
    let request = v1::WatchRequest { start, end, token, ..Default::default() };
    let mut kv = context.kv().await?;
    let mut stream = kv.watch(context.job(request)).await?.into_inner();
    let mut lines = context.output.writer();
    while let Some(part) = stream.message().await? {
        for event in &part.events {
            let text = |what: &str, bytes: &[u8]| {
                args.encoding.encode(what, bytes).map_err(Failure::failed)
            };
            let (key, value) = (text("the key", &event.key)?, text("the value", &event.value)?);
            let kind = match event.kind() {
                v1::watch_event::Kind::Put => "put",
                v1::watch_event::Kind::Delete => "delete",
                v1::watch_event::Kind::Unspecified => "unknown",
            };
            if context.output.is_json() {
                let token = hex::encode(&event.token);
                let event =
                    serde_json::json!({ "kind": kind, "key": key, "value": value, "token": token });
                lines.line(&event.to_string())?;
            } else {
                lines.line(&format!("{kind}\t{key}\t{value}"))?;
            }
        }
        lines.flush()?;
    }
    Ok(())
}
