//! What differs from round to round: the engine's options and the jobs, drawn from the seed.
//!
//! Invariant: options of one round never make the directory of another unreadable.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use rand::{RngExt, rngs::StdRng};
use vmemkv_engine::{
    Continue, DefragmentOptions, Engine, ErrorKind, Options, ReadPolicy, Sharding,
};

/// Small limits, each drawn anew, so that every boundary is met within seconds.
pub(super) fn options(random: &mut StdRng) -> Options {
    let mut one_of = |values: &[u64]| values[random.random_range(0..values.len())];
    let wal_segment_bytes = one_of(&[16 << 10, 64 << 10, 1 << 20, 8 << 20]);
    let value_segment_bytes = one_of(&[(8 << 20) + (16 << 10), 12 << 20, 16 << 20]);
    let append_capacity = one_of(&[1 << 13, 1 << 14, 1 << 16]) as usize;
    let checkpoint_wal_bytes = one_of(&[256 << 10, 1 << 20, 16 << 20]);
    let shard_max_entries = one_of(&[40, 300, 256 << 10]);
    let shard_max_bytes = one_of(&[64 << 10, 1 << 20, 64 << 20]);
    // None: who follows the changes is soon behind what is kept.
    let wal_keep_bytes = one_of(&[0, 64 << 10, 1 << 20, 256 << 20]);
    let boundaries = match one_of(&[0, 1, 2]) {
        0 => Vec::new(),
        1 => vec![b"c".to_vec(), b"tenant/table/050".to_vec()],
        _ => (1..16u8).map(|n| vec![n * 16]).collect(),
    };
    let read_policy = match one_of(&[0, 0, 1, 2]) {
        0 => ReadPolicy::Adaptive,
        1 => ReadPolicy::Random,
        _ => ReadPolicy::Sequential,
    };
    Options {
        bloom: random.random_bool(0.7),
        inline: random.random_bool(0.7),
        read_policy,
        sharding: Sharding::Alone { boundaries },
        shard_max_entries,
        shard_max_bytes,
        wal_segment_bytes,
        wal_ring_bytes: 32 << 20,
        value_segment_bytes,
        value_log_max_bytes: 16 << 30,
        append_capacity,
        checkpoint_wal_bytes,
        wal_keep_bytes,
        background: random.random_bool(0.8),
        job_threads: random.random_range(1..3),
        ..Options::default()
    }
}

/// Calls for jobs, on top of those that the engine starts itself, until `stop`.
pub(super) fn jobs(engine: &Engine, mut random: StdRng, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
        let done = match random.random_range(0..5) {
            0 => engine.reorganize(None),
            1 => {
                let shards = engine.shards();
                let shard = shards[random.random_range(0..shards.len())].id;
                match engine.reorganize(Some(shard)) {
                    // Split or merged since the look.
                    Err(error) if error.kind() == ErrorKind::InvalidArgument => Ok(()),
                    other => other,
                }
            }
            // Now and then it is cancelled in the middle.
            2 => {
                let steps = std::cell::Cell::new(random.random_range(1..40));
                let control = |_| {
                    steps.set(steps.get() - 1);
                    let goes_on = steps.get() > 0 && !stop.load(Ordering::Relaxed);
                    if goes_on { Continue::Yes } else { Continue::No }
                };
                let options = DefragmentOptions { min_dead_ratio: 0.2, ..<_>::default() };
                if random.random_bool(0.3) {
                    engine.put_in_order(&options, &control).map(drop)
                } else {
                    engine.defragment(&options, &control).map(drop)
                }
            }
            3 => engine.verify(&|| stop.load(Ordering::Relaxed)).map(drop),
            _ => engine.checkpoint().map(drop),
        };
        match done {
            Err(error) if matches!(error.kind(), ErrorKind::DiskFull | ErrorKind::Unavailable) => {}
            other => other?,
        }
    }
    Ok(())
}
