//! `vmemkv get`: reads a key.
//!
//! Invariant: a missing key is exit status 3, and prints nothing on stdout.

use std::path::PathBuf;

use clap::Args;

use crate::context::{Context, client_failure};
use crate::encoding::{Encoding, show_key};
use crate::failure::{Failure, Result};

const EXAMPLES: &str = "\
Examples:
  vmemkv get user:1                     print the value and a line end
  vmemkv get user:1 --file picture.jpg  write exactly its bytes to a file
  vmemkv get 00ff --encoding hex        key and value in hex

Exit status 3: there is no such key.";

/// Flags of `vmemkv get`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct GetArgs {
    /// The key
    pub key: String,
    /// Write the value's bytes to this file instead
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// How key and value are written
    #[arg(long, value_enum, default_value_t, value_name = "ENCODING")]
    pub encoding: Encoding,
}

/// Runs the command.
pub async fn run(args: &GetArgs, context: &Context) -> Result {
    let key = key_argument(args.encoding, &args.key)?;
    let client = context.client().await?;
    let Some(value) = client.get(&key).await.map_err(client_failure)? else {
        return Err(Failure::not_found(format!("no key {}", show_key(&key))));
    };
    if let Some(path) = &args.file {
        return std::fs::write(path, &value)
            .map_err(|error| Failure::io(format!("write {}", path.display()), &error));
    }
    let text = args.encoding.encode("the value", &value).map_err(Failure::failed)?;
    context.output.either(
        || serde_json::json!({ "key": args.key, "value": text, "encoding": args.encoding.name() }),
        || text.clone(),
    )
}

/// The bytes of a key on the command line.
pub(super) fn key_argument(encoding: Encoding, text: &str) -> Result<Vec<u8>> {
    let key = encoding.decode("the key", text).map_err(Failure::usage)?;
    vmemkv_proto::check::check_key("key", &key).map_err(|error| Failure::usage(error.message))?;
    Ok(key)
}
