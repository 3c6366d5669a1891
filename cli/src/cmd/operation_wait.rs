//! Waits until an operation has ended, and shows how it goes on.
//!
//! Invariants: progress is on stderr, one line for each change; a service that restarts meanwhile is
//! waited for up to [`PATIENCE`]; giving up does not end the operation, and the message says so.

use std::time::{Duration, Instant};

use tonic::Code;
use tonic::transport::Channel;
use vmemkv_proto::ApiError;
use vmemkv_proto::v1;
use vmemkv_proto::v1::admin_client::AdminClient;

use crate::context::Context;
use crate::failure::{Failure, Result};

/// How long nobody may answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// First and longest time between two looks.
const LOOK_AFTER: Duration = Duration::from_millis(20);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Follows an operation to its end.
pub(super) async fn wait_for(
    context: &Context,
    mut admin: AdminClient<Channel>,
    operation_id: u64,
) -> Result<v1::Operation> {
    let mut answered = Instant::now();
    let mut look = LOOK_AFTER;
    let mut shown = String::new();
    loop {
        match find(context, &mut admin, operation_id).await {
            Ok(Some(operation)) if operation.finished => return Ok(operation),
            Ok(Some(operation)) => {
                answered = Instant::now();
                let line = line(&operation);
                if line != shown && !context.output.is_json() {
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
                let hint = format!(
                    "operation {operation_id} goes on; `vmemkv operation list` shows how it ends"
                );
                return Err(Failure::from(ApiError::from(&error)).with_hint(hint));
            }
        }
        tokio::time::sleep(look).await;
        look = (look * 2).min(LOOK_EVERY);
    }
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

fn line(operation: &v1::Operation) -> String {
    let waits = match operation.reason.as_str() {
        "" => String::new(),
        reason => format!(", waits: {reason}"),
    };
    let (id, phase) = (operation.operation_id, &operation.phase);
    format!("operation {id}: {phase}, {:.0} %{waits}", operation.progress * 100.0)
}
