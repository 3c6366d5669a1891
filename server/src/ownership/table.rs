//! The shards that the committed map gives to this node, and the checks of a request against them.
//!
//! Invariants: shards are sorted by start and do not overlap; a refusal names only committed
//! shards (M12); the checks are pure and touch no data. Between a split here and its commit by the
//! routers a shard has two halves: requests may name it or them, and redirects name it alone.

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
    /// What the shard has been split into here, while the routers are not known to have committed
    /// that; empty: it has not. Served, and told to nobody.
    pub(crate) halves: Vec<Shard>,
}

impl OwnedShard {
    /// Counts requests.
    pub(crate) fn count(&self, requests: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
    }

    /// The shard or the half with this id.
    fn named(&self, shard_id: u64) -> Option<&Shard> {
        let all = std::iter::once(&self.shard).chain(&self.halves);
        all.into_iter().find(|shard| shard.shard_id == shard_id)
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

    /// The shard with this id.
    pub(crate) fn get(&self, shard_id: u64) -> Option<&OwnedShard> {
        self.shards.iter().find(|owned| owned.shard.shard_id == shard_id)
    }

    /// The same table, in which a shard has been split into halves that are not committed. No
    /// change if the shard is not of this epoch any more.
    pub(crate) fn with_halves(&self, shard_id: u64, epoch: u64, halves: [Shard; 2]) -> Self {
        let mut table = self.clone();
        let is_meant = |owned: &&mut OwnedShard| {
            (owned.shard.shard_id, owned.shard.epoch) == (shard_id, epoch)
        };
        if let Some(owned) = table.shards.iter_mut().find(is_meant) {
            owned.halves = halves.into();
        }
        table
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
            let (_, shard) = self.check_hint(hint, key)?;
            if !shard.contains(key) {
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
        let found = self.find(key);
        let holds = |hint: &&RouteHint| {
            let named = found.and_then(|owned| owned.named(hint.shard_id));
            hint.is_set() && named.is_some_and(|shard| shard.contains(key))
        };
        let hint = routes.iter().find(holds);
        match hint.or_else(|| routes.iter().find(|hint| hint.node_id != self.node_id)) {
            Some(hint) => self.check_key(key, Some(hint)),
            None => {
                let message = "no route of the frame names the shard of this key here";
                Err(self.refuse(Kind::WrongShard, message, self.around(key)))
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
            let (owned, shard) = self.check_hint(hint, range.start())?;
            if !shard.range().contains_range(range) {
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

    /// The shard of a key with its neighbours here: a caller that knows none of them has missed a
    /// split, and learns both halves at once.
    fn around(&self, key: &[u8]) -> Vec<Shard> {
        let behind = self.shards.partition_point(|owned| owned.shard.start.as_ref() <= key);
        let near = behind.saturating_sub(2)..(behind + 1).min(self.shards.len());
        self.shards[near].iter().map(|owned| owned.shard.clone()).collect()
    }

    /// The shard that a hint is about, and what the hint names: the shard itself or a half of it.
    fn check_hint(
        &self,
        hint: &RouteHint,
        first_key: &[u8],
    ) -> Result<(&OwnedShard, &Shard), ApiError> {
        if hint.node_id != self.node_id {
            let message = format!("this is node {}, not node {}", self.node_id, hint.node_id);
            return Err(self.refuse(Kind::WrongNode, message, self.around(first_key)));
        }
        let id = hint.shard_id;
        let named = |owned| Some((owned, OwnedShard::named(owned, id)?));
        let by_key = self.find(first_key).and_then(named);
        let Some((owned, shard)) = by_key.or_else(|| self.shards.iter().find_map(named)) else {
            let message = format!("node {} does not own shard {id}", self.node_id);
            return Err(self.refuse(Kind::WrongShard, message, self.around(first_key)));
        };
        if shard.epoch != hint.epoch {
            let (has, asked) = (owned.shard.epoch, hint.epoch);
            let message = format!("shard {} is at epoch {has}, not {asked}", owned.shard.shard_id);
            return Err(self.refuse(Kind::StaleEpoch, message, vec![owned.shard.clone()]));
        }
        Ok((owned, shard))
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
