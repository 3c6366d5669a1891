//! The background jobs: real work for them, and the jobs themselves.
//!
//! Invariants: what is prepared is there when the job starts, so its work is known; preparing leaves
//! the corpus as large as it was.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use vmemkv_engine::{Continue, DefragmentOptions, MAX_BATCH_OPERATIONS, Operation};

use crate::bulk;
use crate::foreground::Loaded;
use crate::keygen::KeyKind;
use crate::runner::page_cache;

/// A background job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Job {
    /// Merges recent keys, a tenth of all, into the sorted ones.
    Reorganize,
    /// Makes values durable that were written since the last one.
    Checkpoint,
    /// Frees the dead space of half dead segments.
    Defragment,
}

impl Job {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Reorganize, Self::Checkpoint, Self::Defragment];

    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reorganize => "reorganize",
            Self::Checkpoint => "checkpoint",
            Self::Defragment => "defragment",
        }
    }
}

/// How much a job is given to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Keys that reorganize merges.
    pub(crate) merge_keys: u64,
    /// Bytes that checkpoint makes durable and defragment frees.
    pub(crate) bytes: u64,
}

/// What one run of a job did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Done {
    /// Its length.
    pub(crate) seconds: f64,
    /// Bytes of the records whose keys were merged; of values made durable; of dead space freed.
    pub(crate) work_bytes: u64,
}

/// Prepares jobs, over and over.
pub(crate) struct Work<'a> {
    loaded: &'a Loaded<'a>,
    /// The engine's directory.
    data: &'a Path,
    load: Load,
    /// How often something was prepared: the next one takes other records.
    turn: Cell<u64>,
    /// The new keys that are there, by number; the next turn removes them and takes those behind.
    new: RefCell<Range<u64>>,
}

impl<'a> Work<'a> {
    /// Work for jobs on a corpus.
    pub(crate) fn new(loaded: &'a Loaded<'a>, data: &'a Path, load: Load) -> Self {
        Self { loaded, data, load, turn: Cell::new(0), new: RefCell::new(0..0) }
    }

    /// To be called before the first work for a job, and after a checkpoint.
    pub(crate) fn begin(&self, job: Job) -> Result<()> {
        if job == Job::Reorganize {
            // The next append regions hold twice as much: writers find room beside the work.
            self.insert_new()?;
            self.loaded.engine.reorganize(None)?;
        }
        Ok(())
    }

    /// Gives the job something to do. Nothing else may write meanwhile.
    pub(crate) fn prepare(&self, job: Job) -> Result<()> {
        let engine = self.loaded.engine;
        let turn = self.turn.replace(self.turn.get() + 1);
        match job {
            Job::Reorganize => {
                self.delete_new()?;
                self.insert_new()?;
                // Values that are still to be written back would slow down the time without the
                // job.
                page_cache::sync_below(self.data)
            }
            Job::Checkpoint => {
                engine.checkpoint()?;
                self.overwrite(self.count(), false, turn)
            }
            Job::Defragment => {
                // Half of a stretch of the value log: its segments are half dead.
                // An eighth more: the segments at its ends may not be worth it.
                self.overwrite(self.count() * 9 / 8, true, turn)?;
                engine.checkpoint()?;
                Ok(())
            }
        }
    }

    /// Runs the job.
    pub(crate) fn run(&self, job: Job) -> Result<Done> {
        let engine = self.loaded.engine;
        let before = engine.stats();
        let began = Instant::now();
        let work_bytes = match job {
            Job::Reorganize => {
                engine.reorganize(None)?;
                before.index.append_entries * self.loaded.record_bytes()
            }
            Job::Checkpoint => {
                engine.checkpoint()?;
                before.value_log.tail_bytes
            }
            Job::Defragment => {
                let options = DefragmentOptions::default();
                let report = engine.defragment(&options, &|_| Continue::Yes)?;
                ensure!(!report.cancelled, "the defragment was cancelled");
                report.bytes_freed
            }
        };
        Ok(Done { seconds: began.elapsed().as_secs_f64(), work_bytes })
    }

    /// Records of `bytes`: a value alone is counted, so that the bytes are reached in any case.
    fn count(&self) -> u64 {
        self.load.bytes.div_ceil(crate::foreground::SCENARIO.value_bytes() as u64)
    }

    /// Overwrites so many records of a stretch of the corpus, in the order of the load, that begins
    /// where the stretch of the last turn ended.
    fn overwrite(&self, count: u64, half: bool, turn: u64) -> Result<()> {
        let loaded = self.loaded;
        let positions = stretch(turn * count, loaded.records, half).take(count as usize);
        let pairs = positions.map(|position| {
            let record = loaded.keys.load_order(position);
            let value = loaded.values.updated(record, turn).to_vec();
            (loaded.keys.key(KeyKind::Existing, record), value)
        });
        bulk::write(loaded.engine, pairs, |_| ())
    }

    fn new_key(&self, number: u64) -> Vec<u8> {
        let kind = KeyKind::New { loaded: self.loaded.records };
        self.loaded.keys.key(kind, number % self.loaded.records)
    }

    /// Inserts new keys until the append regions hold as many as reorganize is to merge. They grow
    /// with demand, and until then a full one is merged.
    fn insert_new(&self) -> Result<()> {
        let (loaded, wanted) = (self.loaded, self.load.merge_keys);
        let mut new = self.new.borrow_mut();
        loop {
            let there = loaded.engine.stats().index.append_entries;
            let Some(missing) = wanted.checked_sub(there).filter(|&missing| missing > 0) else {
                return Ok(());
            };
            ensure!(
                new.end - new.start + missing <= loaded.records,
                "the append regions do not come to hold {wanted} keys: name fewer with --merge-keys"
            );
            let numbers = new.end..new.end + missing;
            new.end = numbers.end;
            let pairs = numbers
                .map(|number| (self.new_key(number), loaded.values.inserted(number).to_vec()));
            bulk::write(loaded.engine, pairs, |_| ())?;
        }
    }

    fn delete_new(&self) -> Result<()> {
        let mut new = self.new.borrow_mut();
        let mut batch = Vec::new();
        for number in new.clone() {
            batch.push(Operation::Delete { key: self.new_key(number) });
            if batch.len() == MAX_BATCH_OPERATIONS || number + 1 == new.end {
                self.loaded.engine.write_batch(&batch)?;
                batch.clear();
            }
        }
        new.start = new.end;
        Ok(())
    }
}

/// Positions of a corpus from `first` on, round and round; with `half` twice as far on, and only every
/// second, then two of four, four of eight, ... with each time around: so half of what lies together is
/// taken, however the turns before have placed it.
fn stretch(first: u64, records: u64, half: bool) -> impl Iterator<Item = u64> {
    let from = if half { 2 * first } else { first };
    (from..).filter_map(move |number| {
        let (position, lap) = (number % records, number / records);
        (!half || position >> (lap % 16) & 1 == 0).then_some(position)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keygen::KeyKind;
    use vmemkv_engine::{Engine, Options};

    #[test]
    fn stretches_follow_each_other_and_halves_change() {
        let take = |first, half| stretch(first, 16, half).take(4).collect::<Vec<_>>();
        assert_eq!(take(0, false), [0, 1, 2, 3]);
        assert_eq!(take(14, false), [14, 15, 0, 1]);
        assert_eq!(take(0, true), [0, 2, 4, 6]);
        assert_eq!(take(4, true), [8, 10, 12, 14]);
        assert_eq!(take(8, true), [0, 1, 4, 5]);
        assert_eq!(take(12, true), [8, 9, 12, 13]);
    }

    #[test]
    fn every_job_has_its_work_again_and_again() {
        let dir = tempfile::tempdir().expect("dir");
        let options = Options { append_capacity: 1 << 14, ..Options::for_tests() };
        let engine = Engine::open(dir.path().join("data"), options).expect("open");
        let data = dir.path().join("data");
        let records = 40_000;
        let loaded = Loaded::new(&engine, records);
        let pairs = (0..records).map(|position| {
            let record = loaded.keys.load_order(position);
            (loaded.keys.key(KeyKind::Existing, record), loaded.values.loaded(record))
        });
        bulk::write(&engine, pairs, |_| ()).expect("load");
        engine.checkpoint().expect("checkpoint");
        // Segments of the tests are of 16 MiB.
        let load = Load { merge_keys: 6000, bytes: 18 << 20 };
        let work = Work::new(&loaded, &data, load);
        for job in Job::ALL {
            let least = if job == Job::Reorganize { 6000 * 1064 } else { load.bytes };
            // Not all of what is dead lies in whole segments.
            let least = if job == Job::Defragment { least / 2 } else { least };
            work.begin(job).expect("begin");
            for turn in 0..4 {
                work.prepare(job).expect("prepare");
                let done = work.run(job).expect("run");
                assert!(done.work_bytes >= least, "{job:?} {turn}: {done:?}");
                assert!(done.seconds > 0.0);
            }
        }
        work.delete_new().expect("delete");
        assert_eq!(bulk::count(&engine).expect("count"), records);
    }
}
