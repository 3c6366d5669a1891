//! Writing many pairs to an engine, as fast as batches go.
//!
//! Invariant: everything is durable when a function returns.

use anyhow::Result;
use vmemkv_engine::{Engine, MAX_BATCH_OPERATIONS, Operation, ScanOptions};

/// Bytes of keys and values of one batch.
const BATCH_BYTES: usize = 1 << 20;

/// Writes all pairs; `done` hears how many were written so far.
pub(crate) fn write(
    engine: &Engine,
    pairs: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    mut done: impl FnMut(u64),
) -> Result<()> {
    let mut batch = Vec::new();
    let (mut bytes, mut written, mut lsn) = (0, 0, None);
    let mut pairs = pairs.peekable();
    while let Some((key, value)) = pairs.next() {
        bytes += key.len() + value.len();
        batch.push(Operation::Put { key, value });
        if bytes >= BATCH_BYTES || batch.len() == MAX_BATCH_OPERATIONS || pairs.peek().is_none() {
            lsn = Some(engine.write_batch(&batch)?);
            written += batch.len() as u64;
            done(written);
            batch.clear();
            bytes = 0;
        }
    }
    lsn.map_or(Ok(()), |lsn| Ok(engine.wait_durable(lsn)?))
}

/// Counts the keys by a scan.
pub(crate) fn count(engine: &Engine) -> Result<u64> {
    let mut options = ScanOptions { keys_only: true, ..ScanOptions::default() };
    let mut keys = 0;
    loop {
        let chunk = engine.scan(&options)?;
        keys += chunk.entries.len() as u64;
        if chunk.done {
            return Ok(keys);
        }
        options.range.start = chunk.covered_to;
    }
}

/// Waits until the background jobs have nothing to do, or for `seconds`; false if they still had.
pub(crate) fn wait_until_idle(engine: &Engine, seconds: u64) -> bool {
    const LOOKS_A_SECOND: u64 = 4;
    /// So many looks in a row must see the same.
    const SAME: u32 = 8;
    let look = || {
        let stats = engine.stats();
        let counters = stats.counters;
        (counters.reorganizes, counters.checkpoints, stats.index, stats.value_log)
    };
    let (mut last, mut same) = (look(), 0);
    for _ in 0..seconds * LOOKS_A_SECOND {
        std::thread::sleep(std::time::Duration::from_millis(1000 / LOOKS_A_SECOND));
        let now = look();
        same = if now == last { same + 1 } else { 0 };
        if same == SAME {
            return true;
        }
        last = now;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmemkv_engine::Options;

    #[test]
    fn every_pair_is_written_and_the_engine_comes_to_rest() {
        let dir = tempfile::tempdir().expect("dir");
        let engine = Engine::open(dir.path().join("data"), Options::for_tests()).expect("open");
        let pairs = (0..10_000u32).map(|i| (i.to_le_bytes().to_vec(), vec![1; 500]));
        let mut last = 0;
        write(&engine, pairs, |done| last = done).expect("write");
        assert_eq!((last, count(&engine).expect("count")), (10_000, 10_000));
        assert_eq!(engine.get(&9_999u32.to_le_bytes()).expect("get").map(|v| v.len()), Some(500));
        assert_eq!(engine.stats().wal.durable_lsn, engine.stats().wal.appended_lsn);
        write(&engine, std::iter::empty(), |_| ()).expect("nothing");
        assert!(wait_until_idle(&engine, 10));
    }
}
