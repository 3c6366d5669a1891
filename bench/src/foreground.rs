//! What users do meanwhile: inserts, updates and scans of a loaded corpus, each acknowledged only
//! when it is durable, by threads that can be held and let go.
//!
//! Invariants: every inserted key is new; a held thread has no operation under way; a wrong answer
//! is an error and ends the run.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use vmemkv_engine::{Condition, Engine, KeyRange, Lsn, ScanOptions};

use crate::keygen::{KeyKind, Keys, permute};
use crate::random::{Draws, Stream, generator};
use crate::statistics::Rate;
use crate::values::Values;
use crate::workload::{Flavour, SCAN_ENTRIES, Scenario, Touch};

const HELD: u8 = 0;
const RUNNING: u8 = 1;
const OVER: u8 = 2;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What the threads do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    /// New keys, anywhere between the others.
    Insert,
    /// Existing keys, uniform, values of the same size.
    Update,
    /// 100 entries from a uniform start.
    Scan,
}

impl Action {
    /// All of them; inserts last, because they change the corpus most.
    pub(crate) const ALL: [Self; 3] = [Self::Scan, Self::Update, Self::Insert];
}

/// A corpus of the field flavour with 1 KiB values, open.
pub(crate) struct Loaded<'a> {
    /// The engine.
    pub(crate) engine: &'a Engine,
    /// Its keys.
    pub(crate) keys: Keys,
    /// Its values.
    pub(crate) values: Values,
    /// How many.
    pub(crate) records: u64,
}

/// The corpus of these commands.
pub(crate) const SCENARIO: Scenario = Scenario::Mem1Kb;
/// Its keys.
pub(crate) const FLAVOUR: Flavour = Flavour::Field;

impl<'a> Loaded<'a> {
    /// The corpus of `records` in an engine.
    pub(crate) fn new(engine: &'a Engine, records: u64) -> Self {
        let (keys, values) = (Keys::new(FLAVOUR, records), Values::new(SCENARIO, FLAVOUR));
        Self { engine, keys, values, records }
    }

    /// Bytes of keys and values of the corpus.
    pub(crate) fn user_bytes(&self) -> u64 {
        self.records * self.record_bytes()
    }

    /// Bytes of key and value of one record.
    pub(crate) fn record_bytes(&self) -> u64 {
        (self.keys.key_bytes() + SCENARIO.value_bytes()) as u64
    }

    /// Updates a record, durably.
    fn update(&self, record: u64, number: u64) -> Result<()> {
        let lsn = self.start_update(record, number)?;
        Ok(self.engine.wait_durable(lsn)?)
    }

    /// Updates a record; durable once the log is up to the answer.
    pub(crate) fn start_update(&self, record: u64, number: u64) -> Result<Lsn> {
        let key = self.keys.key(KeyKind::Existing, record);
        let value = self.values.updated(record, number);
        let written = self.engine.put(&key, value, &Condition::IfPresent)?;
        ensure!(written.applied, "record {record} is missing");
        Ok(written.lsn)
    }

    /// Inserts the `number`-th new key, durably.
    fn insert(&self, number: u64) -> Result<()> {
        let mut key =
            self.keys.key(KeyKind::Existing, permute(number % self.records, self.records, 5));
        key.extend_from_slice(&(number / self.records).to_le_bytes()[..2]);
        let value = self.values.inserted(number);
        let written = self.engine.put(&key, value, &Condition::IfAbsent)?;
        ensure!(written.applied, "new key {number} was there already");
        Ok(self.engine.wait_durable(written.lsn)?)
    }

    /// Scans from a record on.
    fn scan(&self, record: u64) -> Result<()> {
        let start = self.keys.key(KeyKind::Existing, record);
        let range = KeyRange::new(start, Vec::new());
        let mut options = ScanOptions { range, limit: SCAN_ENTRIES, ..ScanOptions::default() };
        let mut sum = 0u64;
        while options.limit > 0 {
            let chunk = self.engine.scan(&options)?;
            for (_, value) in &chunk.entries {
                sum = sum.wrapping_add(Touch::Line.read(value));
            }
            options.limit -= chunk.entries.len();
            ensure!(!chunk.done || options.limit == 0, "a scan from {record} ended early");
            options.range.start = chunk.covered_to;
        }
        black_box(sum);
        Ok(())
    }
}

/// Threads that do one action after another, while they are not held.
pub(crate) struct Gate {
    /// SeqCst with `is_idle`: a thread takes back that it is idle, then looks here; who holds
    /// stores here, then looks there. One of the two sees the other.
    state: AtomicU8,
    /// Set by a thread that failed; orders nothing, its error comes with the join.
    failed: AtomicBool,
    threads: Vec<ThreadState>,
}

/// On a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct ThreadState {
    /// Operations acknowledged; orders nothing.
    done: AtomicU64,
    /// SeqCst, see `Gate::state`.
    is_idle: AtomicBool,
}

impl Gate {
    fn new(threads: usize) -> Self {
        let threads = (0..threads).map(|_| ThreadState::default()).collect();
        Self { state: AtomicU8::new(HELD), failed: AtomicBool::new(false), threads }
    }

    /// Lets the threads go.
    pub(crate) fn run(&self) {
        self.state.store(RUNNING, Ordering::SeqCst);
    }

    /// Holds the threads; returns once none has an operation under way.
    pub(crate) fn hold(&self) -> Result<()> {
        self.state.store(HELD, Ordering::SeqCst);
        while !self.threads.iter().all(|thread| thread.is_idle.load(Ordering::SeqCst)) {
            self.check()?;
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// What all threads have done so far.
    fn done(&self) -> u64 {
        self.threads.iter().map(|thread| thread.done.load(Ordering::Relaxed)).sum()
    }

    /// What the threads do while `work` runs.
    pub(crate) fn rate_during<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(Rate, T)> {
        let (before, began) = (self.done(), Instant::now());
        let result = work()?;
        let rate =
            Rate { operations: self.done() - before, seconds: began.elapsed().as_secs_f64() };
        self.check()?;
        Ok((rate, result))
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.failed.load(Ordering::Relaxed), "a foreground thread failed");
        Ok(())
    }
}

/// Runs `coordinate` with `threads` threads that do `action`, held at first; `first_insert` is the
/// number of the first new key. Returns also the number of the next.
pub(crate) fn with_threads<T>(
    loaded: &Loaded<'_>,
    action: Action,
    threads: usize,
    first_insert: u64,
    coordinate: impl FnOnce(&Gate) -> Result<T>,
) -> Result<(T, u64)> {
    let gate = Gate::new(threads);
    let next_insert = AtomicU64::new(first_insert);
    let result = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let (gate, next_insert) = (&gate, &next_insert);
                scope.spawn(move || {
                    let result = serve(loaded, action, thread, gate, next_insert);
                    gate.failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    result
                })
            })
            .collect();
        let result = coordinate(&gate);
        gate.state.store(OVER, Ordering::SeqCst);
        for (thread, handle) in handles.into_iter().enumerate() {
            let served = handle.join().map_err(|_| anyhow!("thread {thread} panicked"))?;
            served.with_context(|| format!("thread {thread} ({action:?})"))?;
        }
        result
    })?;
    Ok((result, next_insert.into_inner()))
}

fn serve(
    loaded: &Loaded<'_>,
    action: Action,
    thread: usize,
    gate: &Gate,
    next_insert: &AtomicU64,
) -> Result<()> {
    let mut rng = generator(Stream::Window, thread);
    let bound = match action {
        Action::Scan => loaded.records.saturating_sub(2 * SCAN_ENTRIES as u64),
        _ => loaded.records,
    };
    let draws = Draws::uniform(bound)?;
    let own = &gate.threads[thread];
    loop {
        own.is_idle.store(false, Ordering::SeqCst);
        match gate.state.load(Ordering::SeqCst) {
            RUNNING => {
                act(loaded, action, &draws, &mut rng, own, next_insert)?;
                own.done.fetch_add(1, Ordering::Relaxed);
            }
            OVER => return Ok(()),
            _ => {
                own.is_idle.store(true, Ordering::SeqCst);
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }
}

fn act(
    loaded: &Loaded<'_>,
    action: Action,
    draws: &Draws,
    rng: &mut StdRng,
    own: &ThreadState,
    next_insert: &AtomicU64,
) -> Result<()> {
    match action {
        // The counter only hands out numbers; nothing is ordered by it.
        Action::Insert => loaded.insert(next_insert.fetch_add(1, Ordering::Relaxed)),
        Action::Update => loaded.update(draws.draw(rng), own.done.load(Ordering::Relaxed)),
        Action::Scan => loaded.scan(draws.draw(rng)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bulk;
    use vmemkv_engine::Options;

    #[test]
    fn held_threads_do_nothing_and_running_ones_are_counted() {
        let dir = tempfile::tempdir().expect("dir");
        let engine = Engine::open(dir.path().join("data"), Options::for_tests()).expect("open");
        let loaded = Loaded::new(&engine, 1000);
        let pairs = (0..1000).map(|record| {
            (loaded.keys.key(KeyKind::Existing, record), loaded.values.loaded(record))
        });
        bulk::write(&engine, pairs, |_| ()).expect("load");
        let mut next = 7;
        for action in Action::ALL {
            let (rates, after) = with_threads(&loaded, action, 3, next, |gate| {
                let look = || {
                    std::thread::sleep(Duration::from_millis(50));
                    Ok(())
                };
                let (before, ()) = gate.rate_during(look)?;
                gate.run();
                let (running, ()) = gate.rate_during(look)?;
                gate.hold()?;
                let (held, ()) = gate.rate_during(look)?;
                Ok([before.operations, running.operations, held.operations])
            })
            .expect("threads");
            assert_eq!((rates[0], rates[2]), (0, 0), "{action:?}");
            assert!(rates[1] > 0, "{action:?}");
            assert_eq!(after > next, action == Action::Insert);
            next = after;
        }
        assert_eq!(bulk::count(&engine).expect("count"), 1000 + next - 7);
        // The same new keys again are not new: a wrong answer ends it all.
        let again = with_threads(&loaded, Action::Insert, 2, 7, |gate| {
            gate.run();
            (0..1000).try_for_each(|_| {
                std::thread::sleep(Duration::from_millis(10));
                gate.check()
            })
        });
        assert!(format!("{:#}", again.expect_err("wrong")).contains("was there already"));
    }
}
