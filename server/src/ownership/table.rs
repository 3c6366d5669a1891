//! The shards that the committed map gives to this node, and the checks of a request against them.
//!
//! Invariants: shards are sorted by start and do not overlap; a refusal names only committed
//! shards; the checks are pure and touch no data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vmemkv_proto::ApiError;
use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::v1::routing_error::Kind;
use vmemkv_proto::v1::{RouteHint, RoutingError, Shard};

/// Most shards that a refusal names.
const SHARDS_NAMED_MAX: usize = 16;
/// How long a caller should wait for a shard that is not served yet.
const NOT_SERVING_RETRY_MS: u64 = 500;

/// Whether an owned shard can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardState {
    /// Its data is here: served.
    Serving,
    /// New and made here, but the routers do not know yet that it is.
    Unconfirmed,
    /// The routers say that its data is here, and it is not: never served, an operator must act.
    WithoutData,
}

/// A shard that the committed map gives to this node.
#[derive(Clone, Debug)]
pub(crate) struct OwnedShard {
    /// As the map has it.
    pub(crate) shard: Shard,
    /// Whether it can be served.
    pub(crate) state: ShardState,
    /// Requests, for the load that heartbeats report.
    pub(crate) requests: Arc<AtomicU64>,
}

impl OwnedShard {
    /// Counts requests.
    pub(crate) fn count(&self, requests: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
    }

    fn range(&self) -> KeyRange {
        self.shard.range()
    }
}

/// The shards of this node at one version of the map.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardTable {
    node_id: u64,
    map_version: u64,
    shards: Vec<OwnedShard>,
}

impl ShardTable {
    /// A table of what a router assigned to `node_id` at `map_version`.
    pub(crate) fn new(node_id: u64, map_version: u64, mut shards: Vec<OwnedShard>) -> Self {
        shards.sort_by(|a, b| a.shard.start.cmp(&b.shard.start));
        Self { node_id, map_version, shards }
    }

    /// This node; 0: not registered.
    pub(crate) fn node_id(&self) -> u64 {
        self.node_id
    }

    /// The version of the map that it is from.
    pub(crate) fn map_version(&self) -> u64 {
        self.map_version
    }

    /// The shards, by start.
    pub(crate) fn shards(&self) -> &[OwnedShard] {
        &self.shards
    }

    /// The shard that serves `key`, if the hint agrees with it.
    pub(crate) fn check_key(
        &self,
        key: &[u8],
        hint: Option<&RouteHint>,
    ) -> Result<&OwnedShard, ApiError> {
        let found = self.find(key);
        let named = || found.into_iter().map(|owned| owned.shard.clone()).collect();
        if let Some(hint) = hint.filter(|hint| hint.is_set()) {
            let owned = self.check_hint(hint, key, named)?;
            if !owned.shard.contains(key) {
                let message = format!("the key is not within shard {}", hint.shard_id);
                return Err(self.refuse(Kind::WrongShard, message, named()));
            }
        }
        let Some(owned) = found else {
            let message = format!("node {} owns no shard with this key", self.node_id);
            return Err(self.refuse(Kind::WrongShard, message, Vec::new()));
        };
        self.check_state(owned)
    }

    /// As [`ShardTable::check_key`], for a frame whose hints each stand for the keys of their range.
    pub(crate) fn check_key_of_frame(
        &self,
        key: &[u8],
        routes: &[RouteHint],
    ) -> Result<&OwnedShard, ApiError> {
        if !routes.iter().any(RouteHint::is_set) {
            return self.check_key(key, None);
        }
        let id = self.find(key).map(|owned| owned.shard.shard_id);
        let hint = routes.iter().find(|hint| hint.is_set() && Some(hint.shard_id) == id);
        match hint.or_else(|| routes.iter().find(|hint| hint.node_id != self.node_id)) {
            Some(hint) => self.check_key(key, Some(hint)),
            None => {
                let named = self.find(key).into_iter().map(|owned| owned.shard.clone()).collect();
                let message = "no route of the frame names the shard of this key here";
                Err(self.refuse(Kind::WrongShard, message, named))
            }
        }
    }

    /// Whether all keys of `range` are served here, within the hint's shard if there is one.
    pub(crate) fn check_range(
        &self,
        range: &KeyRange,
        hint: Option<&RouteHint>,
    ) -> Result<(), ApiError> {
        let named = || self.overlapping(range).map(|owned| owned.shard.clone()).collect();
        if let Some(hint) = hint.filter(|hint| hint.is_set()) {
            let owned = self.check_hint(hint, range.start(), named)?;
            if !owned.range().contains_range(range) {
                let message = format!("the range is not within shard {}", hint.shard_id);
                return Err(self.refuse(Kind::WrongShard, message, named()));
            }
            self.check_state(owned)?.count(1);
            return Ok(());
        }
        if range.is_empty() {
            return Ok(());
        }
        // Walk over neighbours until the end is reached; `from` is where the next one must begin.
        let mut from = Some(range.start().clone());
        for owned in self.overlapping(range) {
            if from.as_ref().is_none_or(|from| owned.shard.start > *from) {
                break;
            }
            self.check_state(owned)?.count(1);
            from = owned.range().end().cloned();
            if from.is_none() {
                return Ok(());
            }
        }
        match (from, range.end()) {
            (Some(from), Some(end)) if from >= *end => Ok(()),
            _ => {
                let message = format!("node {} does not own all of this range", self.node_id);
                Err(self.refuse(Kind::WrongShard, message, named()))
            }
        }
    }

    /// The refusal of a key or range that no shard of the engine holds.
    pub(crate) fn refuse_unserved(&self) -> ApiError {
        self.refuse(Kind::WrongShard, "no shard with these keys is on this node", Vec::new())
    }

    fn find(&self, key: &[u8]) -> Option<&OwnedShard> {
        let behind = self.shards.partition_point(|owned| owned.shard.start.as_ref() <= key);
        self.shards[..behind].last().filter(|owned| owned.shard.contains(key))
    }

    fn overlapping<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = &'a OwnedShard> {
        let first = self
            .shards
            .partition_point(|owned| owned.range().end().is_some_and(|end| end <= range.start()));
        self.shards[first..].iter().take_while(|owned| owned.range().overlaps(range))
    }

    fn check_hint(
        &self,
        hint: &RouteHint,
        first_key: &[u8],
        named: impl Fn() -> Vec<Shard>,
    ) -> Result<&OwnedShard, ApiError> {
        if hint.node_id != self.node_id {
            let message = format!("this is node {}, not node {}", self.node_id, hint.node_id);
            return Err(self.refuse(Kind::WrongNode, message, named()));
        }
        let id = hint.shard_id;
        let is_meant = |owned: &&OwnedShard| owned.shard.shard_id == id;
        let by_key = self.find(first_key).filter(is_meant);
        let Some(owned) = by_key.or_else(|| self.shards.iter().find(is_meant)) else {
            let message = format!("node {} does not own shard {id}", self.node_id);
            return Err(self.refuse(Kind::WrongShard, message, named()));
        };
        if owned.shard.epoch != hint.epoch {
            let (has, asked) = (owned.shard.epoch, hint.epoch);
            let message = format!("shard {id} is at epoch {has}, not {asked}");
            return Err(self.refuse(Kind::StaleEpoch, message, vec![owned.shard.clone()]));
        }
        Ok(owned)
    }

    fn check_state<'a>(&self, owned: &'a OwnedShard) -> Result<&'a OwnedShard, ApiError> {
        let id = owned.shard.shard_id;
        let message = match owned.state {
            ShardState::Serving => return Ok(owned),
            ShardState::Unconfirmed => format!("shard {id} is being made"),
            ShardState::WithoutData => format!("the data of shard {id} is missing on this node"),
        };
        let error = self.refuse(Kind::NotServing, message, vec![owned.shard.clone()]);
        Err(error.with_retry_after_ms(NOT_SERVING_RETRY_MS))
    }

    fn refuse(&self, kind: Kind, message: impl Into<String>, mut shards: Vec<Shard>) -> ApiError {
        shards.truncate(SHARDS_NAMED_MAX);
        let map_version = self.map_version;
        ApiError::misrouted(message, RoutingError { kind: kind as i32, map_version, shards })
    }
}
