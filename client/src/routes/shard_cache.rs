//! [`ShardCache`]: the shard map as pieces ordered by their first key.
//!
//! Owns the routes that are known. Invariants: pieces do not overlap; each key belongs to the
//! greatest route ([`Route::rank`]) that was ever merged for it, whatever the order of merges. An
//! older shard may so be left with pieces of its range; requests there are redirected.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::Route;

/// A part of the key space, and who has it.
#[derive(Clone, Debug)]
struct Piece {
    start: Bytes,
    /// Empty: no upper bound.
    end: Bytes,
    route: Arc<Route>,
}

/// The shards that are known.
#[derive(Debug, Default)]
pub struct ShardCache {
    /// By start.
    pieces: BTreeMap<Bytes, Piece>,
}

impl ShardCache {
    /// The newest route for a key, if one is known.
    pub fn get(&self, key: &[u8]) -> Option<&Arc<Route>> {
        let piece = self.at_or_before(key)?;
        below(key, &piece.end).then_some(&piece.route)
    }

    /// For a key without a route: where the unknown part that it is in begins.
    pub fn gap_start(&self, key: &[u8]) -> Bytes {
        self.at_or_before(key).map_or_else(Bytes::new, |piece| piece.end.clone())
    }

    /// How many pieces there are.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Forgets everything: the map belongs to another cluster.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Takes a route where it is newer than what is known; says whether any key is now served by
    /// another shard, node or address than before.
    pub fn merge(&mut self, route: &Arc<Route>) -> bool {
        let (start, end) = (route.shard().start.clone(), route.shard().end.clone());
        if !below(&start, &end) {
            return false;
        }
        let mut parts: Vec<Piece> = Vec::new();
        let mut changed = false;
        let mut reached = Some(start.clone());
        for old in self.take_overlapping(&start, &end) {
            if old.start < start {
                add(&mut parts, old.start.clone(), start.clone(), &old.route);
            }
            let from = old.start.clone().max(start.clone());
            if let Some(gap) = reached.take().filter(|gap| *gap < from) {
                add(&mut parts, gap, from.clone(), route);
                changed = true;
            }
            let to = earlier_end(&old.end, &end);
            let newer = route.rank() > old.route.rank();
            changed |= newer && route.differs(&old.route);
            add(&mut parts, from, to.clone(), if newer { route } else { &old.route });
            if to != old.end {
                add(&mut parts, to.clone(), old.end.clone(), &old.route);
            }
            reached = Some(to.clone()).filter(|to| !to.is_empty());
        }
        if let Some(gap) = reached.filter(|gap| below(gap, &end)) {
            add(&mut parts, gap, end, route);
            changed = true;
        }
        self.pieces.extend(parts.into_iter().map(|piece| (piece.start.clone(), piece)));
        changed
    }

    fn at_or_before(&self, key: &[u8]) -> Option<&Piece> {
        let upto = (Bound::Unbounded, Bound::Included(key));
        self.pieces.range::<[u8], _>(upto).next_back().map(|(_, piece)| piece)
    }

    /// Takes out the pieces that share a key with `[start, end)`, in order.
    fn take_overlapping(&mut self, start: &[u8], end: &Bytes) -> Vec<Piece> {
        let first = self.at_or_before(start).filter(|piece| below(start, &piece.end));
        let from = first.map_or_else(|| Bytes::copy_from_slice(start), |piece| piece.start.clone());
        let upper = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end.as_ref()) };
        let range = (Bound::Included(from.as_ref()), upper);
        let starts: Vec<_> =
            self.pieces.range::<[u8], _>(range).map(|(start, _)| start.clone()).collect();
        starts.iter().filter_map(|start| self.pieces.remove(start)).collect()
    }
}

/// Whether `key` is below an end; an empty end is above every key.
fn below(key: &[u8], end: &Bytes) -> bool {
    end.is_empty() || key < end.as_ref()
}

fn earlier_end(a: &Bytes, b: &Bytes) -> Bytes {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b.clone(),
        (_, true) => a.clone(),
        _ => a.min(b).clone(),
    }
}

/// Appends a piece, or lets the last one grow if it leads the same way.
fn add(parts: &mut Vec<Piece>, start: Bytes, end: Bytes, route: &Arc<Route>) {
    match parts.last_mut() {
        Some(last) if last.end == start && Arc::ptr_eq(&last.route, route) => last.end = end,
        _ => parts.push(Piece { start, end, route: Arc::clone(route) }),
    }
}

#[cfg(test)]
#[path = "shard_cache_test.rs"]
mod tests;
