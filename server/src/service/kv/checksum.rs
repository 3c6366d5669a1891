//! Checksum of a range.
//!
//! Invariant: the work ends soon after its caller has gone, its deadline has passed or the server
//! ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::{ApiError, v1};

use super::caller::Caller;
use super::scan;
use crate::engine_error::{self, Effect};
use crate::io_pool::{CancelOnDrop, Class};
use crate::layers::deadline_exceeded;
use crate::metrics::Metrics;

/// The sum over the entries of a range.
pub(super) async fn checksum(
    caller: &Caller,
    request: v1::ChecksumRequest,
) -> Result<v1::ChecksumResponse, ApiError> {
    let node = &caller.node;
    let range = KeyRange::checked(request.start, request.end)?;
    let admission = node.ownership.admit_range(&range, request.route.as_ref())?;
    if range.is_empty() {
        return Ok(v1::ChecksumResponse::default());
    }
    let engine = node.engine()?;
    let guard = CancelOnDrop::default();
    let job = {
        let (node, deadline, gone) = (Arc::clone(node), caller.deadline, guard.flag());
        let range = scan::engine_range(&range);
        move || {
            let _admission = admission;
            let cancelled = || {
                gone.load(Ordering::Relaxed)
                    || deadline.has_passed()
                    || node.stopping.is_cancelled()
            };
            let sum = engine.checksum(&range, &cancelled);
            if sum.is_err() && gone.load(Ordering::Relaxed) {
                Metrics::count(&node.metrics.stopped_by_caller);
            }
            sum
        }
    };
    let result = node.pool.run(Class::Long, job).await;
    drop(guard);
    let sum = result?.map_err(|error| {
        if caller.deadline.has_passed() {
            return deadline_exceeded();
        }
        engine_error::to_api(&error, Effect::None, &node.ownership.table())
    })?;
    node.ownership.require_lease()?;
    Ok(v1::ChecksumResponse { checksum: sum.checksum, count: sum.count, bytes: sum.bytes })
}
