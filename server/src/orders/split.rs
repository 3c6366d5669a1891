//! Execution of an ordered split.
//!
//! Invariants: the engine's log decides: what is answered is durable, and the first answer stays;
//! a refusal is answered only after the engine has logged that the operation will never be executed
//! (M11); whatever may pass by itself is no refusal. The halves are served as soon as they are
//! there, and told to nobody before the routers commit them (M12).

use std::sync::Arc;

use bytes::Bytes;
use vmemkv_engine::{Engine, ErrorKind, OperationOutcome, ShardId, SplitShard};
use vmemkv_failpoint::reach;
use vmemkv_proto::internal::v1::{ExecSplitRequest, ProposeSplitKeyRequest};
use vmemkv_proto::{ApiError, v1};

use super::{RETRY_MS, late};
use crate::engine_error::{self, Effect};
use crate::io_pool::Class;
use crate::node::Node;
use crate::ownership::ShardState;

/// What an order came to, durably.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The shard is split.
    Done,
    /// It is not, and this operation will never split it.
    Refused(String),
}

/// Executes an order; an error says nothing about what has been done.
pub(crate) async fn exec_split(
    node: &Arc<Node>,
    order: ExecSplitRequest,
) -> Result<Answer, ApiError> {
    node.orders.check(&node.engine()?.identity(), order.to.as_ref())?;
    let under_way = node.orders.begin(order.operation_id)?;
    let here = Arc::clone(node);
    let work = move || {
        let answer = execute(&here, &order);
        reach("split.answer");
        // Only now: a router that gives up waiting does not end the work.
        drop(under_way);
        answer
    };
    node.pool.run(Class::Structure, work).await?
}

fn execute(node: &Node, order: &ExecSplitRequest) -> Result<Answer, ApiError> {
    reach("split.ordered");
    let engine = node.engine()?;
    match engine.operation_outcome(order.operation_id) {
        Some(OperationOutcome::Done) => return Ok(done(node, order)),
        Some(OperationOutcome::Refused { reason }) => return Ok(Answer::Refused(reason)),
        None => {}
    }
    match check_owned(node, order)? {
        Owned::Whole => {}
        // What is here may not be durable: an order whose sync failed has left it so.
        Owned::Split => return durable(node, &engine).map(|()| Answer::Done),
        Owned::Never(reason) => return refuse(node, &engine, order, &reason),
    }
    let split = SplitShard {
        operation: order.operation_id,
        shard: ShardId(order.shard_id),
        key: order.key.to_vec(),
        left: ShardId(order.left_shard_id),
        right: ShardId(order.right_shard_id),
        epoch: order.epoch + 1,
    };
    let began = std::time::Instant::now();
    match engine.split_shard(&split) {
        Ok(_) => {
            reach("split.executed");
            let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            tracing::info!(
                operation_id = order.operation_id,
                shard_id = order.shard_id,
                took_ms,
                "shard split"
            );
            Ok(done(node, order))
        }
        Err(error) => match error.kind() {
            ErrorKind::Refused | ErrorKind::InvalidArgument | ErrorKind::NotServed => {
                refuse(node, &engine, order, error.message())
            }
            _ => Err(engine_error::to_api(&error, Effect::Unknown, &node.ownership.table())),
        },
    }
}

/// How the shard of an order is served here.
enum Owned {
    /// As it was when the operation began.
    Whole,
    /// By the halves that the order names. They stay as they are until the routers have committed
    /// them, so this holds even if the engine remembers the operation no more.
    Split,
    /// Not, and it never will be; why.
    Never(String),
}

/// An error: the answer may be another one later.
fn check_owned(node: &Node, order: &ExecSplitRequest) -> Result<Owned, ApiError> {
    let table = node.ownership.table();
    let id = order.shard_id;
    let Some(owned) = table.get(id).filter(|owned| owned.shard.epoch == order.epoch) else {
        // Ours will come to say so, or theirs is late and has ended.
        node.orders.map_has_changed();
        let message = format!(
            "shard {id} at epoch {} is not in this server's map of version {}, the order is from \
             version {}",
            order.epoch,
            table.map_version(),
            order.map_version
        );
        return Err(ApiError::unavailable(message, RETRY_MS));
    };
    let halves: Vec<u64> = owned.halves.iter().map(|half| half.shard_id).collect();
    match owned.state {
        ShardState::Serving if halves.is_empty() => Ok(Owned::Whole),
        ShardState::Serving if halves == [order.left_shard_id, order.right_shard_id] => {
            Ok(Owned::Split)
        }
        ShardState::Serving => {
            let message = format!("shard {id} has been split into {halves:?} by another operation");
            tracing::error!(operation_id = order.operation_id, message);
            Err(ApiError::unavailable(message, RETRY_MS))
        }
        ShardState::Unconfirmed => {
            let message = format!("shard {id} is still being made");
            Err(ApiError::unavailable(message, RETRY_MS))
        }
        ShardState::WithoutData => {
            Ok(Owned::Never(format!("the data of shard {id} is missing on this node")))
        }
    }
}

/// Notes the halves in the table, if the map has not brought them already.
fn done(node: &Node, order: &ExecSplitRequest) -> Answer {
    let _change = node.ownership.change();
    let table = node.ownership.table();
    if let Some(owned) = table.get(order.shard_id) {
        let half = |shard_id, start: &Bytes, end: &Bytes| v1::Shard {
            shard_id,
            start: start.clone(),
            end: end.clone(),
            epoch: order.epoch + 1,
            ..owned.shard.clone()
        };
        let left = half(order.left_shard_id, &owned.shard.start, &order.key);
        let right = half(order.right_shard_id, &order.key, &owned.shard.end);
        let halves = [left, right];
        node.ownership.set_table(table.with_halves(order.shard_id, order.epoch, halves));
    }
    Answer::Done
}

/// Refuses for good, unless it has been done.
fn refuse(
    node: &Node,
    engine: &Engine,
    order: &ExecSplitRequest,
    reason: &str,
) -> Result<Answer, ApiError> {
    match engine.refuse_operation(order.operation_id, reason) {
        Ok(()) => {
            tracing::warn!(operation_id = order.operation_id, reason, "a split is refused");
            Ok(Answer::Refused(reason.to_owned()))
        }
        Err(error) if error.kind() == ErrorKind::AlreadyDone => {
            durable(node, engine)?;
            Ok(done(node, order))
        }
        Err(error) => Err(engine_error::to_api(&error, Effect::Unknown, &node.ownership.table())),
    }
}

/// Waits until all that is logged is durable, so every split that can be seen now; an error: it may
/// never be.
fn durable(node: &Node, engine: &Engine) -> Result<(), ApiError> {
    engine
        .wait_durable(engine.stats().wal.appended_lsn)
        .map_err(|error| engine_error::to_api(&error, Effect::Unknown, &node.ownership.table()))
}

/// A key that halves a shard; none: there is none.
pub(crate) async fn propose_key(
    node: &Arc<Node>,
    request: ProposeSplitKeyRequest,
) -> Result<Option<Bytes>, ApiError> {
    let engine = node.engine()?;
    node.orders.check(&engine.identity(), request.to.as_ref())?;
    let id = request.shard_id;
    let table = node.ownership.table();
    let served = table.get(id).is_some_and(|owned| {
        owned.shard.epoch == request.epoch
            && owned.state == ShardState::Serving
            && owned.halves.is_empty()
    });
    if !served {
        node.orders.map_has_changed();
        return Err(late(format!("shard {id} at epoch {} is not served here", request.epoch)));
    }
    let found = node.pool.run(Class::Structure, move || engine.split_key(ShardId(id))).await?;
    match found {
        Ok(key) => Ok(key.map(Bytes::from)),
        Err(error) => Err(engine_error::to_api(&error, Effect::None, &node.ownership.table())),
    }
}
