//! Who owns which keys.
//!
//! Invariants: the shards are either none or a partition of the key space; a shard id means one
//! range for ever; [`ShardMap::replace`] is the only change of ranges, epochs and owners, costs
//! O(change * log shards), and for every key the epoch strictly grows with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::v1;

use super::{Nodes, hex};

/// One range of keys and who owns it. Stored as one record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Identifies the shard; means this range for ever.
    pub shard_id: u64,
    /// First key; empty: the lowest there is.
    #[serde(with = "hex")]
    pub start: Bytes,
    /// First key behind it; empty: no upper bound.
    #[serde(with = "hex")]
    pub end: Bytes,
    /// Grows with every change, for every key.
    pub epoch: u64,
    /// The node that owns it.
    pub owner: u64,
    /// The nodes that hold it; the owner alone today.
    pub replicas: Vec<u64>,
    /// It has no data yet, and its owner has not confirmed it.
    pub born: bool,
}

impl Shard {
    /// The keys of the shard.
    pub fn range(&self) -> KeyRange {
        KeyRange::new(self.start.clone(), self.end.clone())
    }

    /// The shard as clients see it.
    pub fn to_wire(&self, nodes: &Nodes) -> v1::Shard {
        v1::Shard {
            shard_id: self.shard_id,
            start: self.start.clone(),
            end: self.end.clone(),
            epoch: self.epoch,
            node_id: self.owner,
            address: nodes.address(self.owner).to_owned(),
        }
    }
}

/// Why a change of the map is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// A shard to replace is not there.
    #[error("no shard {0}")]
    NoShard(u64),
    /// The shards to replace, or those that replace them, are not neighbours.
    #[error("the shards are not neighbours")]
    NotNeighbours,
    /// The new shards cover other keys than the old ones.
    #[error("the new shards cover other keys than the old ones")]
    OtherKeys,
    /// An id is in use, or would mean another range.
    #[error("the id {0} is in use")]
    IdInUse(u64),
    /// An epoch does not grow.
    #[error("the epoch of shard {0} does not grow")]
    Epoch(u64),
}

/// The shards, ordered by start key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShardMap {
    by_start: BTreeMap<Bytes, Arc<Shard>>,
    start_of: HashMap<u64, Bytes>,
    of_owner: BTreeMap<u64, BTreeSet<u64>>,
}

impl ShardMap {
    /// How many shards there are.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Whether no shard has been made yet.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// The shard with this id.
    pub fn get(&self, shard_id: u64) -> Option<&Arc<Shard>> {
        self.by_start.get(self.start_of.get(&shard_id)?)
    }

    /// The shard that holds a key.
    pub fn locate(&self, key: &[u8]) -> Option<&Arc<Shard>> {
        let bounds = (Bound::Unbounded, Bound::Included(key));
        self.by_start.range::<[u8], _>(bounds).next_back().map(|(_, shard)| shard)
    }

    /// All shards, in key order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Shard>> {
        self.by_start.values()
    }

    /// The shards that hold keys of a range, in key order.
    pub fn range<'a>(&'a self, keys: &'a KeyRange) -> impl Iterator<Item = &'a Arc<Shard>> + 'a {
        let from = self.locate(keys.start()).map_or_else(Bytes::new, |shard| shard.start.clone());
        let none = keys.is_empty();
        self.by_start
            .range::<Bytes, _>((Bound::Included(from), Bound::Unbounded))
            .map(|(_, shard)| shard)
            .take_while(move |shard| !none && keys.end().is_none_or(|end| shard.start < *end))
    }

    /// The shards that start above a key, in key order; all of them without one.
    pub fn after(&self, start: Option<&[u8]>) -> impl Iterator<Item = &Arc<Shard>> {
        let from = start.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_start.range::<[u8], _>((from, Bound::Unbounded)).map(|(_, shard)| shard)
    }

    /// The ids of the shards that a node owns.
    pub fn of_owner(&self, node_id: u64) -> impl Iterator<Item = u64> + '_ {
        self.of_owner.get(&node_id).into_iter().flatten().copied()
    }

    /// How many shards a node owns.
    pub fn count_of_owner(&self, node_id: u64) -> usize {
        self.of_owner.get(&node_id).map_or(0, BTreeSet::len)
    }

    /// Puts `new` in the place of the shards `old`: a first map (nothing old), a split, a merge, a
    /// change of owner. Changes nothing if it is refused.
    pub fn replace(&mut self, old: &[u64], mut new: Vec<Shard>) -> Result<(), MapError> {
        let mut replaced = Vec::with_capacity(old.len());
        for id in old {
            replaced.push(Arc::clone(self.get(*id).ok_or(MapError::NoShard(*id))?));
        }
        replaced.sort_by(|a, b| a.start.cmp(&b.start));
        new.sort_by(|a, b| a.start.cmp(&b.start));
        let before = span(replaced.iter().map(AsRef::as_ref))?;
        let after = span(new.iter())?.ok_or(MapError::OtherKeys)?;
        let whole = self.is_empty().then(KeyRange::all);
        if before.or(whole).as_ref() != Some(&after) {
            return Err(MapError::OtherKeys);
        }
        let mut ids = BTreeSet::new();
        for shard in &new {
            let of_id = self.get(shard.shard_id);
            let same = of_id.is_none_or(|known| {
                old.contains(&known.shard_id) && known.range() == shard.range()
            });
            if !same || !ids.insert(shard.shard_id) {
                return Err(MapError::IdInUse(shard.shard_id));
            }
            let range = shard.range();
            let lower = |known: &&Arc<Shard>| known.range().overlaps(&range);
            if replaced.iter().filter(lower).any(|known| known.epoch >= shard.epoch) {
                return Err(MapError::Epoch(shard.shard_id));
            }
        }
        for shard in replaced {
            self.remove(&shard);
        }
        for shard in new {
            self.put(shard);
        }
        Ok(())
    }

    /// Notes that a shard's owner durably has it. Returns whether that is news.
    pub(crate) fn confirm(&mut self, shard_id: u64) -> bool {
        let Some(start) = self.start_of.get(&shard_id) else { return false };
        match self.by_start.get_mut(start) {
            Some(shard) if shard.born => {
                Arc::make_mut(shard).born = false;
                true
            }
            _ => false,
        }
    }

    /// Adds a stored shard; the caller adds all of them.
    pub(crate) fn put(&mut self, shard: Shard) {
        self.start_of.insert(shard.shard_id, shard.start.clone());
        self.of_owner.entry(shard.owner).or_default().insert(shard.shard_id);
        self.by_start.insert(shard.start.clone(), Arc::new(shard));
    }

    fn remove(&mut self, shard: &Shard) {
        self.by_start.remove(&shard.start);
        self.start_of.remove(&shard.shard_id);
        if let Some(owned) = self.of_owner.get_mut(&shard.owner) {
            owned.remove(&shard.shard_id);
            if owned.is_empty() {
                self.of_owner.remove(&shard.owner);
            }
        }
    }
}

/// The keys that neighbours, in key order, cover together.
fn span<'a>(shards: impl Iterator<Item = &'a Shard>) -> Result<Option<KeyRange>, MapError> {
    let mut covered: Option<(Bytes, Bytes)> = None;
    for shard in shards {
        let ordered = shard.end.is_empty() || shard.start < shard.end;
        let start = match covered {
            None => shard.start.clone(),
            Some((start, end)) if !end.is_empty() && end == shard.start => start,
            Some(_) => return Err(MapError::NotNeighbours),
        };
        if !ordered {
            return Err(MapError::NotNeighbours);
        }
        covered = Some((start, shard.end.clone()));
    }
    Ok(covered.map(|(start, end)| KeyRange::new(start, end)))
}
