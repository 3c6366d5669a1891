//! `vmemkv checksum`: sums up a range, to compare two copies of the data.
//!
//! Invariant: without `--json` the checksum alone is printed, as 16 lower-case hex digits.

use clap::Args;

use crate::context::{Context, client_failure};
use crate::encoding::Encoding;
use crate::failure::Result;
use crate::range::RangeArgs;

const EXAMPLES: &str = "\
Prints the checksum alone, as 16 lower-case hexadecimal digits: the xor, over all entries, of
xxh3_64 (seed 0) of: the key's length (u32, little endian), the key, the value. It does not depend
on the order of entries or on how they are spread over servers; two ranges that do not overlap
combine by xor. An empty range is 0000000000000000.

Examples:
  vmemkv checksum
  vmemkv checksum --prefix user: --json        {\"checksum\":\"..\",\"count\":..,\"bytes\":..}";

/// Flags of `vmemkv checksum`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ChecksumArgs {
    /// The keys.
    #[command(flatten)]
    pub range: RangeArgs,
    /// How the flags' keys are written
    #[arg(long, value_enum, default_value_t, value_name = "ENCODING")]
    pub encoding: Encoding,
}

/// Runs the command.
pub async fn run(args: &ChecksumArgs, context: &Context) -> Result {
    let range = args.range.to_range(args.encoding)?;
    let sum = if range.is_empty() {
        vmemkv_client::Checksum::default()
    } else {
        context.client().await?.checksum(range).await.map_err(client_failure)?
    };
    let digits = format!("{:016x}", sum.checksum);
    context.output.either(
        || serde_json::json!({ "checksum": digits, "count": sum.count, "bytes": sum.bytes }),
        || digits.clone(),
    )
}
