//! The end of a server.
//!
//! Invariants: each step has a bound; connections are cut once the grace is over; the engine is
//! closed by whoever has it last, or left to its log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmemkv_engine::Engine;

use crate::error::{Error, Result};
use crate::node::Node;

/// How long to wait for work on threads once nobody waits for its result.
const JOBS_WAIT: Duration = Duration::from_secs(10);
/// How often to look whether that work has ended.
const JOBS_POLL: Duration = Duration::from_millis(2);

/// Takes the engine from a node that serves no more, and closes it with a checkpoint.
pub(crate) async fn close_engine(node: &Node) -> Result<()> {
    node.pool.close();
    let Some(mut engine) = node.take_engine() else { return Ok(()) };
    let began = Instant::now();
    let engine = loop {
        match Arc::try_unwrap(engine) {
            Ok(engine) => break Last::Alone(engine),
            Err(shared) if began.elapsed() > JOBS_WAIT => break Last::Shared(shared),
            Err(shared) => engine = shared,
        }
        tokio::time::sleep(JOBS_POLL).await;
    };
    let closed = tokio::task::spawn_blocking(move || match engine {
        Last::Alone(engine) => engine.close(),
        Last::Shared(engine) => {
            tracing::warn!("work on the engine does not end; it is left to the log");
            engine.checkpoint().map(drop)
        }
    });
    match closed.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Error::engine(node.data_dir(), &error)),
        Err(_) => Err(Error::Service("closing the engine panicked; its log says more".to_owned())),
    }
}

enum Last {
    Alone(Engine),
    Shared(Arc<Engine>),
}
