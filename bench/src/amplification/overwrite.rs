//! The measured process of `amplification`: random overwrites until so many are done or the time is
//! up, and what they cost.
//!
//! Invariants: a write counts once the log is durable up to it; one that is refused for want of space is
//! asked again, and is no acknowledgement; a thread that fails ends all.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use vmemkv_engine::{Engine, Error, ErrorKind, Lsn, Options};

use crate::foreground::Loaded;
use crate::progress::Progress;
use crate::random::{Draws, Stream, generator};
use crate::runner;
use crate::statistics::stalls;
use crate::system::Device;

const BINS_PER_SECOND: u64 = 100;
const AFTER_REFUSAL: Duration = Duration::from_millis(10);

/// When it is over, and what the directory may hold.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// After so many writes.
    pub(crate) writes: Option<u64>,
    /// After so long.
    pub(crate) seconds: Option<f64>,
    /// A thread waits for the log once for so many writes; 0 = for each.
    pub(crate) writes_per_wait: u64,
    /// The engine's option.
    pub(crate) capacity_bytes: Option<u64>,
}

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) data: PathBuf,
    pub(crate) records: u64,
    pub(crate) threads: usize,
    pub(crate) limits: Limits,
}

/// What it cost.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Overwritten {
    /// Acknowledged.
    pub(crate) writes: u64,
    /// Bytes of their keys and values.
    pub(crate) user_bytes: u64,
    pub(crate) seconds: f64,
    /// Refused for want of space, then asked again.
    pub(crate) refused: u64,
    /// Bytes of the keys and values that are live.
    pub(crate) live_bytes: u64,
    /// Allocated to the directory by the file system, at the end.
    pub(crate) disk_bytes: u64,
    /// The most, seen every second.
    pub(crate) disk_peak_bytes: u64,
    /// Seconds without an acknowledged write.
    pub(crate) stall_seconds: u64,
    pub(crate) longest_stall_s: f64,
    /// Charged to this process by the kernel.
    pub(crate) process_write_bytes: u64,
    /// Of the whole device.
    pub(crate) device_write_bytes: Option<u64>,
    /// What the engine says it has written.
    pub(crate) written: Written,
}

/// Where the device bytes come from, as the engine counts them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Written {
    /// Of the log, whole pages: a group ends within one, which the next group writes again.
    pub(crate) log_bytes: u64,
    /// New records of the value log.
    pub(crate) value_bytes: u64,
    /// Records that defragment copied.
    pub(crate) copied_bytes: u64,
    /// Index files.
    pub(crate) index_bytes: u64,
    /// Syncs of the log.
    pub(crate) log_syncs: u64,
    pub(crate) checkpoints: u64,
    /// Segments that defragment emptied.
    pub(crate) emptied_segments: u64,
    /// Pauses of writers for the disk's sake.
    pub(crate) pauses: u64,
    pub(crate) pauses_us: u64,
}

impl Written {
    /// Counted since the engine was opened.
    fn by(engine: &Engine, record_bytes: u64) -> Self {
        let stats = engine.stats();
        let (counters, log) = (stats.counters, stats.wal);
        Self {
            log_bytes: log.bytes + 4096 * log.fsyncs,
            value_bytes: (counters.puts - counters.updates_in_place) * record_bytes,
            copied_bytes: counters.defragment_copied_bytes,
            index_bytes: counters.checkpoint_index_bytes,
            log_syncs: log.fsyncs,
            checkpoints: counters.checkpoints,
            emptied_segments: counters.defragment_segments,
            pauses: counters.stalls_disk,
            pauses_us: counters.stalls_disk_us,
        }
    }
}

/// What the threads share.
struct Shared {
    /// Writes handed out; orders nothing.
    started: AtomicU64,
    /// Writes acknowledged; orders nothing.
    done: AtomicU64,
    /// Refusals; orders nothing.
    refused: AtomicU64,
    /// A thread has failed: the others need not go on. Orders nothing.
    failed: AtomicBool,
    began: Instant,
}

/// Task: overwrites.
pub(crate) fn run(task: &Task) -> Result<()> {
    let options = Options { capacity_bytes: task.limits.capacity_bytes, ..Options::default() };
    let engine = Engine::open(&task.data, options)?;
    let loaded = Loaded::new(&engine, task.records);
    let device = Device::of(&task.data)?;
    let before = (process_write_bytes()?, device.written_bytes());
    let shared = Shared {
        started: AtomicU64::new(0),
        done: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        began: Instant::now(),
    };
    let mut disk_peak_bytes = 0;
    let mut progress = progress(&task.limits);
    // Seldom, for it walks the directory; but a short phase is to be seen at all.
    let is_short = task.limits.seconds.is_some_and(|seconds| seconds < 10.0);
    let every = Duration::from_millis(if is_short { 100 } else { 1000 });
    let watch = || {
        disk_peak_bytes = disk_peak_bytes.max(disk_bytes(&task.data)?);
        progress.show(match task.limits.writes {
            Some(_) => shared.done.load(Ordering::Relaxed),
            None => shared.began.elapsed().as_secs(),
        });
        std::thread::sleep(every);
        Ok(())
    };
    let work = |thread| overwrite(&loaded, &task.limits, thread, &shared);
    let of_threads = in_threads(task.threads, &shared.failed, watch, work)?;
    progress.end();
    let mut bins = Vec::new();
    of_threads.iter().for_each(|of_thread| add(&mut bins, of_thread));
    let seconds = shared.began.elapsed().as_secs_f64();
    let stalls = stalls(&whole(bins, seconds), BINS_PER_SECOND);
    let writes = shared.done.into_inner();
    let disk_bytes = disk_bytes(&task.data)?;
    let device_write_bytes = device.written_bytes().zip(before.1).map(|(now, then)| now - then);
    runner::reply(&Overwritten {
        writes,
        user_bytes: writes * loaded.record_bytes(),
        seconds,
        refused: shared.refused.into_inner(),
        live_bytes: loaded.user_bytes(),
        disk_bytes,
        disk_peak_bytes: disk_peak_bytes.max(disk_bytes),
        stall_seconds: stalls.seconds,
        longest_stall_s: stalls.longest_bins as f64 / BINS_PER_SECOND as f64,
        process_write_bytes: process_write_bytes()? - before.0,
        device_write_bytes,
        // Header of 32 bytes, and what rounding to 16 takes.
        written: Written::by(&engine, (loaded.record_bytes() + 32).next_multiple_of(16)),
    })?;
    Ok(engine.close()?)
}

/// Sets a flag when it is dropped, on whatever way, unless it was told not to.
struct Alarm<'a>(Option<&'a AtomicBool>);

impl Alarm<'_> {
    fn all_is_well(mut self) {
        self.0 = None;
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if let Some(failed) = self.0 {
            failed.store(true, Ordering::Relaxed);
        }
    }
}

/// Does work in so many threads, watching meanwhile. If one of them or the watch fails, `failed` is
/// set, by which the others end.
fn in_threads<T: Send>(
    count: usize,
    failed: &AtomicBool,
    mut watch: impl FnMut() -> Result<()>,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let work = &work;
    std::thread::scope(|scope| {
        let alarm = Alarm(Some(failed));
        let threads: Vec<_> = (0..count)
            .map(|thread| {
                scope.spawn(move || {
                    let alarm = Alarm(Some(failed));
                    let done = work(thread)?;
                    alarm.all_is_well();
                    anyhow::Ok(done)
                })
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            watch()?;
        }
        alarm.all_is_well();
        let joined = threads.into_iter().enumerate().map(|(number, thread)| {
            let done = thread.join().map_err(|_| anyhow!("thread {number} panicked"))?;
            done.with_context(|| format!("thread {number}"))
        });
        joined.collect()
    })
}

/// Overwrites until it is over; acknowledgements by bin of time.
fn overwrite(
    loaded: &Loaded<'_>,
    limits: &Limits,
    thread: usize,
    shared: &Shared,
) -> Result<Vec<u64>> {
    let mut rng = generator(Stream::Window, thread);
    let draws = Draws::uniform(loaded.records)?;
    let mut bins = Vec::new();
    let mut waiting = 0;
    let mut lsn = None;
    let mut is_over = false;
    while !is_over {
        let number = shared.started.fetch_add(1, Ordering::Relaxed);
        is_over = limits.writes.is_some_and(|limit| number >= limit)
            || shared.failed.load(Ordering::Relaxed);
        if !is_over {
            let written = update(loaded, limits, draws.draw(&mut rng), number, shared)?;
            is_over = written.is_none();
            waiting += u64::from(!is_over);
            lsn = written.or(lsn);
        }
        if let Some(last) = lsn
            && (is_over || waiting >= limits.writes_per_wait.max(1))
        {
            loaded.engine.wait_durable(last)?;
            shared.done.fetch_add(waiting, Ordering::Relaxed);
            let bin = bin_of(shared.began.elapsed());
            if bins.len() <= bin {
                bins.resize(bin + 1, 0);
            }
            bins[bin] += std::mem::take(&mut waiting);
        }
    }
    Ok(bins)
}

/// Updates a record, as often as it takes; none once the time is up.
fn update(
    loaded: &Loaded<'_>,
    limits: &Limits,
    record: u64,
    number: u64,
    shared: &Shared,
) -> Result<Option<Lsn>> {
    let is_up = || {
        limits.seconds.is_some_and(|most| shared.began.elapsed().as_secs_f64() >= most)
            || shared.failed.load(Ordering::Relaxed)
    };
    while !is_up() {
        match loaded.start_update(record, number) {
            Ok(lsn) => return Ok(Some(lsn)),
            Err(error) if is_refusal(&error) => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(AFTER_REFUSAL);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn is_refusal(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::DiskFull)
}

fn bin_of(time: Duration) -> usize {
    (time.as_millis() * u128::from(BINS_PER_SECOND) / 1000) as usize
}

fn add(all: &mut Vec<u64>, bins: &[u64]) {
    if all.len() < bins.len() {
        all.resize(bins.len(), 0);
    }
    for (sum, &count) in all.iter_mut().zip(bins) {
        *sum += count;
    }
}

/// The bins up to the end: the time after the last acknowledgement is a gap as well.
fn whole(mut bins: Vec<u64>, seconds: f64) -> Vec<u64> {
    bins.resize(bins.len().max(bin_of(Duration::from_secs_f64(seconds))), 0);
    bins
}

fn progress(limits: &Limits) -> Progress {
    match (limits.writes, limits.seconds) {
        (Some(writes), _) => Progress::new("overwriting (writes)", writes),
        (None, seconds) => Progress::new("overwriting (seconds)", seconds.unwrap_or(0.0) as u64),
    }
}

/// Bytes that the kernel charges to this process: for a page of a file when it becomes dirty, even
/// through a mapping, less those of pages that were dropped before they were written.
fn process_write_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io").context("read /proc/self/io")?;
    parse_io(&text).context("/proc/self/io has no write_bytes")
}

fn parse_io(text: &str) -> Option<u64> {
    let field = |name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    Some(field("write_bytes:")?.saturating_sub(field("cancelled_write_bytes:").unwrap_or(0)))
}

/// What the file system has allocated to everything below `dir`. Files may go meanwhile.
fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) if found.is_dir() => bytes += disk_bytes(&entry.path())?,
            Ok(found) => bytes += 512 * found.blocks(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(format!("look at {}", entry.path().display())),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_fails_ends_the_others() {
        for panics in [false, true] {
            let failed = AtomicBool::new(false);
            let began = Instant::now();
            let work = |thread| {
                if thread == 1 {
                    assert!(!panics, "on purpose");
                    return Err(anyhow!("the disk is gone"));
                }
                while !failed.load(Ordering::Relaxed) {
                    assert!(began.elapsed() < Duration::from_secs(20), "nobody was told");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            };
            let watch = || {
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            };
            let error = in_threads(3, &failed, watch, work).unwrap_err();
            assert!(format!("{error:#}").contains("thread 1"), "{error:#}");
        }
        // So does the watch.
        let failed = AtomicBool::new(false);
        let work = |_| {
            while !failed.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(())
        };
        assert!(in_threads(2, &failed, || Err(anyhow!("no directory")), work).is_err());
        let failed = AtomicBool::new(false);
        assert_eq!(in_threads(2, &failed, || Ok(()), Ok).unwrap(), [0, 1]);
        assert!(!failed.into_inner());
    }

    #[test]
    fn what_the_kernel_charges() {
        let text = "rchar: 1\nwchar: 2\nread_bytes: 3\nwrite_bytes: 8192\n\
                    cancelled_write_bytes: 4096\n";
        assert_eq!(parse_io(text), Some(4096));
        assert_eq!(parse_io("write_bytes: 7\n"), Some(7));
        assert_eq!(parse_io("cancelled_write_bytes: 7\n"), None);
    }

    #[test]
    fn the_time_after_the_last_acknowledgement_is_a_gap() {
        let mut all = Vec::new();
        add(&mut all, &[1, 0, 2]);
        add(&mut all, &[0, 0, 1, 5]);
        assert_eq!(all, [1, 0, 3, 5]);
        assert_eq!(whole(all, 0.06), [1, 0, 3, 5, 0, 0]);
    }

    #[test]
    fn allocated_blocks_count_and_holes_do_not() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("dir");
        fs::create_dir(dir.path().join("inner")).expect("mkdir");
        let file = fs::File::create(dir.path().join("inner/hole")).expect("create");
        file.set_len(1 << 30).expect("hole");
        fs::write(dir.path().join("full"), vec![1; 1 << 16]).expect("write");
        fs::File::open(dir.path().join("full")).expect("open").sync_all().expect("sync");
        let bytes = disk_bytes(dir.path()).expect("bytes");
        assert!(((1 << 16)..(1 << 20)).contains(&bytes), "{bytes}");
    }
}
