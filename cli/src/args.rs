//! The command line: global flags and the list of commands. Each command's own flags are in its file
//! under `cmd/`.
//!
//! Invariants: a command that is listed works, or asks the service and reports its answer; help texts
//! show an example.

use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::cmd;

const EXAMPLES: &str = "\
Examples:
  vmemkv dev                                  the whole service on this machine
  vmemkv put user:1 Ada                       write a key
  vmemkv get user:1                           read it
  vmemkv scan --prefix user: --limit 10       read a range, in byte order
  vmemkv import people.jsonl                  load {\"key\": \"..\", \"value\": \"..\"} lines
  vmemkv status                               the cluster at a glance

Exit status: 0 done, 1 failed, 2 wrong use, 3 not found (get).";

/// vmemkv: a larger-than-memory key-value service
#[derive(Parser, Clone, Debug)]
#[command(name = "vmemkv", version, after_help = EXAMPLES, subcommand_required = true)]
#[command(arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Args, Clone, Debug)]
pub struct Globals {
    /// The router to talk to (for data and `node` commands also a server)
    #[arg(long, global = true, value_name = "HOST:PORT", env = "VMEMKV_ADDR")]
    #[arg(default_value = "127.0.0.1:7400", value_parser = parse_address)]
    #[arg(help_heading = "Global options")]
    pub addr: String,
    /// Print JSON, for scripts; errors on stderr too
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// How long the command may take, such as 500ms, 5s or 2m [default: 10s a call]
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_duration)]
    #[arg(help_heading = "Global options")]
    pub timeout: Option<Duration>,
    /// What to log to stderr: a level or a filter such as info,vmemkv_engine=debug
    #[arg(long, global = true, value_name = "FILTER", help_heading = "Global options")]
    pub log_level: Option<String>,
    /// Log more: -v debug, -vv trace
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "log_level")]
    #[arg(help_heading = "Global options")]
    pub verbose: u8,
}

impl Globals {
    /// The filter of the log that flags ask for.
    pub fn log_filter(&self) -> Option<String> {
        match (&self.log_level, self.verbose) {
            (Some(filter), _) => Some(filter.clone()),
            (None, 0) => None,
            (None, 1) => Some("debug".to_owned()),
            (None, _) => Some("trace".to_owned()),
        }
    }
}

/// The commands.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Run the whole service on this machine: a router and a server in one process
    Dev(cmd::dev::DevArgs),
    /// Run a server: it stores the data
    Server(cmd::server::ServerArgs),
    /// Run a router, which knows who owns which keys; or list routers
    Router(cmd::router::RouterArgs),
    /// Read a key
    Get(cmd::get::GetArgs),
    /// Write a key
    Put(cmd::put::PutArgs),
    /// Remove a key
    Delete(cmd::delete::DeleteArgs),
    /// Read a range of keys in byte order
    Scan(cmd::scan::ScanArgs),
    /// Count the keys of a range
    Count(cmd::count::CountArgs),
    /// Sum up a range, to compare two copies of the data
    Checksum(cmd::checksum::ChecksumArgs),
    /// Follow the changes of a range (not built yet)
    Watch(cmd::watch::WatchArgs),
    /// Load a file of keys and values
    Import(cmd::import::ImportArgs),
    /// Write keys and values to a file
    Export(cmd::export::ExportArgs),
    /// Show the cluster at a glance; exit status 1 if it is not healthy
    Status(cmd::status::StatusArgs),
    /// Show the settings in force and where each came from
    Config(cmd::config::ConfigArgs),
    /// The servers: list, statistics, jobs
    Node(cmd::node::NodeArgs),
    /// The shards: list, split
    Shard(cmd::shard::ShardArgs),
    /// Operations on shards: list
    Operation(cmd::operation::OperationArgs),
    /// Look into a closed data directory
    Engine(cmd::engine::EngineArgs),
    /// Print a script that completes commands in a shell
    Completions(cmd::completions::CompletionsArgs),
    /// Write the manual pages
    Man(cmd::man::ManArgs),
}

/// HOST:PORT, also in a URL as people paste it.
fn parse_address(text: &str) -> Result<String, String> {
    let text = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err("expected HOST:PORT, such as 127.0.0.1:7400".to_owned());
    }
    Ok(text.to_owned())
}

/// A time with a unit: 500ms, 5s, 2m, 1h, 7d; without one, seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a time such as 500ms, 5s or 2m".to_owned();
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let time = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
    if time.is_zero() { Err("the time must be above 0".to_owned()) } else { Ok(time) }
}

#[cfg(test)]
mod args_test;
