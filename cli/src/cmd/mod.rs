//! The commands, one verb per file: its flags, and what it does.
//!
//! Invariant: `--timeout` bounds a command as a whole, processes excepted.

pub mod checksum;
pub mod completions;
pub mod config;
pub mod count;
pub mod delete;
pub mod dev;
pub mod engine;
mod engine_repair;
pub mod export;
pub mod get;
pub mod import;
mod import_source;
pub mod man;
pub mod node;
mod node_backup;
mod node_jobs;
mod node_stats;
mod node_target;
pub mod operation;
mod operation_wait;
pub mod put;
pub mod router;
pub mod scan;
pub mod server;
pub mod shard;
pub mod status;
pub mod watch;

use crate::args::Command;
use crate::config::LogConfig;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::logging;

/// Runs a command to its end.
pub async fn run(command: Command, context: &Context) -> Result {
    if let Command::Dev(args) = &command {
        return dev::run(args, context).await;
    }
    if let Command::Server(args) = &command {
        return server::run(args, context).await;
    }
    if let Command::Router(args) = &command
        && args.command.is_none()
    {
        return router::run(args, context).await;
    }
    let level = context.globals.log_filter().unwrap_or_else(|| "warn".to_owned());
    logging::start(&LogConfig { level, ..LogConfig::default() })?;
    let Some(timeout) = context.globals.timeout else { return run_client(&command, context).await };
    tokio::time::timeout(timeout, run_client(&command, context)).await.unwrap_or_else(|_| {
        let message = format!("not done within --timeout ({} ms)", timeout.as_millis());
        let writes = matches!(command, Command::Put(_) | Command::Delete(_) | Command::Import(_));
        let hint = if writes {
            "what was stored is unknown, so read it back; or raise --timeout"
        } else {
            "the service may be busy or stopped; raise --timeout to wait longer"
        };
        Err(Failure::failed(message).with_hint(hint))
    })
}

async fn run_client(command: &Command, context: &Context) -> Result {
    match command {
        // These have their own way in: see above.
        Command::Dev(_) | Command::Server(_) => Ok(()),
        Command::Router(args) => router::run_list(args, context).await,
        Command::Get(args) => get::run(args, context).await,
        Command::Put(args) => put::run(args, context).await,
        Command::Delete(args) => delete::run(args, context).await,
        Command::Scan(args) => scan::run(args, context).await,
        Command::Count(args) => count::run(args, context).await,
        Command::Checksum(args) => checksum::run(args, context).await,
        Command::Watch(args) => watch::run(args, context).await,
        Command::Import(args) => import::run(args, context).await,
        Command::Export(args) => export::run(args, context).await,
        Command::Status(args) => status::run(args, context).await,
        Command::Config(args) => config::run(args, context),
        Command::Node(args) => node::run(args, context).await,
        Command::Shard(args) => shard::run(args, context).await,
        Command::Operation(args) => operation::run(args, context).await,
        Command::Engine(args) => engine::run(args, context),
        Command::Completions(args) => completions::run(args, context),
        Command::Man(args) => man::run(args, context),
    }
}
