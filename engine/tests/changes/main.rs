//! The change feed: what a reader of a range's changes sees, over batches, checkpoints, recycled
//! log, restarts, power cuts, splits and merges, and while others write.
//!
//! Planted once each, and found: a feed that reads up to `appended_lsn`; an answer that goes on
//! after recycled segments; a place that is remembered too far.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod durable;
mod ending;
mod follow;
mod model;
mod recycled;
mod shards;
mod waits;

use vmemkv_engine::{Change, ChangeKind, Engine, KeyRange, Revision};

/// All changes after a position, and the position behind them.
fn read_all(engine: &Engine, range: &KeyRange, mut after: Revision) -> (Vec<Change>, Revision) {
    let mut found = Vec::new();
    loop {
        let changes = engine.changes_since(range, after, 1000).unwrap();
        found.extend(changes.records);
        after = changes.next;
        if changes.caught_up {
            return (found, after);
        }
    }
}

/// The value of a put.
fn value(change: &Change) -> &[u8] {
    match &change.kind {
        ChangeKind::Put(value) => value,
        ChangeKind::Delete => panic!("a delete: {change:?}"),
    }
}
