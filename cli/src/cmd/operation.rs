//! `vmemkv operation`: operations on shards.

use clap::{Args, Subcommand};
use serde_json::json;
use vmemkv_proto::v1;

use super::node_target::parse_id;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::Grid;

const EXAMPLES: &str = "\
Examples:
  vmemkv operation list
  vmemkv operation list --active";

/// Flags of `vmemkv operation`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct OperationArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: OperationCommand,
}

/// The commands on operations.
#[derive(Subcommand, Clone, Debug)]
pub enum OperationCommand {
    /// List operations, the newest first
    List {
        /// Only those that run
        #[arg(long)]
        active: bool,
    },
    /// Cancel an operation (not built yet)
    Cancel {
        /// The operation's id
        #[arg(value_name = "OPERATION", value_parser = parse_id)]
        operation: u64,
    },
}

/// Runs the command.
pub async fn run(args: &OperationArgs, context: &Context) -> Result {
    let mut admin = context.admin().await?;
    let active_only = match args.command {
        OperationCommand::List { active } => active,
        OperationCommand::Cancel { operation: operation_id } => {
            let request = v1::CancelOperationRequest { operation_id };
            let answer = admin.cancel_operation(context.call(request)).await?.into_inner();
            let operation = answer
                .operation
                .ok_or_else(|| Failure::failed("the service answered without the operation"))?;
            return context.output.either(
                || to_json(&operation),
                || format!("operation {operation_id}: {}", operation.phase),
            );
        }
    };
    let mut operations = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListOperationsRequest { page_token, page_size: 0, active_only };
        let page = admin.list_operations(context.call(request)).await?.into_inner();
        operations.extend(page.operations);
        if page.next_page_token.is_empty() {
            break;
        }
        page_token = page.next_page_token;
    }
    context.output.either(
        || json!({ "operations": operations.iter().map(to_json).collect::<Vec<_>>() }),
        || grid(&operations),
    )
}

fn kind_name(operation: &v1::Operation) -> &'static str {
    match operation.kind() {
        v1::OperationKind::Unspecified => "unknown",
        v1::OperationKind::Split => "split",
        v1::OperationKind::Merge => "merge",
        v1::OperationKind::Move => "move",
    }
}

fn to_json(operation: &v1::Operation) -> serde_json::Value {
    json!({
        "operation_id": operation.operation_id,
        "kind": kind_name(operation),
        "phase": operation.phase,
        "shard_id": operation.shard_id,
        "other_shard_id": operation.other_shard_id,
        "progress": operation.progress,
        "reason": operation.reason,
        "source_node_id": operation.source_node_id,
        "target_node_id": operation.target_node_id,
        "attempt": operation.attempt,
        "age_ms": operation.age_ms,
        "finished": operation.finished,
        "key_hex": hex::encode(&operation.key),
        "new_shard_ids": operation.new_shard_ids,
    })
}

fn grid(operations: &[v1::Operation]) -> String {
    let mut grid =
        Grid::new(&["OPERATION", "KIND", "SHARD", "PHASE", "#DONE", "#TRY", "#AGE", "REASON"]);
    for operation in operations {
        grid.row([
            operation.operation_id.to_string(),
            kind_name(operation).to_owned(),
            operation.shard_id.to_string(),
            operation.phase.clone(),
            format!("{:.0} %", operation.progress * 100.0),
            operation.attempt.to_string(),
            format!("{} s", operation.age_ms / 1000),
            operation.reason.clone(),
        ]);
    }
    grid.to_text("no operations")
}
