//! Where index and value log meet: looking a key up, reading what an entry stands for, and
//! applying a change. Knows no log: recovery applies what it replays the same way.
//!
//! Invariants:
//! - [`plan`](Store::plan) does everything that can fail and leaves no trace when it does;
//!   [`apply`](Store::apply) cannot fail;
//! - while a shard has a frozen region, nobody changes an entry of its frozen or sorted region,
//!   nor a record that one of them points to: the key goes to the append region;
//! - a record's live bytes are subtracted by whoever stops the newest entry from pointing to it.

use std::sync::Arc;

use crate::sync::primitives::ArcSwap;
use arc_swap::Guard as Guarded;
use crossbeam_epoch::Guard;

use crate::error::{Error, ErrorKind, Result};
use crate::index::{Bundle, Entry, Shard, ShardTable, Slot, SortedRegion, key_hash};
use crate::options::{MAX_INLINE_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, Options};
use crate::stats::Counters;
use crate::types::ValueAt;
use crate::value_log::{Access, Allocation, Location, Stored, ValueLog};

/// The expiry of a value that has none.
const NEVER: u64 = 0;

/// Index and value log.
pub(crate) struct Store {
    pub(crate) options: Options,
    pub(crate) table: ArcSwap<ShardTable>,
    pub(crate) value_log: ValueLog,
    pub(crate) counters: Counters,
}

/// Whether a change could be planned.
pub(crate) enum Planned<'a> {
    /// It can be applied.
    Ready(Plan<'a>),
    /// The append region of this shard is full: let go of everything and make room.
    Full(Arc<Shard>),
}

/// A change that cannot fail any more.
pub(crate) struct Plan<'a> {
    pub(crate) shard: Arc<Shard>,
    bundle: Arc<Bundle>,
    hash: u64,
    key: &'a [u8],
    /// `None` deletes.
    value: Option<&'a [u8]>,
    target: Target<'a>,
    /// Whether the key is there before the change.
    pub(crate) existed: bool,
}

/// Where the new value goes.
enum Target<'a> {
    /// Nothing to do: a delete of a missing key.
    Nothing,
    /// Over the old bytes of this record.
    InPlace(Location),
    /// Into the key's own cell, with these T2 bytes if the value needs some.
    Cell(Option<Space<'a>>),
    /// Into a new entry of the append region (reserved).
    Append(Option<Space<'a>>),
}

/// Bytes of the value log for a value.
enum Space<'a> {
    /// To be written when the change is applied; the log repeats the value.
    Twice(Allocation<'a>),
    /// Written already; the log refers to it.
    Once(Stored<'a>),
}

impl<'a> Plan<'a> {
    /// The key, and its new value (`None`: removed).
    pub(crate) fn change(&self) -> (&'a [u8], Option<&'a [u8]>) {
        (self.key, self.value)
    }

    /// Whether it makes a key that is not there.
    pub(crate) fn is_insert(&self) -> bool {
        !self.existed && self.value.is_some()
    }

    /// Whether it makes the append region grow.
    pub(crate) fn grows(&self) -> bool {
        matches!(self.target, Target::Append(_))
    }

    /// Whether applying it changes nothing.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self.target, Target::Nothing)
    }
}

impl Store {
    /// Checks a key's length.
    pub(crate) fn check_key(key: &[u8]) -> Result<()> {
        match key.len() {
            0 => Err(Error::invalid(format!(
                "key is empty; it must have 1 to {MAX_KEY_BYTES} bytes"
            ))),
            len if len > MAX_KEY_BYTES => {
                Err(Error::invalid(format!("key has {len} bytes; the limit is {MAX_KEY_BYTES}")))
            }
            _ => Ok(()),
        }
    }

    /// Checks a value's length.
    pub(crate) fn check_value(value: &[u8]) -> Result<()> {
        match value.len() {
            len if len > MAX_VALUE_BYTES => Err(Error::invalid(format!(
                "value has {len} bytes; the limit is {MAX_VALUE_BYTES}"
            ))),
            _ => Ok(()),
        }
    }

    /// The shard that holds a key. Writers call it under the key's stripe.
    pub(crate) fn shard_of(&self, key: &[u8]) -> Result<Arc<Shard>> {
        self.table.load().find(key).cloned().ok_or_else(|| {
            let what = format!("no shard of this node holds the key \"{}\"", escape(key));
            Error::new(ErrorKind::NotServed, what)
        })
    }

    /// What the index says of a key; `None` when it knows nothing.
    pub(crate) fn slot_of(&self, key: &[u8]) -> Result<Option<Slot>> {
        let shard = self.shard_of(key)?;
        let bundle = shard.load();
        Ok(bundle.lookup(key).map(|found| found.cell.load().decode()))
    }

    /// The value as applied, durable or not.
    pub(crate) fn read_applied(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        // The pin keeps the record's segment from being reused between look-up and copy.
        let guard = crossbeam_epoch::pin();
        match self.slot_of(key)? {
            Some(slot) => self.read_slot(key, slot, Access::Point, &guard),
            None => Ok(None),
        }
    }

    /// The value that a slot stands for; the guard is from before the look-up.
    pub(crate) fn read_slot(
        &self,
        key: &[u8],
        slot: Slot,
        access: Access,
        guard: &Guard,
    ) -> Result<Option<Vec<u8>>> {
        match slot {
            Slot::Tombstone => Ok(None),
            Slot::Inline(bytes, len) => Ok(Some(bytes[..len].to_vec())),
            Slot::Value(at) => {
                let mut value = Vec::new();
                let read = self.value_log.read(Location(at), key, access, &mut value, guard);
                read.map_err(|error| {
                    if error.kind() == ErrorKind::Corrupt {
                        Counters::add(&self.counters.corrupt_reads, 1);
                    }
                    error.with_key(key)
                })?;
                Ok(Some(value))
            }
        }
    }

    /// Decides how a key gets a value (`None` deletes it) and takes what that needs. The caller
    /// holds the key's stripe.
    pub(crate) fn plan<'a>(
        &'a self,
        key: &'a [u8],
        value: Option<&'a [u8]>,
    ) -> Result<Planned<'a>> {
        let shard = self.shard_of(key)?;
        let bundle = Guarded::into_inner(shard.load());
        let hash = key_hash(key);
        let found = bundle.lookup_hashed(hash, key);
        let old = found.map_or(Slot::Tombstone, |found| found.cell.load().decode());
        let own_cell = !bundle.needs_room(found);
        let existed = !matches!(old, Slot::Tombstone);
        let value_bytes = value.filter(|value| !self.is_inline(value));
        let target = match (value, value_bytes, old) {
            (None, _, Slot::Tombstone) => Target::Nothing,
            (_, Some(value), Slot::Value(at)) if own_cell && self.can_overwrite(at, key, value) => {
                Target::InPlace(Location(at))
            }
            _ => {
                if !own_cell && !bundle.active.try_reserve(1) {
                    return Ok(Planned::Full(shard));
                }
                let space = value_bytes
                    .map(|value| self.space_for(key, value))
                    .transpose()
                    .inspect_err(|_| {
                        if !own_cell {
                            bundle.active.unreserve(1);
                        }
                    })?;
                if own_cell { Target::Cell(space) } else { Target::Append(space) }
            }
        };
        Ok(Planned::Ready(Plan { shard, bundle, hash, key, value, target, existed }))
    }

    /// Where a value goes. On a full disk the other kind of segment may have some room left.
    fn space_for(&self, key: &[u8], value: &[u8]) -> Result<Space<'_>> {
        let twice = || self.value_log.allocate(key.len(), value.len()).map(Space::Twice);
        if !self.value_log.is_once(value.len()) {
            return twice();
        }
        match self.value_log.store_once(key, value, NEVER) {
            Err(error) if error.kind() == ErrorKind::DiskFull => twice().map_err(|_| error),
            stored => stored.map(Space::Once),
        }
    }

    fn is_inline(&self, value: &[u8]) -> bool {
        self.options.inline && value.len() <= MAX_INLINE_BYTES
    }

    fn can_overwrite(&self, at: u64, key: &[u8], value: &[u8]) -> bool {
        let at = Location(at);
        self.value_log.is_tail(at) && ValueLog::fits(at, key.len(), value.len())
    }

    /// Gives back what a plan took.
    pub(crate) fn abandon(&self, plan: Plan<'_>) {
        let Plan { bundle, target, .. } = plan;
        if let Target::Append(_) = target {
            bundle.active.unreserve(1);
        }
        // With it goes its place.
        drop(target);
    }

    /// Makes a change visible; where its value is, if the log is to refer to it. Cannot fail.
    pub(crate) fn apply(&self, plan: Plan<'_>) -> Option<ValueAt> {
        let Plan { shard, bundle, hash, key, value, target, .. } = plan;
        let space = match target {
            Target::Nothing => return None,
            Target::InPlace(at) => {
                bundle.mark_dirty();
                self.value_log.overwrite(at, key, value.unwrap_or_default(), NEVER);
                Counters::add(&self.counters.puts, 1);
                Counters::add(&self.counters.updates_in_place, 1);
                return None;
            }
            Target::Cell(space) | Target::Append(space) => space,
        };
        bundle.mark_dirty();
        let mut once = None;
        let entry = match (value, space) {
            (None, _) => Entry::tombstone(),
            (Some(_), Some(Space::Once(stored))) => {
                Entry::value(once.insert(stored.count()).location)
            }
            (Some(value), Some(Space::Twice(space))) => {
                Entry::value(self.value_log.write(space, key, value, NEVER).0)
            }
            // A value without space is short enough: the plan decided so by the same rule.
            (Some(value), None) => Entry::inline(value).unwrap_or(Entry::tombstone()),
        };
        self.publish(&shard, &bundle, hash, key, entry);
        if once.is_some() {
            Counters::add(&self.counters.puts_once, 1);
        }
        once
    }

    /// Lets the index say something new of a key.
    fn publish(&self, shard: &Shard, bundle: &Bundle, hash: u64, key: &[u8], entry: Entry) {
        // Looked up again rather than kept: it borrows from the bundle, which a plan owns.
        let found = bundle.lookup_hashed(hash, key);
        let old = found.map_or(Slot::Tombstone, |found| found.cell.load().decode());
        bundle.publish(hash, key, found, entry);
        if let Slot::Value(at) = old {
            self.value_log.sub_live(Location(at));
        }
        let new = entry.decode();
        shard.count_live(slot_bytes(new), slot_bytes(old));
        let (counters, removed) = (&self.counters, new == Slot::Tombstone);
        Counters::add(if removed { &counters.deletes } else { &counters.puts }, 1);
        if !removed && old == Slot::Tombstone {
            Counters::add(&counters.inserts, 1);
        }
    }

    /// Lets a key have the value that the log refers to, which recovery has adopted. False when the
    /// append region of the shard is full.
    pub(crate) fn refer(&self, key: &[u8], at: ValueAt) -> Result<(Arc<Shard>, bool)> {
        let shard = self.shard_of(key)?;
        let bundle = Guarded::into_inner(shard.load());
        let hash = key_hash(key);
        if bundle.needs_room(bundle.lookup_hashed(hash, key)) && !bundle.active.try_reserve(1) {
            return Ok((shard, false));
        }
        // First, for the key may have it already.
        self.value_log.add_live(Location(at.location))?;
        bundle.mark_dirty();
        self.publish(&shard, &bundle, hash, key, Entry::value(at.location));
        Ok((shard, true))
    }
}

/// Bytes of the value log that a slot points to.
pub(crate) fn slot_bytes(slot: Slot) -> u64 {
    match slot {
        Slot::Value(at) => Location(at).allocated(),
        _ => 0,
    }
}

/// Bytes of the value log that the entries of a region point to.
pub(crate) fn region_bytes(region: &SortedRegion) -> u64 {
    let (mut bytes, mut entries) = (0, region.cursor());
    entries.seek_first();
    while let Some(cell) = entries.cell() {
        bytes += slot_bytes(cell.load().decode());
        entries.next();
    }
    bytes
}

/// What became of a copy.
pub(crate) enum Repointed {
    /// The index points to it.
    Done,
    /// The record is not the newest of its key any more: the copy is dead.
    Outdated,
    /// The shard is frozen and its append region has no room to spare: the record stays.
    NoRoom,
}

impl Store {
    /// Lets the newest entry of a key point to a copy of its record, if it still points to the
    /// record. The caller holds the key's stripe; the copy is sealed. Cannot fail.
    ///
    /// While the shard is frozen the entry is shadowed, as by any writer: a merge that is under
    /// way has read the old one, and may have read it before the copy was durable.
    pub(crate) fn repoint(&self, key: &[u8], from: Location, to: Location) -> Repointed {
        let Ok(shard) = self.shard_of(key) else { return Repointed::Outdated };
        let bundle = shard.load();
        let hash = key_hash(key);
        let Some(found) = bundle.lookup_hashed(hash, key) else { return Repointed::Outdated };
        let old = found.cell.load();
        if old.decode() != Slot::Value(from.0) {
            return Repointed::Outdated;
        }
        if bundle.needs_room(Some(found)) {
            // At most half of the region: the other half is the writers'.
            let active = &bundle.active;
            if active.len() * 2 >= active.capacity() || !active.try_reserve(1) {
                return Repointed::NoRoom;
            }
        }
        // Before the live bytes move: who sees the old segment empty sees the shard dirty.
        bundle.mark_dirty();
        self.value_log.add_live_copy(to);
        bundle.publish(hash, key, Some(found), Entry { payload: to.0, ..old });
        self.value_log.sub_live(from);
        Repointed::Done
    }
}

/// A key as text for messages, cut to a readable length.
pub(crate) fn escape(key: &[u8]) -> String {
    const SHOWN: usize = 64;
    let cut = if key.len() > SHOWN { ".." } else { "" };
    format!("{}{cut}", key[..key.len().min(SHOWN)].escape_ascii())
}
