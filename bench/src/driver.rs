//! The timed window: threads start together, one clock read per sample, and what they did.
//!
//! Invariants: a window ends for all threads with its time, or once one thread has nothing left
//! to do or has failed; an operation counts only if it ended before the thread looked at the
//! clock for the last time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::histogram::Latencies;
use crate::system::{Device, Usage};

/// What an operation was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// It counts.
    Counted,
    /// It belongs to the workload but not to its figure.
    Aside,
    /// It counts, but the store's answer was wrong.
    Wrong,
    /// There was nothing left to do; nothing was done.
    Exhausted,
}

/// How a window is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Threads.
    pub(crate) threads: usize,
    /// Its length.
    pub(crate) length: Duration,
    /// One latency is taken of so many operations: reading the clock costs as much as a tenth of
    /// a read from memory.
    pub(crate) sample_every: u64,
}

/// What one thread did.
pub(crate) struct Tally {
    /// Operations started, in the order of the plan.
    pub(crate) started: u64,
    /// Operations that count.
    pub(crate) counted: u64,
    /// Those answered wrongly.
    pub(crate) wrong: u64,
    /// The time from the common start to the last look at the clock.
    pub(crate) elapsed: Duration,
    /// Of the sampled operations that count.
    pub(crate) latencies: Latencies,
    /// Counted operations by second of the window.
    pub(crate) timeline: Vec<u64>,
}

/// What all threads did.
pub(crate) struct Outcome {
    /// By thread.
    pub(crate) tallies: Vec<Tally>,
    /// Of the whole process, in the window.
    pub(crate) usage: Usage,
}

impl Outcome {
    /// Operations of all threads over the mean of their times, as the seeds count.
    pub(crate) fn ops_per_s(&self) -> f64 {
        let total: Duration = self.tallies.iter().map(|tally| tally.elapsed).sum();
        let mean = total.as_secs_f64() / self.tallies.len().max(1) as f64;
        if mean > 0.0 { self.counted() as f64 / mean } else { 0.0 }
    }

    /// Operations that count, of all threads.
    pub(crate) fn counted(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.counted).sum()
    }

    /// Wrong answers of all threads.
    pub(crate) fn wrong(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.wrong).sum()
    }

    /// The latencies of all threads.
    pub(crate) fn latencies(&self) -> Result<Latencies> {
        let mut all = Latencies::new()?;
        for tally in &self.tallies {
            all.add(&tally.latencies)?;
        }
        Ok(all)
    }

    /// Counted operations of all threads by second.
    pub(crate) fn timeline(&self) -> Vec<u64> {
        let seconds = self.tallies.iter().map(|tally| tally.timeline.len()).max().unwrap_or(0);
        (0..seconds)
            .map(|second| self.tallies.iter().filter_map(|tally| tally.timeline.get(second)).sum())
            .collect()
    }
}

/// A thread's side of a window.
pub(crate) struct Runner<'a> {
    window: Window,
    start: &'a Barrier,
    stop: &'a AtomicBool,
}

impl Runner<'_> {
    /// Waits for the others, then does one operation after another until the window ends. The
    /// operation gets its number and the time at the last look at the clock.
    pub(crate) fn run(
        self,
        mut operation: impl FnMut(u64, Duration) -> Result<Step>,
    ) -> Result<Tally> {
        let mut tally = Tally {
            started: 0,
            counted: 0,
            wrong: 0,
            elapsed: Duration::ZERO,
            latencies: Latencies::new()?,
            timeline: vec![0; self.window.length.as_secs_f64().ceil() as usize + 1],
        };
        self.start.wait();
        let began = Instant::now();
        let mut now = Duration::ZERO;
        while now < self.window.length && !self.stop.load(Ordering::Relaxed) {
            let mut counted = 0;
            let mut step = Step::Exhausted;
            // The last operation of a group is the sample: its start is read from the clock.
            for _ in 1..self.window.sample_every {
                step = operation(tally.started, now)?;
                if step == Step::Exhausted {
                    break;
                }
                tally.started += 1;
                counted += u64::from(step != Step::Aside);
                tally.wrong += u64::from(step == Step::Wrong);
            }
            let before = if self.window.sample_every == 1 { now } else { began.elapsed() };
            if self.window.sample_every == 1 || step != Step::Exhausted {
                step = operation(tally.started, before)?;
            }
            now = began.elapsed();
            if step != Step::Exhausted {
                tally.started += 1;
                tally.wrong += u64::from(step == Step::Wrong);
                if step != Step::Aside {
                    counted += 1;
                    tally.latencies.record(now.saturating_sub(before));
                }
            }
            tally.counted += counted;
            if let Some(second) = tally.timeline.get_mut(now.as_secs() as usize) {
                *second += counted;
            }
            if step == Step::Exhausted {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
        tally.elapsed = now;
        Ok(tally)
    }
}

/// Runs `work` on each thread of a window. `work` prepares what it needs, then calls
/// [`Runner::run`] once.
pub(crate) fn run(
    window: Window,
    device: &Device,
    work: impl Fn(usize, Runner<'_>) -> Result<Tally> + Sync,
) -> Result<Outcome> {
    let start = Barrier::new(window.threads + 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..window.threads)
            .map(|thread| {
                let (work, start, stop) = (&work, &start, &stop);
                scope.spawn(move || {
                    let tally = work(thread, Runner { window, start, stop });
                    if tally.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    tally
                })
            })
            .collect();
        let before = Usage::now(device);
        start.wait();
        let tallies: Result<Vec<_>> = threads
            .into_iter()
            .enumerate()
            .map(|(thread, handle)| {
                let tally = handle.join().map_err(|_| anyhow!("thread {thread} panicked"))?;
                tally.with_context(|| format!("thread {thread}"))
            })
            .collect();
        Ok(Outcome { tallies: tallies?, usage: Usage::now(device).since(&before) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn window(threads: usize, sample_every: u64) -> Window {
        Window { threads, length: Duration::from_millis(100), sample_every }
    }

    #[test]
    fn operations_come_in_order_and_are_counted_once() {
        for sample_every in [1, 8] {
            let seen = AtomicU64::new(0);
            let outcome = run(window(2, sample_every), &Device::default(), |_, runner| {
                let mut next = 0;
                runner.run(|number, _| {
                    assert_eq!(number, next);
                    next += 1;
                    seen.fetch_add(1, Ordering::Relaxed);
                    Ok(if number % 10 == 0 { Step::Aside } else { Step::Counted })
                })
            })
            .expect("run");
            let started: u64 = outcome.tallies.iter().map(|tally| tally.started).sum();
            assert_eq!(started, seen.into_inner());
            let aside: u64 = outcome.tallies.iter().map(|tally| tally.started.div_ceil(10)).sum();
            assert_eq!(outcome.counted(), started - aside);
            assert_eq!(outcome.timeline().iter().sum::<u64>(), outcome.counted());
            assert!(outcome.ops_per_s() > 0.0);
        }
    }

    #[test]
    fn a_thread_without_work_ends_the_window() {
        for sample_every in [1, 8] {
            let length = Duration::from_secs(600);
            let outcome = run(
                Window { threads: 2, length, sample_every },
                &Device::default(),
                |thread, runner| {
                    runner.run(|number, _| {
                        Ok(if thread == 0 && number == 100 {
                            Step::Exhausted
                        } else {
                            Step::Counted
                        })
                    })
                },
            )
            .expect("run");
            assert_eq!(outcome.tallies[0].counted, 100);
            assert_eq!(outcome.tallies[0].started, 100);
            assert!(outcome.tallies[0].elapsed < length);
        }
    }

    #[test]
    fn an_error_ends_the_window_and_names_the_thread() {
        let length = Duration::from_secs(600);
        let outcome = run(
            Window { threads: 2, length, sample_every: 1 },
            &Device::default(),
            |thread, runner| {
                runner.run(
                    |_, _| if thread == 1 { Err(anyhow!("broken")) } else { Ok(Step::Counted) },
                )
            },
        );
        let error = outcome.err().map(|error| format!("{error:#}"));
        assert_eq!(error.as_deref(), Some("thread 1: broken"));
    }

    #[test]
    fn wrong_answers_are_kept_apart() {
        let outcome = run(window(1, 8), &Device::default(), |_, runner| {
            runner.run(|number, _| Ok(if number < 3 { Step::Wrong } else { Step::Counted }))
        })
        .expect("run");
        assert_eq!(outcome.wrong(), 3);
        assert_eq!(outcome.counted(), outcome.tallies[0].started);
    }
}
