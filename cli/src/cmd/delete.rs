//! `vmemkv delete`: removes a key.
//!
//! Invariant: a key that was not there is no failure; a condition that does not hold is exit status 1.

use clap::Args;
use vmemkv_client::DeleteOptions;

use super::get::key_argument;
use super::put::not_applied;
use crate::context::{Context, client_failure};
use crate::encoding::Encoding;
use crate::failure::{Failure, Result};

const EXAMPLES: &str = "\
Examples:
  vmemkv delete user:1
  vmemkv delete lock --if-value me      only if I hold it";

/// Flags of `vmemkv delete`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DeleteArgs {
    /// The key
    pub key: String,
    /// Only if the key has this value
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    pub if_value: Option<String>,
    /// How key and value are written
    #[arg(long, value_enum, default_value_t, value_name = "ENCODING")]
    pub encoding: Encoding,
}

/// Runs the command.
pub async fn run(args: &DeleteArgs, context: &Context) -> Result {
    let key = key_argument(args.encoding, &args.key)?;
    let mut options = DeleteOptions::new();
    if let Some(text) = &args.if_value {
        let value = args.encoding.decode("--if-value", text).map_err(Failure::usage)?;
        options = options.if_value(value);
    }
    let client = context.client().await?;
    let written = client.delete_with(&key, options).await.map_err(client_failure)?;
    if !written.applied {
        return Err(not_applied(args.encoding, written.current.as_deref(), context)?);
    }
    let existed = written.existed;
    context.output.either(
        || serde_json::json!({ "applied": true, "existed": existed }),
        || if existed { "deleted" } else { "there was no such key" }.to_owned(),
    )
}
