//! Writing one key.
//!
//! Invariants: the lease is checked right before the engine is touched and again before the answer
//! leaves; the admission is held until the engine has logged the write.

use std::sync::Arc;

use vmemkv_engine::{Condition, Engine, Written};
use vmemkv_proto::ApiError;
use vmemkv_proto::convert::{Condition as Asked, Write};

use crate::engine_error::{self, Effect};
use crate::io_pool::Class;
use crate::node::Node;
use crate::ownership::Admission;

/// Applies and logs a write. It is not durable yet: see [`Written::lsn`]. May block.
pub(super) fn apply(node: &Node, engine: &Engine, write: &Write) -> Result<Written, ApiError> {
    node.ownership.require_lease()?;
    let condition = condition(write.condition());
    let written = match write {
        Write::Put(put) => engine.put(&put.key, &put.value, &condition),
        Write::Delete(delete) => engine.delete(&delete.key, &condition),
    };
    written.map_err(|error| engine_error::to_api(&error, Effect::Unknown, &node.ownership.table()))
}

/// Writes one key, durably.
pub(super) async fn write(
    node: &Arc<Node>,
    write: Write,
    admission: Admission,
) -> Result<Written, ApiError> {
    let engine = node.engine()?;
    let job = {
        let (node, engine) = (Arc::clone(node), Arc::clone(&engine));
        move || {
            let written = apply(&node, &engine, &write);
            drop(admission);
            written
        }
    };
    let written = node.pool.run(Class::Write, job).await??;
    let effect = effect_of(written.applied);
    node.durable(&engine, written.lsn, effect).await?;
    node.ownership.still_leased().map_err(|mut error| {
        error.not_applied = effect == Effect::None;
        error
    })?;
    Ok(written)
}

/// What a write may have changed if its answer gets lost.
pub(super) fn effect_of(applied: bool) -> Effect {
    if applied { Effect::Unknown } else { Effect::None }
}

fn condition(asked: &Asked) -> Condition {
    match asked {
        Asked::Always => Condition::None,
        Asked::IfAbsent => Condition::IfAbsent,
        Asked::IfPresent => Condition::IfPresent,
        Asked::IfValueEquals(value) => Condition::IfValueEquals(value.to_vec()),
    }
}
