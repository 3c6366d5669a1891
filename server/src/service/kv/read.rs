//! Reading one key.
//!
//! Invariant: the async runtime never waits for the disk; a value that is not durable yet is
//! awaited without a thread.

use std::sync::Arc;

use bytes::Bytes;
use vmemkv_engine::{Engine, TryGet};
use vmemkv_proto::ApiError;

use crate::engine_error::{self, Effect};
use crate::io_pool::Class;
use crate::node::Node;

/// How often a key that is being written is asked for again before a thread waits for it.
const PENDING_ROUNDS_MAX: usize = 8;

/// What could be read at once.
pub(super) enum Now {
    /// The value, or that there is none.
    Ready(Option<Bytes>),
    /// Ask again with [`read`], which waits.
    Later,
}

/// Reads a key if that needs no waiting.
pub(super) fn read_now(node: &Node, engine: &Engine, key: &[u8]) -> Result<Now, ApiError> {
    match engine.try_get(key) {
        Ok(TryGet::Ready(value)) => Ok(Now::Ready(value.map(Bytes::from))),
        Ok(TryGet::Cold | TryGet::Pending(_)) => Ok(Now::Later),
        Err(error) => Err(failed(node, &error)),
    }
}

/// Reads a key.
pub(super) async fn read(
    node: &Arc<Node>,
    engine: &Arc<Engine>,
    key: &Bytes,
) -> Result<Option<Bytes>, ApiError> {
    for _ in 0..PENDING_ROUNDS_MAX {
        match engine.try_get(key).map_err(|error| failed(node, &error))? {
            TryGet::Ready(value) => return Ok(value.map(Bytes::from)),
            TryGet::Cold => break,
            TryGet::Pending(lsn) => node.durable(engine, lsn, Effect::None).await?,
        }
    }
    let (engine, key) = (Arc::clone(engine), key.clone());
    let value = node.pool.run(Class::Read, move || engine.get(&key)).await?;
    value.map(|value| value.map(Bytes::from)).map_err(|error| failed(node, &error))
}

fn failed(node: &Node, error: &vmemkv_engine::Error) -> ApiError {
    engine_error::to_api(error, Effect::None, &node.ownership.table())
}
