//! Whether what was found may be there.
//!
//! Invariant: pure; the caller takes the lower bound before it looks and the upper one after.

use super::keys::{Keys, Kind, Unit};
use super::ledger::Allowed;

/// The first allowed write that left `found`; otherwise what is wrong.
pub(super) fn check(
    keys: &Keys,
    key: usize,
    allowed: Allowed,
    found: Option<&[u8]>,
) -> Result<u64, String> {
    for n in allowed.least..=allowed.most {
        if keys.written(key, n).as_deref() == found {
            return Ok(n);
        }
    }
    let name = keys.name(key).escape_ascii();
    let what = match found {
        None => "is missing".to_owned(),
        Some(value) => {
            let older = (0..allowed.least).rev().take(1000);
            let mut known = older.chain(allowed.most + 1..allowed.most + 100);
            match known.find(|n| keys.written(key, *n).as_deref() == found) {
                Some(n) => format!("has the value of write {n}"),
                None => format!("has {} bytes that nobody wrote", value.len()),
            }
        }
    };
    let Allowed { least, most } = allowed;
    Err(format!("key \"{name}\" {what}; writes {least} to {most} are allowed"))
}

/// Whether a unit that is written by batches is whole. `found` are the writes of its keys, each the
/// first one that left what is there: two writes of a key may have left the same. A range is
/// deleted in chunks of keys, which may end in the middle.
pub(super) fn check_unit(keys: &Keys, unit: &Unit, found: &[u64]) -> Result<(), String> {
    let newest = found.iter().copied().max().unwrap_or(0);
    let is_newest = |(key, n): (&usize, &u64)| {
        *n == newest || keys.written(*key, newest) == keys.written(*key, *n)
    };
    let whole = unit.keys.iter().zip(found).all(is_newest);
    if unit.kind == Kind::Twins && !whole {
        let name = keys.name(unit.keys[0]).escape_ascii();
        return Err(format!("half a batch: key \"{name}\" and the others are at {found:?}"));
    }
    Ok(())
}

/// Whether the keys of a chunk are in order, and each is one that somebody writes.
pub(super) fn check_order<'a>(
    names: impl Iterator<Item = &'a [u8]>,
    reverse: bool,
    is_known: impl Fn(&[u8]) -> bool,
) -> Result<(), String> {
    let mut last: Option<&[u8]> = None;
    for name in names {
        let in_order = last.is_none_or(|last| if reverse { name < last } else { last < name });
        if !in_order {
            return Err(format!("a scan shows \"{}\" out of order", name.escape_ascii()));
        }
        if !is_known(name) {
            return Err(format!("a scan shows \"{}\", which nobody wrote", name.escape_ascii()));
        }
        last = Some(name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(least: u64, most: u64) -> Allowed {
        Allowed { least, most }
    }

    #[test]
    fn what_is_allowed_passes_and_nothing_else() {
        let keys = Keys::new(1);
        // A key of twins is never deleted.
        let key =
            keys.units[0].iter().find(|unit| unit.kind == Kind::Twins).expect("twins").keys[0];
        // Long ones, which differ for sure.
        let long: Vec<u64> =
            (1..200).filter(|n| keys.written(key, *n).is_some_and(|v| v.len() > 9)).collect();
        let [a, b, c] = [long[0], long[1], long[2]];
        let value = |n| keys.written(key, n);
        assert_eq!(check(&keys, key, allowed(a, b), value(a).as_deref()), Ok(a));
        assert_eq!(check(&keys, key, allowed(a, b), value(b).as_deref()), Ok(b));
        assert_eq!(check(&keys, key, allowed(0, 0), None), Ok(0));
        let lost = check(&keys, key, allowed(b, b), value(a).as_deref()).unwrap_err();
        assert!(lost.contains(&format!("write {a};")), "{lost}");
        let early = check(&keys, key, allowed(a, b), value(c).as_deref()).unwrap_err();
        assert!(early.contains(&format!("write {c};")), "{early}");
        assert!(check(&keys, key, allowed(a, a), None).unwrap_err().contains("missing"));
        let torn = check(&keys, key, allowed(a, b), Some(b"torn bytes")).unwrap_err();
        assert!(torn.contains("nobody wrote"), "{torn}");
    }

    #[test]
    fn half_a_batch_and_wrong_order_are_seen() {
        let keys = Keys::new(1);
        let twins = keys.units[0].iter().find(|unit| unit.kind == Kind::Twins).expect("twins");
        assert!(check_unit(&keys, twins, &[3, 3]).is_ok());
        assert!(check_unit(&keys, twins, &[3, 4]).is_err());
        // A key that two writes leave the same is found at the first of them.
        let twins = keys.units.iter().flatten().filter(|unit| unit.kind == Kind::Twins);
        let mut same = twins.flat_map(|unit| (1..300).map(move |n| (unit, n)));
        let (unit, n) = same
            .find(|(unit, n)| {
                let is_same = |key| keys.written(key, *n) == keys.written(key, n + 1);
                is_same(unit.keys[0]) && !is_same(unit.keys[1])
            })
            .expect("two empty values");
        assert!(check_unit(&keys, unit, &[n, n + 1]).is_ok());
        assert!(check_unit(&keys, unit, &[n + 1, n]).is_err());
        let names: [&[u8]; 2] = [b"a", b"b"];
        assert!(check_order(names.into_iter(), false, |_| true).is_ok());
        assert!(check_order(names.into_iter(), true, |_| true).is_err());
        assert!(check_order([b"a".as_slice(); 2].into_iter(), false, |_| true).is_err());
        assert!(check_order(names.into_iter(), false, |name| name == b"a").is_err());
    }
}
