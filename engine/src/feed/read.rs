//! An answer of the feed.
//!
//! Invariants: an answer ends with a whole log record, so a batch is never cut in two; its
//! revisions ascend; `next` is a revision that no crash can give to a later change.

use super::index::FeedIndex;
use super::lineage::Lineage;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Shard, Slot};
use crate::store::Store;
use crate::types::{KeyRange, Lsn, Revision, ValueAt};
use crate::wal::{BodyView, Followed, OpKind, OpView, Reading};

use std::sync::Arc;

/// What a change did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// Set the key to this value.
    Put(Vec<u8>),
    /// Removed the key.
    Delete,
}

/// One change of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Its place among the changes of its shard.
    pub revision: Revision,
    /// The key.
    pub key: Vec<u8>,
    /// What happened to it.
    pub kind: ChangeKind,
}

/// A part of a feed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// In order of their revisions, complete from the position that was asked for.
    pub records: Vec<Change>,
    /// The position behind them: ask for what comes after it next. May be above the last record's
    /// revision: what lies between is not of this range.
    pub next: Revision,
    /// Whether that was all that is durable now.
    pub caught_up: bool,
}

/// When `max_bytes` is 0.
const DEFAULT_MAX_BYTES: usize = 1 << 20;

/// What a reader needs to know before it reads.
struct Plan {
    lineage: Lineage,
    /// `None`: there is nothing to read.
    from: Option<Lsn>,
    /// The log is read up to here.
    to: Lsn,
    /// The position once everything has been read.
    end: Revision,
}

impl Core {
    /// See [`Engine::changes_since`](crate::Engine::changes_since).
    pub(crate) fn changes_since(
        &self,
        range: &KeyRange,
        after: Revision,
        max_bytes: usize,
    ) -> Result<Changes> {
        let max_bytes = if max_bytes == 0 { DEFAULT_MAX_BYTES } else { max_bytes };
        loop {
            let plan = self.plan_changes(range, after)?;
            let mut changes = Changes { records: Vec::new(), next: plan.end, caught_up: true };
            let mut at = plan.to;
            if let Some(from) = plan.from {
                let store = &self.store;
                let mut reader =
                    Reader { plan: &plan, range, after, store, bytes: 0, found: Vec::new() };
                let mut stopped = None;
                let read = self.wal.read_durable(from, plan.to, &mut |record, _, _| {
                    if let BodyView::Write(sections) = record.body() {
                        let before = reader.found.len();
                        match reader.take(sections) {
                            // What comes before is whole; the next call will say so.
                            Err(error) if before > 0 && is_too_old(&error) => {
                                reader.found.truncate(before);
                                stopped = Some(record.start_lsn());
                                return Ok(Reading::Stop);
                            }
                            taken => taken?,
                        }
                    }
                    Ok(if reader.bytes >= max_bytes { Reading::Stop } else { Reading::On })
                })?;
                let read = stopped.map_or(read, Followed::To);
                changes.records = reader.found;
                let last = changes.records.last().map(|change| change.revision);
                at = match (read, last) {
                    (Followed::To(at), _) => at,
                    // What was read before is whole.
                    (Followed::Gone(at), Some(_)) => at,
                    // It was recycled under the reader: the plan will say whether that matters.
                    (Followed::Gone(_), None) => continue,
                };
                if at < plan.to {
                    changes.next = last.unwrap_or(after);
                    changes.caught_up = false;
                } else {
                    changes.next = last.unwrap_or(after).max(plan.end);
                }
            }
            self.feed.index.lock().remember(range, after, changes.next, at);
            return Ok(changes);
        }
    }

    /// The shard that holds all of a range.
    pub(super) fn shard_of_range(&self, range: &KeyRange) -> Result<Arc<Shard>> {
        if range.is_empty() {
            return Err(Error::invalid(format!("range {range:?} is empty")));
        }
        let table = self.store.table.load();
        let covering = table.covering(range);
        let holds = |shard: &&Arc<Shard>| {
            let common = shard.range.intersect(range);
            common.start == range.start && common.end == range.end
        };
        covering.first().filter(holds).cloned().ok_or_else(|| {
            let what = format!(
                "no shard of this node holds all of {range:?}: ask for the part in each shard, \
                 with the same position"
            );
            Error::new(ErrorKind::NotServed, what)
        })
    }

    fn plan_changes(&self, range: &KeyRange, after: Revision) -> Result<Plan> {
        let mut waited = None;
        loop {
            // The log first, then the table: a shard is in the table before anything of it is in
            // the log, so none is in the index whose place in the lineage is not known.
            let mut index = self.feed.index.lock();
            index.advance(&self.wal)?;
            let shard = self.shard_of_range(range)?;
            let counter = shard.revision.last();
            if after > counter {
                return Err(Error::invalid(format!(
                    "position {after} of {range:?} is above the last revision of its shard, \
                     {counter}: it is of another shard"
                )));
            }
            if after < self.feed.floor {
                let why = "the log was ended by hand after it, so what had been seen may be gone";
                return Err(too_old(range, after, self.feed.floor, why));
            }
            let opened = self.feed.opened.contains_key(&shard.instance);
            if !opened && !index.is_known(shard.instance) {
                // It may have been shown a moment ago and not be in the log yet: who makes it holds
                // its lock until then.
                drop(index);
                drop(shard.structural.lock());
                self.wal.wait(self.wal.appended_lsn())?;
                self.feed.index.lock().know(shard.instance);
                continue;
            }
            let lineage = index.lineage(shard.instance, range);
            let place = index.place(range, after);
            let floor = match (lineage.begins, place) {
                (Some((begins, why)), _) if after < begins => {
                    return Err(too_old(range, after, begins, why));
                }
                // All that comes after this position is there.
                (Some(_), _) | (None, Some(_)) => Some(after),
                (None, None) => index.floor(&lineage).or(waited),
            };
            let Some(floor) = floor else {
                // The kept log knows nothing of this range. What is on its way must be there first.
                drop(index);
                self.wal.wait(self.wal.appended_lsn())?;
                waited = Some(counter);
                continue;
            };
            if after < floor {
                let why = "older changes are no longer in the log";
                return Err(too_old(range, after, floor, why));
            }
            return Ok(self.plan_from(&index, &shard, lineage, place, after));
        }
    }

    fn plan_from(
        &self,
        index: &FeedIndex,
        shard: &Shard,
        lineage: Lineage,
        place: Option<Lsn>,
        after: Revision,
    ) -> Plan {
        let from = index.start(&lineage, after).map(|start| start.max(place.unwrap_or(start)));
        let opened = self.feed.opened.get(&shard.instance).copied();
        let end = index.newest(shard.instance).max(opened).unwrap_or(after).max(after);
        Plan { lineage, from, to: index.end(), end }
    }
}

/// Collects the changes of a range.
struct Reader<'a> {
    plan: &'a Plan,
    range: &'a KeyRange,
    after: Revision,
    store: &'a Store,
    bytes: usize,
    found: Vec<Change>,
}

impl Reader<'_> {
    fn take<'s>(
        &mut self,
        sections: impl Iterator<Item = crate::wal::SectionView<'s>>,
    ) -> Result<()> {
        for section in sections.filter(|s| self.plan.lineage.instances.contains(&s.instance)) {
            for (revision, op) in (section.first_revision.0..).map(Revision).zip(section.ops()) {
                if revision <= self.after || !self.range.contains(op.key) {
                    continue;
                }
                if self.found.last().is_some_and(|last| last.revision >= revision) {
                    let what = format!(
                        "the log has revision {revision} of {:?} after a higher one; please \
                         report this",
                        self.range
                    );
                    return Err(Error::new(ErrorKind::Corrupt, what));
                }
                let kind = match op.kind {
                    OpKind::Delete => ChangeKind::Delete,
                    OpKind::Put | OpKind::PutAt => ChangeKind::Put(self.value_of(&op, revision)?),
                };
                self.bytes += op.key.len() + op.value_len;
                self.found.push(Change { revision, key: op.key.to_vec(), kind });
            }
        }
        Ok(())
    }
}

impl Reader<'_> {
    fn value_of(&self, op: &OpView<'_>, revision: Revision) -> Result<Vec<u8>> {
        let Some(at) = op.at else { return Ok(op.value.to_vec()) };
        if let Some(value) = self.store.value_log.value_of_reference(op.key, at)? {
            return Ok(value);
        }
        // It may have been moved since, whole.
        if let Ok(Some(Slot::Value(location))) = self.store.slot_of(op.key) {
            let moved = ValueAt { location, ..at };
            if let Some(value) = self.store.value_log.value_of_reference(op.key, moved)? {
                return Ok(value);
            }
        }
        Err({
            let why = "the space of a value that was replaced since has been used again";
            too_old(self.range, self.after, revision, why)
        })
    }
}

fn is_too_old(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::TooOld { .. })
}

fn too_old(range: &KeyRange, after: Revision, oldest: Revision, why: &str) -> Error {
    let what = format!(
        "position {after} of {range:?} is too old: the oldest that is served is {oldest} ({why}); \
         read the range anew and go on from its revision"
    );
    Error::new(ErrorKind::TooOld { oldest }, what)
}
