//! [`KeyGate`]: of the writes on one key, one at a time.
//!
//! Invariants: who enters shares no key with anybody inside; callers enter one after the other, in
//! their order. Keys are compared by hash: a collision costs a wait, never an order.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use vmemkv_proto::v1;

use super::frame::{FrameKind as _, Puts};

/// Keeps frames of writes apart that share a key. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct KeyGate {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    hasher: RandomState,
    /// Hashes of the keys of those inside.
    held: Mutex<HashSet<u64>>,
    left: Notify,
}

/// A frame that is inside; it leaves when this is dropped.
#[derive(Debug)]
pub struct GateGuard {
    inner: Arc<Inner>,
    hashes: Vec<u64>,
}

impl KeyGate {
    /// Waits until nobody inside has one of these keys. Let one caller at a time wait.
    pub async fn enter(&self, operations: &[v1::BatchOperation]) -> GateGuard {
        let hash = |operation| self.inner.hasher.hash_one(Puts::key(operation));
        let mut hashes: Vec<_> = operations.iter().map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        loop {
            let left = self.inner.left.notified();
            {
                let mut held = self.inner.held.lock();
                if !hashes.iter().any(|hash| held.contains(hash)) {
                    for hash in &hashes {
                        held.insert(*hash);
                    }
                    return GateGuard { inner: Arc::clone(&self.inner), hashes };
                }
            }
            left.await;
        }
    }
}

impl Drop for GateGuard {
    fn drop(&mut self) {
        let mut held = self.inner.held.lock();
        for hash in &self.hashes {
            held.remove(hash);
        }
        drop(held);
        self.inner.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::operation::Operation;

    #[tokio::test]
    async fn frames_that_share_a_key_wait() {
        let gate = KeyGate::default();
        let frame = |keys: &[&str]| -> Vec<_> {
            keys.iter().map(|key| Operation::delete(key).into_wire()).collect()
        };
        let inside = gate.enter(&frame(&["a", "b", "b"])).await;
        assert!(gate.enter(&frame(&["c"])).now_or_never().is_some());
        let (waiter, both) = (gate.clone(), frame(&["b", "c"]));
        let waiting = tokio::spawn(async move { waiter.enter(&both).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(inside);
        let entered = waiting.await.unwrap();
        assert!(gate.enter(&frame(&["a"])).now_or_never().is_some());
        assert!(gate.enter(&frame(&["c"])).now_or_never().is_none());
        drop(entered);
    }
}
