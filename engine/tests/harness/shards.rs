//! Splits and merges in the random run, and what is known of them.
//!
//! Invariant: a change that returned is there after any crash, and nothing else changes the shards,
//! unless the engine does so by itself in the background.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rand::RngExt;
use vmemkv_engine::{ErrorKind, Lsn, MergeShards, OperationOutcome, Result, ShardId, SplitShard};

use super::Run;

/// More than this many shards are not made by call.
const MOST: usize = 9;

/// What the shards must be.
#[derive(Default)]
pub(super) struct Expected {
    /// The start of each; empty = not looked at yet.
    starts: Vec<Vec<u8>>,
    /// The last operation, and how it ended.
    last: Option<(u64, OperationOutcome)>,
    operations: u64,
}

impl Run {
    fn starts(&self) -> Vec<Vec<u8>> {
        let shards = self.engine().shards();
        assert!(shards[0].range.start.is_empty() && shards.last().unwrap().range.end.is_empty());
        assert!(shards.windows(2).all(|pair| pair[0].range.end == pair[1].range.start));
        shards.into_iter().map(|shard| shard.range.start).collect()
    }

    /// Splits, merges, or refuses to.
    pub(super) fn change_shards(&mut self, at: &str) {
        let shards = self.engine().shards();
        let chosen = self.random.random_range(0..shards.len());
        self.shards.operations += 1;
        let operation = self.shards.operations;
        // Above what the engine makes by itself.
        let id = |n: u64| ShardId((1 << 40) + 2 * operation + n);
        let refused = self.random.random_bool(0.1);
        if refused {
            self.engine().refuse_operation(operation, at).unwrap();
        }
        let result: Result<Lsn> = if shards.len() < MOST && self.random.random_bool(0.6) {
            let shard = &shards[chosen];
            let key = match self.random.random_range(0..3) {
                0 => self.engine().split_key(shard.id).ok().flatten(),
                _ => Some(self.key()),
            };
            let Some(key) = key.filter(|key| shard.range.contains(key)) else { return };
            let (shard, epoch, left, right) = (shard.id, shard.epoch + 1, id(0), id(1));
            self.engine().split_shard(&SplitShard { operation, shard, key, left, right, epoch })
        } else if let [left, right, ..] = &shards[chosen..] {
            let epoch = left.epoch.max(right.epoch) + 1;
            let (left, right, merged) = (left.id, right.id, id(0));
            self.engine().merge_shards(&MergeShards { operation, left, right, merged, epoch })
        } else {
            return;
        };
        match result {
            Ok(_) => {
                assert!(!refused, "{at}");
                self.shards.starts = self.starts();
                self.shards.last = Some((operation, OperationOutcome::Done));
            }
            Err(error) if refused => {
                assert!(
                    matches!(error.kind(), ErrorKind::Refused | ErrorKind::InvalidArgument),
                    "{at}: {error}"
                );
                let outcome = OperationOutcome::Refused { reason: at.to_owned() };
                self.shards.last = Some((operation, outcome));
            }
            // A key that is the start of a shard; or the engine was there first.
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{at}: {error}"),
        }
        // What was written before the change that returned is durable as well.
        self.settle();
    }

    pub(super) fn check_shards(&mut self, at: &str) {
        let starts = self.starts();
        if !self.options.background && !self.shards.starts.is_empty() {
            assert_eq!(starts, self.shards.starts, "{at}");
        }
        if let Some((operation, outcome)) = &self.shards.last {
            assert_eq!(self.engine().operation_outcome(*operation).as_ref(), Some(outcome), "{at}");
        }
    }
}
