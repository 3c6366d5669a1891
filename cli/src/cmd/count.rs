//! `vmemkv count`: how many keys a range holds.
//!
//! Invariant: without `--json` the number alone is printed. Keys are read, values are not.

use clap::Args;
use futures::TryStreamExt as _;

use crate::context::{Context, client_failure};
use crate::encoding::Encoding;
use crate::failure::Result;
use crate::range::RangeArgs;

const EXAMPLES: &str = "\
Prints the number alone. It reads the keys of the range; writes that run meanwhile count or do not.

Examples:
  vmemkv count
  vmemkv count --prefix user:";

/// Flags of `vmemkv count`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CountArgs {
    /// The keys.
    #[command(flatten)]
    pub range: RangeArgs,
    /// How the flags' keys are written
    #[arg(long, value_enum, default_value_t, value_name = "ENCODING")]
    pub encoding: Encoding,
}

/// Runs the command.
pub async fn run(args: &CountArgs, context: &Context) -> Result {
    let range = args.range.to_range(args.encoding)?;
    let mut count = 0u64;
    if !range.is_empty() {
        let client = context.client().await?;
        let mut entries = client.scan(range).keys_only().stream();
        while entries.try_next().await.map_err(client_failure)?.is_some() {
            count += 1;
        }
    }
    context.output.either(|| serde_json::json!({ "count": count }), || count.to_string())
}
