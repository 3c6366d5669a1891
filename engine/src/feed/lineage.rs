//! Which shard instances held a range, back to where its history begins.
//!
//! Invariant: a pure function of the births that the log shows.

use std::collections::BTreeMap;

use crate::types::{InstanceId, KeyRange, Lsn, Revision};

/// How an instance came to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// Empty, or with what came from elsewhere.
    Created,
    /// With a part of this instance's keys.
    Split(InstanceId),
    /// With the keys of both, which meet at `seam`, the first key of `right`.
    Merge { left: InstanceId, right: InstanceId, seam: Vec<u8> },
}

/// When an instance came to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Birth {
    /// The end of its record.
    pub(super) lsn: Lsn,
    /// Its revision before its first own change. Its ancestors' changes have this one or a lower
    /// one if they come before the record; its own have higher ones.
    pub(super) revision: Revision,
    pub(super) origin: Origin,
}

/// The births that the kept log shows.
pub(super) type Births = BTreeMap<InstanceId, Birth>;

/// The instances that held a range, newest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Lineage {
    pub(super) instances: Vec<InstanceId>,
    /// The revision at which the range's history begins, and why, if the log shows it: no older
    /// position means anything.
    pub(super) begins: Option<(Revision, &'static str)>,
    /// The lowest revision that a birth on the way gives: changes before the kept log have this one
    /// or lower ones.
    pub(super) oldest_birth: Option<Revision>,
}

impl Lineage {
    /// The lineage of `range`, which lies within `instance`.
    pub(super) fn of(instance: InstanceId, range: &KeyRange, births: &Births) -> Self {
        let mut lineage = Self { instances: vec![instance], begins: None, oldest_birth: None };
        let mut current = instance;
        while let Some(birth) = births.get(&current) {
            let parent = match &birth.origin {
                Origin::Created => {
                    lineage.begins = Some((birth.revision, "the shard was made at it"));
                    break;
                }
                Origin::Split(parent) => *parent,
                Origin::Merge { seam, left, right } => {
                    if range.start.as_slice() >= seam.as_slice() {
                        *right
                    } else if !range.end.is_empty() && range.end <= *seam {
                        *left
                    } else {
                        let why = "two shards were merged at it, and an older position is of one \
                                   of them: ask for each of their ranges";
                        lineage.begins = Some((birth.revision, why));
                        break;
                    }
                }
            };
            lineage.oldest_birth = Some(birth.revision);
            // Births are older than what is born; a damaged log must not make this endless.
            if lineage.instances.contains(&parent) {
                break;
            }
            lineage.instances.push(parent);
            current = parent;
        }
        lineage
    }
}
