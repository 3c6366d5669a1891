//! The formats of files of keys and values.
//!
//! Invariant: only the formats with columns have a header.

use clap::Args;

use crate::encoding::Encoding;
use crate::failure::{Failure, Result};

/// How a file holds keys and values.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A JSON object a line: {"key": "..", "value": ".."}
    #[default]
    Jsonl,
    /// Two columns with a comma between them; quotes as in RFC 4180
    Csv,
    /// Two columns with a tab between them; quotes as in CSV
    Tsv,
}

impl Format {
    /// The name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Tsv => "tsv",
        }
    }

    /// What separates columns; none: the format has no columns.
    pub fn delimiter(self) -> Option<u8> {
        match self {
            Self::Jsonl => None,
            Self::Csv => Some(b','),
            Self::Tsv => Some(b'\t'),
        }
    }
}

/// The flags that describe a file.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct FormatArgs {
    /// The format of the file
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
    /// The first line of a CSV or TSV file names the columns
    #[arg(long)]
    pub header: bool,
    /// How keys and values are written
    #[arg(long, value_enum, default_value_t, value_name = "ENCODING")]
    pub encoding: Encoding,
}

impl FormatArgs {
    /// Refuses flags that do not go together.
    pub fn check(&self) -> Result {
        if self.header && self.format.delimiter().is_none() {
            return Err(Failure::usage("--header is for --format csv and --format tsv"));
        }
        Ok(())
    }
}
