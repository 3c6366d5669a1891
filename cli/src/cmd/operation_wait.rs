//! Waits until an operation has ended, and shows how it goes on.
//!
//! Invariants: progress is on stderr, one line for each change, with `--json` too; the wait ends after
//! `--timeout`, or else [`LIMIT`]; a service that restarts meanwhile is waited for up to [`PATIENCE`];
//! giving up does not end the operation, and the message says so and names it.

use std::time::{Duration, Instant};

use tonic::Code;
use tonic::transport::Channel;
use vmemkv_proto::ApiError;
use vmemkv_proto::v1;
use vmemkv_proto::v1::admin_client::AdminClient;

use crate::context::Context;
use crate::failure::{Failure, Result};

/// How long an operation may take unless `--timeout` says otherwise.
const LIMIT: Duration = Duration::from_secs(300);
/// How long nobody may answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// First and longest time between two looks.
const LOOK_AFTER: Duration = Duration::from_millis(20);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Follows an operation to its end; a failure names it.
pub(super) async fn wait_for(
    context: &Context,
    admin: AdminClient<Channel>,
    operation_id: u64,
) -> Result<v1::Operation> {
    let ended = follow(context, admin, operation_id).await;
    ended.map_err(|failure| failure.of_operation(operation_id))
}

async fn follow(
    context: &Context,
    mut admin: AdminClient<Channel>,
    operation_id: u64,
) -> Result<v1::Operation> {
    let began = Instant::now();
    let limit = context.globals.timeout.unwrap_or(LIMIT);
    let mut answered = began;
    let mut waits = String::new();
    let mut look = LOOK_AFTER;
    let mut shown = String::new();
    loop {
        // No look takes longer than what is left: nobody answers then, in time.
        let left = limit.saturating_sub(began.elapsed()).max(LOOK_AFTER);
        let found = tokio::time::timeout(left, find(context, &mut admin, operation_id)).await;
        let in_vain = || Err(tonic::Status::unavailable("no answer in time"));
        match found.unwrap_or_else(|_| in_vain()) {
            Ok(Some(operation)) if operation.finished => return Ok(operation),
            Ok(Some(operation)) => {
                answered = Instant::now();
                let line = line(&operation, context.output.is_json());
                waits.clone_from(&operation.reason);
                if line != shown {
                    context.output.note(&line);
                    shown = line;
                }
            }
            Ok(None) => {
                let message =
                    format!("operation {operation_id} ended so long ago that it is forgotten");
                return Err(Failure::failed(message));
            }
            Err(error) if answered.elapsed() < PATIENCE && passes(error.code()) => {}
            Err(error) => {
                let failure = Failure::from(ApiError::from(&error));
                return Err(failure.with_hint(goes_on(operation_id)));
            }
        }
        if began.elapsed() >= limit {
            let message = format!("operation {operation_id} has not ended within {limit:?}");
            let failure = match waits.as_str() {
                "" => Failure::timed_out(message),
                reason => Failure::timed_out(format!("{message}; it waits: {reason}")),
            };
            return Err(failure.with_hint(goes_on(operation_id)));
        }
        tokio::time::sleep(look.min(limit.saturating_sub(began.elapsed()))).await;
        look = (look * 2).min(LOOK_EVERY);
    }
}

fn goes_on(operation_id: u64) -> String {
    format!("operation {operation_id} goes on; `vmemkv operation list` shows how it ends")
}

/// Whether a failed look may do better in a while.
fn passes(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled)
}

/// The operation, if it is still known. Lists have the newest first, and it is about that.
async fn find(
    context: &Context,
    admin: &mut AdminClient<Channel>,
    operation_id: u64,
) -> std::result::Result<Option<v1::Operation>, tonic::Status> {
    let mut page_token = String::new();
    loop {
        let request = v1::ListOperationsRequest { page_token, page_size: 0, active_only: false };
        let page = admin.list_operations(context.call(request)).await?.into_inner();
        let passed = page.operations.iter().any(|known| known.operation_id < operation_id);
        let found = page.operations.into_iter().find(|known| known.operation_id == operation_id);
        if found.is_some() || passed || page.next_page_token.is_empty() {
            return Ok(found);
        }
        page_token = page.next_page_token;
    }
}

fn line(operation: &v1::Operation, json: bool) -> String {
    let v1::Operation { operation_id, phase, progress, reason, .. } = operation;
    if json {
        return serde_json::json!({
            "operation_id": operation_id,
            "phase": phase,
            "progress": progress,
            "reason": reason,
        })
        .to_string();
    }
    let waits = match reason.as_str() {
        "" => String::new(),
        reason => format!(", waits: {reason}"),
    };
    format!("operation {operation_id}: {phase}, {:.0} %{waits}", progress * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_line_for_people_and_an_object_for_scripts() {
        let operation = v1::Operation {
            operation_id: 7,
            phase: "begin".into(),
            reason: "nobody\nanswers".into(),
            ..Default::default()
        };
        assert!(line(&operation, false).starts_with("operation 7: begin, 0 %, waits: nobody"));
        let json = line(&operation, true);
        assert_eq!(json.lines().count(), 1);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["operation_id"], &json["phase"]), (&7.into(), &"begin".into()));
    }
}
