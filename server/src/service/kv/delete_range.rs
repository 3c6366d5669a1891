//! DeleteRange: a bounded part of a range per call.
//!
//! Invariants: the answer says how far this call came, durably; a failure after a part has been
//! done answers that part, the caller meets the failure in its next call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmemkv_engine::{KeyRange as EngineRange, RangeDeleted};
use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::{ApiError, v1};

use super::{refuse_request_id, scan};
use crate::engine_error::{self, Effect};
use crate::io_pool::Class;
use crate::node::Node;

/// Most keys of one call of the engine, which logs them in records of far fewer keys. The lease and
/// the time are looked at in between.
const KEYS_PER_STEP: usize = 4096;
/// Most steps of one call.
const STEPS_MAX: usize = 16;
/// No further step after this time.
const TIME_MAX: Duration = Duration::from_millis(500);

/// Removes the keys of a range, or of its beginning.
pub(super) async fn delete_range(
    node: &Arc<Node>,
    request: v1::DeleteRangeRequest,
) -> Result<v1::DeleteRangeResponse, ApiError> {
    refuse_request_id(request.request_id.as_ref())?;
    let range = KeyRange::checked(request.start, request.end)?;
    let admission = node.ownership.admit_range(&range, request.route.as_ref())?;
    let (_, end) = range.clone().into_wire();
    if range.is_empty() {
        return Ok(v1::DeleteRangeResponse { deleted: 0, covered_to: end, done: true });
    }
    let engine = node.engine()?;
    let job = {
        let (node, engine) = (Arc::clone(node), Arc::clone(&engine));
        let range = scan::engine_range(&range);
        move || {
            let done = delete_steps(&node, &engine, range);
            drop(admission);
            done
        }
    };
    let deleted = node.pool.run(Class::Write, job).await??;
    node.durable(&engine, deleted.lsn, Effect::Unknown).await?;
    node.ownership.still_leased()?;
    Ok(v1::DeleteRangeResponse {
        deleted: deleted.deleted,
        covered_to: if deleted.done { end } else { deleted.covered_to.into() },
        done: deleted.done,
    })
}

fn delete_steps(
    node: &Node,
    engine: &vmemkv_engine::Engine,
    mut range: EngineRange,
) -> Result<RangeDeleted, ApiError> {
    let started = Instant::now();
    let mut sum = RangeDeleted { covered_to: range.start.clone(), ..RangeDeleted::default() };
    for step in 0..STEPS_MAX {
        let result = node.ownership.require_lease().and_then(|()| {
            engine.delete_range(&range, KEYS_PER_STEP).map_err(|error| {
                engine_error::to_api(&error, Effect::Unknown, &node.ownership.table())
            })
        });
        match result {
            Ok(part) => {
                sum.deleted += part.deleted;
                sum.lsn = sum.lsn.max(part.lsn);
                sum.done = part.done;
                range.start.clone_from(&part.covered_to);
                sum.covered_to = part.covered_to;
            }
            Err(error) if step == 0 => return Err(error),
            Err(_) => break,
        }
        if sum.done || node.stopping.is_cancelled() || started.elapsed() > TIME_MAX {
            break;
        }
    }
    Ok(sum)
}
