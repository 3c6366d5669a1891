//! Calls on ranges that are answered with numbers: DeleteRange and Checksum, shard by shard.
//!
//! Invariants: a server is asked for a part that, as we know, one shard holds; it refuses if that has
//! changed. Numbers of the parts add up, each part counts once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::v1;

use super::core::Core;
use super::position::Position;
use super::unary;
use crate::deadline::Deadline;
use crate::error::{Error, Result};

/// One step of a DeleteRange: what one shard holds of the range, from its start on.
pub(crate) async fn delete_step(
    core: &Arc<Core>,
    request: v1::DeleteRangeRequest,
    deadline: Deadline,
) -> Result<v1::DeleteRangeResponse> {
    let range = KeyRange::checked(request.start.clone(), request.end.clone())?;
    let mut position = Position::new(range, false);
    if position.finished() {
        let covered_to = position.far_bound();
        return Ok(v1::DeleteRangeResponse { deleted: 0, covered_to, done: true });
    }
    let asked = parking_lot::Mutex::new(KeyRange::all());
    let answer = unary::call(core, request, deadline, |attempt, route| {
        let part = position.within(route.shard());
        (attempt.start, attempt.end) = part.clone().into_wire();
        *asked.lock() = part;
    })
    .await?;
    let asked = asked.into_inner();
    position.advance(&asked, None, &answer.covered_to, answer.done);
    let done = position.finished();
    let covered_to = if done { position.far_bound() } else { position.covered_to() };
    Ok(v1::DeleteRangeResponse { deleted: answer.deleted, covered_to, done })
}

/// A whole DeleteRange, until the deadline. If it fails on the way and nothing of that is unknown,
/// the answer says how far it came.
pub(crate) async fn delete_all(
    core: &Arc<Core>,
    mut request: v1::DeleteRangeRequest,
    deadline: Deadline,
) -> Result<v1::DeleteRangeResponse> {
    let mut total = v1::DeleteRangeResponse::default();
    let mut stuck = 0;
    loop {
        let answer = match delete_step(core, request.clone(), deadline).await {
            Ok(answer) => answer,
            Err(error) if !error.is_unknown() && !total.covered_to.is_empty() => return Ok(total),
            Err(error) => return Err(error),
        };
        total.deleted = total.deleted.saturating_add(answer.deleted);
        total.done = answer.done;
        let further = answer.covered_to > request.start || answer.done;
        total.covered_to = answer.covered_to;
        if total.done || deadline.has_passed() {
            return Ok(total);
        }
        stuck = if further { 0 } else { stuck + 1 };
        if stuck > 3 {
            return Ok(total);
        }
        request.start = total.covered_to.clone();
    }
}

/// The checksum of a range, of any number of shards; `deadline` bounds the whole, `step` each shard.
pub(crate) async fn checksum(
    core: &Arc<Core>,
    request: v1::ChecksumRequest,
    deadline: Deadline,
    step: Duration,
) -> Result<v1::ChecksumResponse> {
    let range = KeyRange::checked(request.start, request.end).map_err(Error::from)?;
    let mut position = Position::new(range, false);
    let mut total = v1::ChecksumResponse::default();
    while !position.finished() {
        let asked = parking_lot::Mutex::new(KeyRange::all());
        let part = v1::ChecksumRequest { start: position.key(), ..Default::default() };
        let deadline = deadline.min(Deadline::within(step));
        let answer = unary::call(core, part, deadline, |attempt, route| {
            let part = position.within(route.shard());
            (attempt.start, attempt.end) = part.clone().into_wire();
            *asked.lock() = part;
        })
        .await?;
        total.checksum ^= answer.checksum;
        total.count += answer.count;
        total.bytes += answer.bytes;
        // The server has summed up exactly what it was asked for.
        position.advance(&asked.into_inner(), None, &Bytes::new(), true);
    }
    Ok(total)
}
