//! Shards of the map, as the wire has them.
//!
//! Invariants: a hint with shard id 0 is no hint.

use crate::convert::KeyRange;
use crate::v1;

impl v1::Shard {
    /// The keys of the shard.
    pub fn range(&self) -> KeyRange {
        KeyRange::new(self.start.clone(), self.end.clone())
    }

    /// Whether `key` belongs to the shard.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_ref() && (self.end.is_empty() || key < self.end.as_ref())
    }

    /// What a request for this shard says about its destination.
    pub fn hint(&self) -> v1::RouteHint {
        v1::RouteHint { shard_id: self.shard_id, epoch: self.epoch, node_id: self.node_id }
    }
}

impl v1::RouteHint {
    /// Whether it names a shard; otherwise a request is checked by its keys alone.
    pub fn is_set(&self) -> bool {
        self.shard_id != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_and_its_range_agree() {
        let shard = v1::Shard {
            shard_id: 1,
            start: "b".into(),
            end: "d".into(),
            epoch: 2,
            node_id: 3,
            address: String::new(),
        };
        let rest = v1::Shard { start: "d".into(), ..Default::default() };
        for key in ["a", "b", "c", "d", "e"] {
            for shard in [&shard, &rest] {
                let contains = shard.contains(key.as_bytes());
                assert_eq!(contains, shard.range().contains(key.as_bytes()));
            }
            assert_eq!(rest.contains(key.as_bytes()), key >= "d");
        }
        assert!(shard.hint().is_set() && shard.hint().epoch == 2);
        assert!(!v1::RouteHint::default().is_set());
    }
}
