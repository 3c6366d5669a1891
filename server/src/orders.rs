//! Orders of routers: which are for this run of the server, and which come too late.
//!
//! Invariants: an order for another node, run, cluster or generation does nothing; one operation is
//! executed by one thread at a time; an order for an operation that has ended does nothing, from
//! before its outcome is forgotten on, so that a late copy of it cannot do again, or after all, what
//! was decided (M11).

mod split;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use vmemkv_engine::{Engine, Identity};
use vmemkv_proto::internal::v1::Addressee;
use vmemkv_proto::{ApiError, ErrorKind};

pub(crate) use self::split::{Answer, exec_split, propose_key};

/// When a router should ask again.
const RETRY_MS: u64 = 100;

/// What is known of routers' orders.
#[derive(Default)]
pub(crate) struct Orders {
    /// This run, as routers know it; 0: they do not. Relaxed: it stands alone.
    incarnation: AtomicU64,
    operations: Mutex<Operations>,
    /// The map has changed: ask for it.
    news: Notify,
}

#[derive(Default)]
struct Operations {
    /// Every operation with a smaller id has ended.
    ended_below: u64,
    /// Being executed now.
    under_way: HashSet<u64>,
}

/// An operation that this thread executes, until it is dropped.
pub(crate) struct UnderWay {
    orders: Arc<Orders>,
    operation_id: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.orders.operations().under_way.remove(&self.operation_id);
    }
}

impl Orders {
    /// Routers know this run by that name from now on.
    pub(crate) fn registered(&self, incarnation: u64) {
        self.incarnation.store(incarnation, Ordering::Relaxed);
    }

    /// Tells whoever sends heartbeats that the map has changed.
    pub(crate) fn map_has_changed(&self) {
        self.news.notify_one();
    }

    /// Returns once the map has changed since the last return.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// Refuses an order that is not for this run of this server.
    fn check(&self, own: &Identity, to: Option<&Addressee>) -> Result<(), ApiError> {
        let meant = to.copied().unwrap_or_default();
        let here = Addressee {
            node_id: own.node_id,
            incarnation: self.incarnation.load(Ordering::Relaxed),
            cluster_id: own.cluster_id,
            generation: own.generation,
        };
        if here == meant && here.incarnation != 0 {
            return Ok(());
        }
        Err(late(format!("the order is for {meant:?}, this is {here:?}")))
    }

    /// Begins to execute an operation.
    fn begin(self: &Arc<Self>, operation_id: u64) -> Result<UnderWay, ApiError> {
        let mut operations = self.operations();
        if operation_id < operations.ended_below {
            return Err(late(format!("operation {operation_id} has ended")));
        }
        if !operations.under_way.insert(operation_id) {
            let message = format!("operation {operation_id} is being executed");
            return Err(ApiError::unavailable(message, RETRY_MS));
        }
        Ok(UnderWay { orders: Arc::clone(self), operation_id })
    }

    /// Routers say that every operation with a smaller id has ended: forgets what the engine keeps
    /// of them. May block.
    pub(crate) fn ended_below(&self, engine: &Engine, ended_below: u64) {
        let under_way = {
            let mut operations = self.operations();
            operations.ended_below = operations.ended_below.max(ended_below);
            operations.under_way.clone()
        };
        // No other can begin any more; those of earlier runs of this server are among them.
        let ended = engine.ended_operations().into_iter().filter(|id| *id < ended_below);
        for operation_id in ended.filter(|id| !under_way.contains(id)) {
            if let Err(error) = engine.forget_operation(operation_id) {
                tracing::warn!(operation_id, %error, "the outcome of an operation is kept for now");
            }
        }
    }

    fn operations(&self) -> MutexGuard<'_, Operations> {
        // Whatever panicked under it was between two complete changes.
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn late(message: String) -> ApiError {
    ApiError::new(ErrorKind::FailedPrecondition, message).with_not_applied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> (Identity, Addressee) {
        let identity = Identity { node_id: 7, cluster_id: 5, generation: 2, ..Identity::default() };
        (identity, Addressee { node_id: 7, incarnation: 9, cluster_id: 5, generation: 2 })
    }

    #[test]
    fn only_orders_for_this_run_are_taken() {
        let (identity, right) = own();
        let orders = Orders::default();
        let unregistered = Addressee { incarnation: 0, ..right };
        assert!(orders.check(&identity, Some(&unregistered)).is_err());
        orders.registered(9);
        orders.check(&identity, Some(&right)).unwrap();
        for wrong in [
            Addressee { node_id: 8, ..right },
            Addressee { incarnation: 8, ..right },
            Addressee { cluster_id: 8, ..right },
            Addressee { generation: 3, ..right },
        ] {
            let refused = orders.check(&identity, Some(&wrong)).unwrap_err();
            assert!(refused.not_applied && refused.kind == ErrorKind::FailedPrecondition);
        }
        assert!(orders.check(&identity, None).is_err());
    }

    #[test]
    fn an_operation_is_executed_once_at_a_time() {
        let orders = Arc::new(Orders::default());
        let first = orders.begin(3).unwrap();
        let second = orders.begin(3).map(drop).unwrap_err();
        assert_eq!(second.kind, ErrorKind::Unavailable);
        drop(orders.begin(4).unwrap());
        drop(first);
        drop(orders.begin(3).unwrap());
    }

    #[test]
    fn m11_an_order_for_an_operation_that_has_ended_does_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(dir.path(), vmemkv_engine::Options::for_tests()).unwrap();
        let orders = Arc::new(Orders::default());
        engine.refuse_operation(2, "of an earlier run").unwrap();
        engine.refuse_operation(3, "no").unwrap();
        engine.refuse_operation(4, "no").unwrap();
        drop(orders.begin(3).unwrap());
        let under_way = orders.begin(4).unwrap();
        orders.ended_below(&engine, 5);
        assert!(engine.operation_outcome(2).is_none() && engine.operation_outcome(3).is_none());
        assert!(engine.operation_outcome(4).is_some(), "forgotten while an order for it runs");
        assert_eq!(orders.begin(3).map(drop).unwrap_err().kind, ErrorKind::FailedPrecondition);
        drop(under_way);
        // An older router's answer does not bring it back.
        orders.ended_below(&engine, 2);
        assert!(orders.begin(4).is_err());
        orders.ended_below(&engine, 5);
        assert!(engine.operation_outcome(4).is_none());
        drop(orders.begin(5).unwrap());
    }
}
