//! A sequence of writes, and how far each of them got.
//!
//! Invariant: what a crash leaves is the state after some prefix of the writes; the prefix holds
//! every write that was acknowledged before the cut, and none that began behind it.

use std::collections::BTreeMap;

use vmemkv_engine::{Engine, Lsn};

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;
/// Keys with their new values; `None` removes. One log record.
pub(crate) type Change = Vec<(Vec<u8>, Option<Vec<u8>>)>;

struct Write {
    change: Change,
    lsn: Lsn,
    /// The crash point at which it began.
    begun: usize,
    /// The crash point at which it was known durable.
    acknowledged: Option<usize>,
}

#[derive(Default)]
pub(crate) struct History {
    writes: Vec<Write>,
    /// As applied.
    pub(crate) model: Model,
}

impl History {
    /// A write was applied that began at crash point `begun`.
    pub(crate) fn applied(&mut self, lsn: Lsn, begun: usize, change: Change) {
        apply(&mut self.model, &change);
        self.writes.push(Write { change, lsn, begun, acknowledged: None });
    }

    /// Everything up to `durable` is durable, at crash point `now`.
    pub(crate) fn acknowledged(&mut self, durable: Lsn, now: usize) {
        let open = self.writes.iter_mut().filter(|write| write.acknowledged.is_none());
        open.filter(|write| write.lsn <= durable).for_each(|write| write.acknowledged = Some(now));
    }

    /// Asks the engine what is durable.
    pub(crate) fn settle(&mut self, engine: &Engine, now: impl FnOnce() -> usize) {
        let durable = engine.durable_lsn();
        self.acknowledged(durable, now());
    }

    /// Fails unless `found` is what a cut at `point` may leave; which state it is (how many writes).
    pub(crate) fn check(&self, found: &Model, point: usize, at: &str) -> usize {
        let is_acknowledged =
            |write: &Write| write.acknowledged.is_some_and(|known| known <= point);
        let least = self.writes.iter().rposition(is_acknowledged).map_or(0, |last| last + 1);
        let most = self.writes.iter().take_while(|write| write.begun <= point).count();
        let mut state = Model::new();
        let mut nearest = String::new();
        for count in 0..=most {
            if count > 0 {
                apply(&mut state, &self.writes[count - 1].change);
            }
            if count >= least && state == *found {
                return count;
            }
            if count == least {
                nearest = difference(found, &state);
            }
        }
        panic!("{at}: not the state after {least} to {most} writes; against the first: {nearest}");
    }

    /// Forgets the writes behind the first `count`: a crash took them.
    pub(crate) fn keep(&mut self, count: usize) {
        self.writes.truncate(count);
        self.model.clear();
        for write in &self.writes {
            apply(&mut self.model, &write.change);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }
}

fn apply(model: &mut Model, change: &Change) {
    for (key, value) in change {
        match value {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }
}

/// What is missing, too much or different, in a line.
pub(crate) fn difference(found: &Model, expected: &Model) -> String {
    let missing: Vec<_> = expected.keys().filter(|key| !found.contains_key(*key)).take(3).collect();
    let extra: Vec<_> = found.keys().filter(|key| !expected.contains_key(*key)).take(3).collect();
    let other = |key: &&Vec<u8>| found.get(*key).is_some_and(|value| *value != expected[*key]);
    let other: Vec<_> = expected.keys().filter(other).take(3).collect();
    let show = |keys: Vec<&Vec<u8>>| {
        keys.iter().map(|key| key.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
    };
    format!("missing [{}] extra [{}] changed [{}]", show(missing), show(extra), show(other))
}
