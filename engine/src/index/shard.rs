//! One shard: its range and its regions, and how they are frozen, merged and split.
//!
//! Invariants: id, instance, epoch and range never change; the bundle is swapped only by
//! structural operations, one at a time (`structural`), and a swap over somebody else's is a typed
//! error. A freeze is finished when the caller has passed every stripe; before that, nobody
//! merges. See [the index](super) for why no write is lost.

use crate::sync::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

use crate::sync::primitives::ArcSwap;
use crate::sync::primitives::Mutex;
use arc_swap::Guard;

use super::append_region::AppendRegion;
use super::bundle::Bundle;
use super::cold_scans::ColdScans;
use super::merge::{Tombstones, changes_nothing, concatenate, merge};
use super::revision_counter::RevisionCounter;
use super::sorted_region::SortedRegion;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{InstanceId, KeyRange, Revision, ShardId};

/// Smallest capacity of an append region (bounded by the option): holds two full batches.
pub(crate) const MIN_APPEND_CAPACITY: usize = 2 * crate::options::MAX_BATCH_OPERATIONS;

/// A shard.
pub(crate) struct Shard {
    /// The range's id.
    pub(crate) id: ShardId,
    /// This local copy's id.
    pub(crate) instance: InstanceId,
    /// The epoch under which it was given to this engine.
    pub(crate) epoch: u64,
    /// Its keys.
    pub(crate) range: KeyRange,
    /// Its regions; load it once per operation.
    pub(crate) bundle: ArcSwap<Bundle>,
    /// Held by reorganize, checkpoint, split, merge: one structural operation at a time.
    pub(crate) structural: Mutex<()>,
    /// Where its revisions come from.
    pub(crate) revision: RevisionCounter,
    /// When this copy was made here, or read from the disk.
    pub(crate) made: Instant,
    /// Bytes that its entries point to: right while nobody writes, once no [guess](Self::guess) is in
    /// it. Relaxed: an estimate for triggers; may wrap below zero meanwhile.
    live_bytes: AtomicU64,
    /// What of `live_bytes` is only guessed: a part of a split does not know what it was given before
    /// its first merge. Touched under `structural`, so relaxed.
    guess: AtomicU64,
    /// Whether there is a guess. As `guess`.
    guessed: AtomicBool,
    /// No split before it holds more than this. Relaxed: only triggers look at them.
    pub(crate) quiet_bytes: AtomicU64,
    /// The same for entries.
    pub(crate) quiet_entries: AtomicU64,
    /// What scans pay for its records' places.
    pub(crate) cold_scans: ColdScans,
    /// Other shards have taken its place: nothing structural happens to it any more. Changed and
    /// read under `structural`.
    retired: AtomicBool,
    /// Whether an index file of it may exist, so that deletes have to reach one. Only rises;
    /// touched by structural operations only, which one lock orders, so relaxed.
    filed: AtomicBool,
    /// The last revision of a change of this instance whose LSN is reserved. Release by writers,
    /// acquire by who waits for changes.
    pub(crate) last_change: AtomicU64,
    /// Most entries of an append region.
    append_capacity: usize,
}

impl Shard {
    /// A shard with these sorted entries and an empty active region. `dirty`: it has no file yet.
    pub(crate) fn new(
        id: ShardId,
        instance: InstanceId,
        epoch: u64,
        range: KeyRange,
        sorted: SortedRegion,
        append_capacity: usize,
        dirty: bool,
    ) -> Self {
        let active = AppendRegion::new(MIN_APPEND_CAPACITY.min(append_capacity));
        if dirty {
            active.mark_written();
        }
        let bundle = Bundle { active: Arc::new(active), frozen: None, sorted: Arc::new(sorted) };
        let revision = RevisionCounter::new(Revision(0));
        let shard = Self::with((id, instance), epoch, range, bundle, revision, append_capacity);
        shard.filed.store(!dirty, Ordering::Relaxed);
        shard
    }

    /// A shard that no index file knows.
    fn with(
        (id, instance): (ShardId, InstanceId),
        epoch: u64,
        range: KeyRange,
        bundle: Bundle,
        revision: RevisionCounter,
        append_capacity: usize,
    ) -> Self {
        Self {
            id,
            instance,
            epoch,
            range,
            bundle: ArcSwap::from_pointee(bundle),
            structural: Mutex::new(()),
            revision,
            made: Instant::now(),
            live_bytes: AtomicU64::new(0),
            guess: AtomicU64::new(0),
            guessed: AtomicBool::new(false),
            quiet_bytes: AtomicU64::new(0),
            quiet_entries: AtomicU64::new(0),
            cold_scans: ColdScans::default(),
            retired: AtomicBool::new(false),
            filed: AtomicBool::new(false),
            last_change: AtomicU64::new(0),
            append_capacity,
        }
    }

    /// Bytes that its entries point to.
    pub(crate) fn live_bytes(&self) -> u64 {
        // Below zero counts as none: a split guessed wrong.
        (self.live_bytes.load(Ordering::Relaxed) as i64).max(0) as u64
    }

    /// An entry stops pointing to `less` bytes and begins to point to `more`.
    pub(crate) fn count_live(&self, more: u64, less: u64) {
        self.live_bytes.fetch_add(more.wrapping_sub(less), Ordering::Relaxed);
    }

    /// The sum of all counts, which wraps below zero while a guess is too low.
    pub(crate) fn counted_live(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Counts a guess of what the frozen and sorted regions point to, within the shard's range.
    /// Nobody else has the shard yet.
    pub(crate) fn guess_live(&self, bytes: u64) {
        self.count_live(bytes, 0);
        self.guess.store(bytes, Ordering::Relaxed);
        self.guessed.store(true, Ordering::Relaxed);
    }

    /// Whether there is a guess: the shard is the part of a split, before its first merge. A hint
    /// without `structural`.
    pub(crate) fn has_guess(&self) -> bool {
        self.guessed.load(Ordering::Relaxed)
    }

    /// Puts the truth in the place of the guess: what the first merged region pointed to before it
    /// was published. What writers have changed since the split they have counted. The caller holds
    /// `structural`.
    pub(crate) fn know_live(&self, bytes: u64) {
        self.count_live(bytes, self.guess.load(Ordering::Relaxed));
        self.guessed.store(false, Ordering::Relaxed);
    }

    /// Other shards have taken its place. The caller holds `structural`.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether other shards have taken its place. The caller holds `structural`.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// The regions now. Writers call it once, under the key's stripe.
    #[inline]
    pub(crate) fn load(&self) -> Guard<Arc<Bundle>> {
        self.bundle.load()
    }

    /// Swaps in an empty active region; the old one becomes frozen. Returns the new bundle. The
    /// caller holds `structural`, and passes every stripe before it reads `frozen` or `sorted` as
    /// immutable, or the frozen region's dirty flag as final.
    ///
    /// Fails, changing nothing, when the shard is frozen already.
    pub(crate) fn freeze(&self) -> Result<Arc<Bundle>> {
        let old = self.bundle.load_full();
        if old.frozen.is_some() {
            return Err(self.busy("is frozen already"));
        }
        let capacity = next_capacity(&old.active, self.append_capacity);
        let new = Arc::new(Bundle {
            active: Arc::new(AppendRegion::new(capacity)),
            frozen: Some(Arc::clone(&old.active)),
            sorted: Arc::clone(&old.sorted),
        });
        self.swap(&old, &new)?;
        Ok(new)
    }

    /// What the frozen and sorted regions are together, within the shard's range. The caller has
    /// passed every stripe since the freeze. Touches nothing.
    ///
    /// Without new keys, and without tombstones to drop, it is the sorted region itself. Tombstones
    /// stay while no index file knows of the delete. `between` is called every so often,
    /// and may sleep.
    pub(crate) fn merge_frozen(&self, bloom: bool, between: &dyn Fn()) -> Arc<SortedRegion> {
        let bundle = self.bundle.load_full();
        let filed = self.filed.load(Ordering::Relaxed);
        let keep = if filed { Tombstones::KeepUnsaved } else { Tombstones::Drop };
        let (frozen, sorted) = (bundle.frozen.as_deref(), &bundle.sorted);
        if changes_nothing(frozen, sorted, &self.range, bloom, keep) {
            return Arc::clone(sorted);
        }
        Arc::new(merge(frozen, sorted, &self.range, bloom, keep, between))
    }

    /// Remembers that an index file of the shard is about to be written.
    pub(crate) fn mark_filed(&self) {
        self.filed.store(true, Ordering::Relaxed);
    }

    /// A merged region that is not published yet, without its tombstones.
    pub(crate) fn without_tombstones(
        &self,
        merged: &SortedRegion,
        bloom: bool,
        between: &dyn Fn(),
    ) -> Arc<SortedRegion> {
        Arc::new(merge(None, merged, &self.range, bloom, Tombstones::Drop, between))
    }

    /// What the frozen and sorted regions hold together, and how much of it is in no index file
    /// yet; both upper bounds. As [`merge_frozen`](Self::merge_frozen), after the pass.
    pub(crate) fn count_frozen(&self) -> (usize, usize) {
        let bundle = self.load();
        let new = bundle.frozen.as_ref().map_or(0, |frozen| frozen.len());
        (bundle.sorted.len() + new, bundle.sorted.changed() + new)
    }

    /// Puts `merged` in the place of the frozen and sorted regions; the active region stays, with
    /// its flag. The caller holds `structural`, and has waited until the log is durable up to the
    /// freeze. `keep_dirty`: what was frozen is not in a checkpoint being made, so a dirty shard
    /// stays dirty.
    ///
    /// Fails, changing nothing, when the shard is not frozen.
    pub(crate) fn publish_merged(&self, merged: Arc<SortedRegion>, keep_dirty: bool) -> Result<()> {
        let old = self.bundle.load_full();
        let Some(frozen) = &old.frozen else {
            return Err(self.busy("is not frozen"));
        };
        if keep_dirty && frozen.was_written() {
            // Before the swap: at no moment does the shard look clean.
            old.active.mark_written();
        }
        let new =
            Arc::new(Bundle { active: Arc::clone(&old.active), frozen: None, sorted: merged });
        self.swap(&old, &new)
    }

    /// The shards `[start, key)` and `[key, end)` that take this one's place: empty active regions,
    /// this shard's active region frozen, its sorted region shared; both dirty, and counting
    /// revisions with this one. The caller holds `structural` of all three, swaps both in with one
    /// store of the shard table, passes every stripe, parts the counters, and then lets somebody
    /// merge and publish each.
    ///
    /// Fails when the shard is frozen, or `key` does not cut its range in two.
    pub(crate) fn split(
        &self,
        key: &[u8],
        left: (ShardId, InstanceId),
        right: (ShardId, InstanceId),
        epoch: u64,
    ) -> Result<(Self, Self)> {
        let old = self.bundle.load_full();
        if old.frozen.is_some() {
            return Err(self.busy("is frozen already"));
        }
        if key <= self.range.start.as_slice() || !self.range.contains(key) {
            return Err(Error::invalid(format!(
                "split key {} must lie inside {:?}, behind its start",
                key.escape_ascii(),
                self.range
            )));
        }
        let child = |id, range| {
            let capacity = next_capacity(&old.active, self.append_capacity);
            let active = AppendRegion::new(capacity);
            active.mark_written();
            let bundle = Bundle {
                active: Arc::new(active),
                frozen: Some(Arc::clone(&old.active)),
                sorted: Arc::clone(&old.sorted),
            };
            let revision = self.revision.share();
            let shard = Self::with(id, epoch, range, bundle, revision, self.append_capacity);
            Self { cold_scans: ColdScans::inherit(&[&self.cold_scans], 2), ..shard }
        };
        Ok((
            child(left, KeyRange::new(self.range.start.clone(), key)),
            child(right, KeyRange::new(key, self.range.end.clone())),
        ))
    }

    /// The shard that takes the place of this one and its right neighbour. The caller holds
    /// `structural` of all three, lets the counters [unite](RevisionCounter::unite) before it swaps
    /// the result in with one store of the shard table, passes every stripe, and then lets somebody
    /// merge and publish it.
    ///
    /// # Why no write is lost
    ///
    /// The result takes inserts in *this* shard's active region, has the neighbour's active region
    /// as its frozen one, and both sorted regions, block by block, as its sorted one. It is a
    /// frozen shard like any other: its writers only insert into the active region, or store in
    /// it. What is left is the writers that loaded the table before the swap; each holds its
    /// key's stripe until the pass, so for one key they come before all that see the result:
    ///
    /// - in this shard they insert into the region that goes on being active: nothing to do;
    /// - in the neighbour they insert into what has become the frozen region, as the writers of any
    ///   frozen shard do until the pass;
    /// - in either they may change a cell of a sorted region. The blocks are shared, not copied, so
    ///   the result has the change (only the count of tombstones is another, and the merge that
    ///   comes counts anew).
    ///
    /// Fails when one is frozen, or they are no neighbours.
    pub(crate) fn merge_with(
        &self,
        right: &Self,
        id: (ShardId, InstanceId),
        epoch: u64,
        bloom: bool,
    ) -> Result<Self> {
        let (old_left, old_right) = (self.bundle.load_full(), right.bundle.load_full());
        for (shard, bundle) in [(self, &old_left), (right, &old_right)] {
            if bundle.frozen.is_some() {
                return Err(shard.busy("is frozen already"));
            }
        }
        if self.range.end.is_empty() || self.range.end != right.range.start {
            return Err(Error::invalid(format!(
                "shard {} {:?} does not begin where shard {} {:?} ends",
                right.id, right.range, self.id, self.range
            )));
        }
        // A file that has all of it is needed, written or not.
        old_left.active.mark_written();
        let bundle = Bundle {
            active: Arc::clone(&old_left.active),
            frozen: Some(Arc::clone(&old_right.active)),
            sorted: Arc::new(concatenate(&old_left.sorted, &old_right.sorted, bloom)),
        };
        let range = KeyRange::new(self.range.start.clone(), right.range.end.clone());
        // Its own when the counters unite.
        let revision = RevisionCounter::new(Revision(0));
        let shard = Self::with(id, epoch, range, bundle, revision, self.append_capacity);
        let cold_scans = ColdScans::inherit(&[&self.cold_scans, &right.cold_scans], 1);
        Ok(Self { cold_scans, ..shard })
    }

    /// Marks the shard as changed: a checkpoint that had frozen it failed.
    pub(crate) fn mark_dirty(&self) {
        // A swap between load and mark would leave the mark in the frozen region, where it counts
        // as well: see `Bundle::is_dirty` and `publish_merged`.
        self.load().mark_dirty();
    }

    /// Whether the next checkpoint has to take the shard.
    pub(crate) fn is_dirty(&self) -> bool {
        self.load().is_dirty()
    }

    /// Replaces the bundle, unless it is no longer `old`.
    fn swap(&self, old: &Arc<Bundle>, new: &Arc<Bundle>) -> Result<()> {
        let was = self.bundle.compare_and_swap(old, Arc::clone(new));
        if Arc::ptr_eq(&was, old) {
            Ok(())
        } else {
            Err(self.busy("was changed by another structural operation"))
        }
    }

    fn busy(&self, why: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("shard {} {why}", self.id))
    }
}

/// The capacity of the next append region: twice what the last one held, and at least half of what
/// it could hold. A freeze right after another must not leave a busy shard with little room, for
/// its writers wait when it is full.
fn next_capacity(last: &AppendRegion, most: usize) -> usize {
    let wanted = last.len().saturating_mul(2).max(last.capacity() / 2);
    wanted.max(MIN_APPEND_CAPACITY).min(most)
}
