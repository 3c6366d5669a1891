//! `vmemkv engine`: looks into a data directory that no process has open.
//!
//! Invariant: nothing in the directory is changed, but for the lock that keeps processes away, except
//! by `repair --yes`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use vmemkv_engine::offline::{self, Inspection};
use vmemkv_engine::{ErrorKind, Lsn, VerifyReport};

use super::engine_repair;
use super::shard::key_text;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Grid, bytes_text, printable};

const EXAMPLES: &str = "\
DIR is a server's data directory (for `vmemkv dev`: vmemkv-data/server); the server must be stopped.

Examples:
  vmemkv engine verify vmemkv-data/server      exit status 1 if something is damaged
  vmemkv engine inspect vmemkv-data/server
  vmemkv engine repair vmemkv-data/server      what ending a damaged log would give up; changes nothing
  vmemkv engine repair vmemkv-data/server --to-lsn 4096 --yes";

/// Flags of `vmemkv engine`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct EngineArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: EngineCommand,
}

/// The commands on a closed directory.
#[derive(Subcommand, Clone, Debug)]
pub enum EngineCommand {
    /// Read and check everything; exit status 1 if something is damaged
    Verify {
        /// The data directory
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// End a log that is damaged in its middle below the damage; says what that gives up
    ///
    /// Writes after that point are lost, acknowledged ones too: restore a backup instead if there is one,
    /// and copy the directory away before. Without --yes nothing is changed. A damaged MANIFEST or t1/ file
    /// cannot be repaired.
    Repair {
        /// The data directory
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Where the log shall end: the end of a record, or the last one before the damage if left out
        #[arg(long, value_name = "LSN")]
        to_lsn: Option<u64>,
        /// Do it
        #[arg(long, requires = "to_lsn")]
        yes: bool,
    },
    /// Say what the directory holds
    Inspect {
        /// The data directory
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

/// Runs the command.
pub fn run(args: &EngineArgs, context: &Context) -> Result {
    match &args.command {
        EngineCommand::Verify { dir } => {
            let report = offline::verify(dir).map_err(|error| failure(&error, dir))?;
            let problems = report.problems.len();
            context.output.either(|| report_json(&report), || report_text(&report))?;
            if problems > 0 {
                let message = format!("{}: {problems} problems found", dir.display());
                return Err(Failure::failed(message));
            }
            Ok(())
        }
        EngineCommand::Repair { dir, to_lsn, yes } => {
            let found =
                offline::repair(dir, to_lsn.map(Lsn), *yes).map_err(|e| failure(&e, dir))?;
            context.output.either(|| engine_repair::json(&found), || engine_repair::text(&found))
        }
        EngineCommand::Inspect { dir } => {
            let found = offline::inspect(dir).map_err(|error| failure(&error, dir))?;
            context.output.either(|| inspection_json(&found), || inspection_text(&found))
        }
    }
}

fn failure(error: &vmemkv_engine::Error, dir: &Path) -> Failure {
    let failure = Failure::failed(error.message());
    match error.kind() {
        ErrorKind::InUse => {
            failure.with_hint("stop the server, or ask it: `vmemkv node verify` and `node stats`")
        }
        ErrorKind::Corrupt => failure.with_hint(
            "`vmemkv engine verify DIR` lists what is damaged; a log damaged in its middle can be ended \
             below the damage: `vmemkv engine repair DIR`",
        ),
        ErrorKind::Foreign if dir.join("server").is_dir() => {
            failure.with_hint(format!("the server's is {}", dir.join("server").display()))
        }
        ErrorKind::Foreign => failure.with_hint("DIR is the data directory of a server"),
        _ => failure,
    }
}

fn report_json(report: &VerifyReport) -> Value {
    json!({
        "ok": report.problems.is_empty(),
        "problems": report.problems,
        "records_checked": report.records,
        "bytes_checked": report.bytes,
    })
}

fn report_text(report: &VerifyReport) -> String {
    let mut lines: Vec<String> = report.problems.iter().map(|problem| printable(problem)).collect();
    lines.push(format!(
        "{} records, {}, checked: {}",
        report.records,
        bytes_text(report.bytes),
        if lines.is_empty() { "all well" } else { "problems as above" }
    ));
    lines.join("\n")
}

fn inspection_json(found: &Inspection) -> Value {
    let identity = &found.identity;
    json!({
        "identity": {
            "node_id": identity.node_id,
            "cluster_id": identity.cluster_id,
            "generation": identity.generation,
            "boot": identity.boot,
            "map_version": identity.map_version,
        },
        "checkpoint": found.checkpoint.0,
        "checkpoint_lsn": found.checkpoint_lsn.0,
        "freeze_lsn": found.freeze_lsn.0,
        "shards": found.shards.iter().map(|shard| json!({
            "shard_id": shard.id.0,
            "start_hex": hex::encode(&shard.range.start),
            "end_hex": hex::encode(&shard.range.end),
            "epoch": shard.epoch,
            "files": shard.files,
        })).collect::<Vec<_>>(),
        "value_segments": found.value_segments.iter().map(|(segment, base_bytes)| json!({
            "segment": segment, "base_bytes": base_bytes,
        })).collect::<Vec<_>>(),
        "wal_segments": found.wal_segments.iter().map(|segment| json!({
            "file": segment.file,
            "start_lsn": segment.start.0,
            "records": segment.records,
            "end_lsn": segment.end.0,
            "reopen": segment.reopen,
        })).collect::<Vec<_>>(),
    })
}

fn inspection_text(found: &Inspection) -> String {
    let identity = &found.identity;
    let mut shards = Grid::new(&["SHARD", "START", "END", "#EPOCH", "FILES"]);
    for shard in &found.shards {
        shards.row([
            shard.id.to_string(),
            key_text(&shard.range.start, "(lowest)"),
            key_text(&shard.range.end, "(unbounded)"),
            shard.epoch.to_string(),
            if shard.files.is_empty() { "(empty)".to_owned() } else { shard.files.join(" ") },
        ]);
    }
    let mut values = Grid::new(&["SEGMENT", "#IMMUTABLE"]);
    for (segment, base_bytes) in &found.value_segments {
        values.row([segment.to_string(), bytes_text(u64::from(*base_bytes))]);
    }
    let mut log = Grid::new(&["FILE", "#START", "#END", "#RECORDS"]);
    for segment in &found.wal_segments {
        log.row([
            segment.file.clone(),
            segment.start.to_string(),
            segment.end.to_string(),
            segment.records.to_string(),
        ]);
    }
    [
        format!(
            "node {} of cluster {} (generation {}), opened {} times, map version {}",
            identity.node_id,
            identity.cluster_id,
            identity.generation,
            identity.boot,
            identity.map_version
        ),
        format!(
            "checkpoint {}: replay from LSN {}, log durable then up to LSN {}",
            found.checkpoint, found.checkpoint_lsn, found.freeze_lsn
        ),
        format!("\nshards, as of the checkpoint\n{}", shards.to_text("none")),
        format!("\nvalue log\n{}", values.to_text("no segments")),
        format!("\nwrite-ahead log\n{}", log.to_text("no segments")),
    ]
    .join("\n")
}
