//! A follower of the changes of all keys, over splits, merges, checkpoints and kills.
//!
//! Invariants: its ranges cover all keys; a position is stored with what had been seen at it, so
//! after a kill it goes on from there; each change is checked against what was written, and an
//! answer that is said to be complete against what had been acknowledged before; "too old" is a
//! violation unless the log was recycled from where the position left it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand::{RngExt, rngs::StdRng};
use vmemkv_engine::{Changes, Engine, ErrorKind, KeyRange, Lsn, Revision};

use super::child::{Work, violation};
use super::keys::Kind;
use super::seen::{Known, Seen};

/// How often what was seen is stored.
const STORE_EVERY: Duration = Duration::from_millis(150);
/// Followers, of different patience.
pub(super) const FOLLOWERS: u64 = 2;

/// A range that is followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) range: KeyRange,
    /// All changes up to this one have been seen.
    pub(super) position: Revision,
    /// All changes that have not been seen lie in the log from here on.
    pub(super) lsn: Lsn,
    /// Some of the keys have been followed further, up to here: see [`Follower::join`].
    pub(super) again: Revision,
    /// What its keys are is not known: the changes before were recycled.
    pub(super) fresh: bool,
}

/// The follower.
pub(super) struct Follower<'a> {
    pub(super) work: &'a Work<'a>,
    pub(super) path: PathBuf,
    pub(super) pieces: Vec<Piece>,
    /// By number of the key.
    pub(super) seen: Vec<Seen>,
    pub(super) stored: Instant,
    /// Loses a change now and then: the checker must see it.
    plant: Option<StdRng>,
}

/// What came of one question.
#[derive(PartialEq)]
enum Polled {
    CaughtUp,
    More,
    /// Another shard, another position.
    Ask,
}

impl<'a> Follower<'a> {
    /// From where it was stored, or from the beginning.
    pub(super) fn open(work: &'a Work<'a>, path: PathBuf, plant: Option<StdRng>) -> Result<Self> {
        let all = Piece {
            range: KeyRange::all(),
            position: Revision(0),
            lsn: Lsn(0),
            again: Revision(0),
            fresh: false,
        };
        let seen = vec![Seen::nothing(); work.keys.count()];
        let stored = Instant::now();
        let mut follower = Self { work, path, pieces: vec![all], seen, stored, plant };
        follower.load()?;
        Ok(follower)
    }

    /// Reads on until the work stops: at once, or lazily so that the log is recycled before it.
    pub(super) fn run(mut self, mut random: StdRng, lazy: bool) -> Result<()> {
        while !self.work.is_stopped() {
            let max_bytes = random.random_range(1..if lazy { 20_000 } else { 1 << 20 });
            if lazy {
                let pause = Duration::from_millis(random.random_range(0..2500));
                self.work.sleep(pause);
            } else {
                let piece = &self.pieces[random.random_range(0..self.pieces.len())];
                let (range, position) = (piece.range.clone(), piece.position);
                match self.work.engine.wait_changes(&range, position, Duration::from_millis(20)) {
                    Err(error) if error.kind() == ErrorKind::NotServed => {}
                    other => drop(other?),
                }
            }
            if random.random_bool(0.3) {
                self.join(random.random_range(0..self.pieces.len()))?;
            }
            let mut at = 0;
            while at < self.pieces.len() && !self.work.is_stopped() {
                match self.poll(at, max_bytes)? {
                    Polled::More if !lazy || random.random_bool(0.9) => {}
                    // Cut in two, or to be asked anew: next time.
                    _ => at += 1,
                }
            }
            if self.stored.elapsed() > STORE_EVERY {
                self.store()?;
            }
        }
        Ok(())
    }

    /// Reads all that there is, while nobody writes; then every key must be seen as it is.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        let mut at = 0;
        let mut asked = 0;
        while at < self.pieces.len() {
            match self.poll(at, 1 << 20)? {
                Polled::CaughtUp => (at, asked) = (at + 1, 0),
                Polled::More => {}
                Polled::Ask if asked < 100 => asked += 1,
                Polled::Ask => bail!("{:?} cannot be followed", self.pieces[at]),
            }
        }
        for key in 0..self.seen.len() {
            let is = self.work.keys.written(key, self.work.ledger.known(key));
            let shown = |n: &u64| self.work.keys.written(key, *n) == is;
            if !self.seen[key].writes.iter().any(shown) {
                let writes = &self.seen[key].writes;
                let n = self.work.ledger.known(key);
                self.wrong(key, &format!("write {writes:?} was the last, and write {n} is there"));
            }
        }
        self.store()
    }

    fn known(&self, key: usize) -> Known<'a> {
        Known { keys: self.work.keys, skips: self.work.skips, key }
    }

    fn wrong(&self, key: usize, what: &str) {
        let name = self.work.keys.name(key).escape_ascii();
        violation(&format!("the changes of key \"{name}\": {what}"));
    }

    /// Asks once for what comes after the position of a piece.
    fn poll(&mut self, at: usize, max_bytes: usize) -> Result<Polled> {
        let work = self.work;
        let Piece { range, position, lsn, .. } = self.pieces[at].clone();
        let bounds: Vec<(usize, u64)> =
            work.keys_of(&range).map(|key| (key, work.ledger.known(key))).collect();
        let (durable, oldest) = (work.engine.durable_lsn(), work.engine.oldest_lsn());
        match work.engine.changes_since(&range, position, max_bytes) {
            Ok(changes) => {
                self.take(at, &changes)?;
                let piece = &mut self.pieces[at];
                piece.position = changes.next;
                if !changes.caught_up {
                    return Ok(Polled::More);
                }
                piece.lsn = piece.lsn.max(durable);
                self.complete(at, &bounds);
                Ok(Polled::CaughtUp)
            }
            Err(error) => match error.kind() {
                ErrorKind::NotServed => {
                    self.cut(at);
                    Ok(Polled::Ask)
                }
                ErrorKind::TooOld { oldest: served } => {
                    let now = work.engine.oldest_lsn();
                    if now <= lsn {
                        violation(&format!(
                            "a follower at LSN {lsn} is told this, and the log is there from LSN \
                             {now}: {error}"
                        ));
                    }
                    if served <= position {
                        violation(&format!("a follower is told to go back: {error}"));
                    }
                    work.resyncs.fetch_add(1, Ordering::Relaxed);
                    let piece = &mut self.pieces[at];
                    // Changes after `served` are in the log as it was at the call, or later.
                    (piece.position, piece.lsn, piece.fresh) = (served, oldest, true);
                    Ok(Polled::Ask)
                }
                _ => Err(error.into()),
            },
        }
    }

    /// Checks an answer.
    fn take(&mut self, at: usize, changes: &Changes) -> Result<()> {
        let piece = self.pieces[at].clone();
        let mut last = piece.position;
        let mut changed = BTreeSet::new();
        let work = self.work;
        work.changes.fetch_add(changes.records.len() as u64, Ordering::Relaxed);
        for change in &changes.records {
            let name = change.key.escape_ascii();
            if change.revision <= last {
                let revision = change.revision;
                violation(&format!("changes: revision {revision} of \"{name}\" after {last}"));
            }
            last = change.revision;
            let Some(&key) = work.by_name.get(&change.key[..]) else {
                violation(&format!("changes: key \"{name}\", which nobody wrote"));
                continue;
            };
            if !piece.range.contains(&change.key) {
                violation(&format!("changes: key \"{name}\" is not of {:?}", piece.range));
                continue;
            }
            if self.plant.as_mut().is_some_and(|random| random.random_bool(0.0005)) {
                continue;
            }
            let before = self.seen[key].revision;
            if change.revision.0 <= before {
                if change.revision > piece.again {
                    let again = change.revision;
                    self.wrong(key, &format!("revision {again} is shown after {before}"));
                }
                continue;
            }
            if piece.fresh {
                self.seen[key].revision = change.revision.0;
                continue;
            }
            let value = match &change.kind {
                vmemkv_engine::ChangeKind::Put(value) => Some(&value[..]),
                vmemkv_engine::ChangeKind::Delete => None,
            };
            let (known, attempted) = (self.known(key), work.ledger.attempted(key));
            if let Err(what) = self.seen[key].change(value, last.0, attempted, known) {
                self.wrong(key, &what);
                self.forget(key, work.ledger.known(key));
            }
            changed.insert(key);
        }
        if changes.next < last {
            violation(&format!("changes: the next position is {}, after {last}", changes.next));
        }
        // Durable, so it is there for good.
        for key in &changed {
            if let Some(least) = self.seen[*key].writes.first() {
                work.ledger.show(*key, *least)?;
            }
        }
        self.check_batches(&piece.range, &changed);
        Ok(())
    }

    /// Keys that are written by one batch are shown together.
    fn check_batches(&self, range: &KeyRange, changed: &BTreeSet<usize>) {
        let keys = self.work.keys;
        for unit in keys.units.iter().flatten().filter(|unit| unit.kind == Kind::Twins) {
            let &[a, b] = &unit.keys[..] else { continue };
            let together = range.contains(keys.name(a)) && range.contains(keys.name(b));
            if together && (changed.contains(&a) || changed.contains(&b)) {
                let (a_seen, b_seen) = (&self.seen[a].writes, &self.seen[b].writes);
                if !a_seen.iter().any(|n| b_seen.contains(n)) {
                    self.wrong(a, &format!("half a batch: {a_seen:?} and {b_seen:?}"));
                }
            }
        }
    }

    /// All that was durable before `bounds` were taken has been shown.
    fn complete(&mut self, at: usize, bounds: &[(usize, u64)]) {
        let fresh = std::mem::take(&mut self.pieces[at].fresh);
        for &(key, least) in bounds {
            if fresh {
                self.forget(key, least);
                continue;
            }
            let known = self.known(key);
            if let Err(what) = self.seen[key].complete(least, known) {
                self.wrong(key, &what);
                self.forget(key, least);
            }
        }
    }

    /// Of a key no more is known than what was acknowledged.
    fn forget(&mut self, key: usize, least: u64) {
        let most = self.work.ledger.attempted(key);
        let revision = self.seen[key].revision;
        self.seen[key] = Seen::any_of(least..=most, revision, self.known(key));
    }

    /// Cuts a piece where shards meet: the position goes on for each part.
    fn cut(&mut self, at: usize) {
        let piece = self.pieces[at].clone();
        let parts: Vec<Piece> = parts(self.work.engine, &piece.range)
            .into_iter()
            .map(|range| Piece { range, ..piece.clone() })
            .collect();
        // Else the shards have changed in between.
        if !parts.is_empty() {
            self.pieces.splice(at..=at, parts);
        }
    }

    /// Follows two neighbours of one shard as one, from the older position, if that is served: not
    /// where they have been merged since.
    fn join(&mut self, at: usize) -> Result<()> {
        let Some([left, right]) = self.pieces.get(at..at + 2) else { return Ok(()) };
        if left.fresh || right.fresh {
            return Ok(());
        }
        let joined = Piece {
            range: KeyRange { start: left.range.start.clone(), end: right.range.end.clone() },
            position: left.position.min(right.position),
            lsn: left.lsn.min(right.lsn),
            again: left.position.max(right.position).max(left.again).max(right.again),
            fresh: false,
        };
        match self.work.engine.changes_since(&joined.range, joined.position, 1) {
            Ok(_) => {
                self.pieces.splice(at..at + 2, [joined]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::NotServed | ErrorKind::TooOld { .. } => Ok(()),
                _ => Err(error.into()),
            },
        }
    }
}

/// A range, cut where the shards of an engine meet.
fn parts(engine: &Engine, range: &KeyRange) -> Vec<KeyRange> {
    let mut shards: Vec<KeyRange> = engine.shards().into_iter().map(|info| info.range).collect();
    shards.sort_by(|a, b| a.start.cmp(&b.start));
    let common = shards.into_iter().map(|shard| shard.intersect(range));
    common.filter(|common| !common.is_empty()).collect()
}
