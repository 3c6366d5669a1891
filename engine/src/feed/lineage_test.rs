//! Lineages over splits and merges.

use super::lineage::{Birth, Births, Lineage, Origin};
use crate::types::{InstanceId, KeyRange, Lsn, Revision};

/// 1 `[.., m..)` is split at `m` into 2 and 3, 3 at `s` into 4 and 5; 2 and 4 are merged to 6.
fn births() -> Births {
    let split = |parent| Origin::Split(InstanceId(parent));
    let merge = Origin::Merge { left: InstanceId(2), right: InstanceId(4), seam: b"m".to_vec() };
    let all = [
        (2, 10, split(1)),
        (3, 10, split(1)),
        (4, 20, split(3)),
        (5, 20, split(3)),
        (6, 30, merge),
    ];
    all.into_iter()
        .map(|(instance, revision, origin)| {
            let birth = Birth { lsn: Lsn(revision * 8), revision: Revision(revision), origin };
            (InstanceId(instance), birth)
        })
        .collect()
}

fn of(instance: u64, start: &str, end: &str, births: &Births) -> (Vec<u64>, Option<u64>) {
    let lineage = Lineage::of(InstanceId(instance), &KeyRange::new(start, end), births);
    let instances = lineage.instances.iter().map(|instance| instance.0).collect();
    (instances, lineage.begins.map(|(revision, _)| revision.0))
}

#[test]
fn a_childs_keys_were_its_parents() {
    let births = births();
    assert_eq!(of(5, "s", "", &births), (vec![5, 3, 1], None));
    assert_eq!(of(5, "t", "u", &births), (vec![5, 3, 1], None));
    assert_eq!(of(1, "", "", &births), (vec![1], None));
    let lineage = Lineage::of(InstanceId(5), &KeyRange::new("s", ""), &births);
    assert_eq!(lineage.oldest_birth, Some(Revision(10)));
}

#[test]
fn a_range_on_one_side_of_the_seam_goes_on_beyond_a_merge() {
    let births = births();
    assert_eq!(of(6, "", "m", &births), (vec![6, 2, 1], None));
    assert_eq!(of(6, "a", "b", &births), (vec![6, 2, 1], None));
    assert_eq!(of(6, "m", "s", &births), (vec![6, 4, 3, 1], None));
}

#[test]
fn a_range_on_both_sides_begins_with_the_merge() {
    let births = births();
    for (start, end) in [("", "s"), ("l", "m\0"), ("a", "")] {
        assert_eq!(of(6, start, end, &births), (vec![6], Some(30)), "{start} {end}");
    }
}

#[test]
fn a_new_shard_has_no_history() {
    let mut births = births();
    let birth = Birth { lsn: Lsn(8), revision: Revision(7), origin: Origin::Created };
    births.insert(InstanceId(1), birth);
    assert_eq!(of(5, "s", "", &births), (vec![5, 3, 1], Some(7)));
}

#[test]
fn a_circle_ends() {
    let split = |parent| Birth {
        lsn: Lsn(8),
        revision: Revision(1),
        origin: Origin::Split(InstanceId(parent)),
    };
    let births = Births::from([(InstanceId(1), split(2)), (InstanceId(2), split(1))]);
    assert_eq!(of(1, "", "", &births), (vec![1, 2], None));
}
