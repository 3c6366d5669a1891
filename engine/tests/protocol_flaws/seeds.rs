//! Faults that the reports of other engines tell of, by their numbers in docs/durability.md.

use vmemkv_engine::{Engine, Options};

use crate::support::{fast_dir, put, watchdog};

/// S4: a checkpoint trigger that never fires with values of 64 KiB (it counted entries, and large
/// ones fill the disk before there are enough). Rule: bytes count, of the log and of the value log.
#[test]
fn s4_large_values_make_checkpoints_due() {
    watchdog("S4", 120, || {
        let dir = fast_dir();
        let limit = 1 << 20;
        let options =
            Options { background: true, checkpoint_wal_bytes: limit, ..Options::for_tests() };
        let engine = Engine::open(dir.path().join("data"), options).unwrap();
        for round in 1..4 {
            let before = engine.stats().counters.checkpoints;
            // Twice the limit, a few dozen entries.
            for i in 0..2 * limit / (64 << 10) {
                put(&engine, &i.to_le_bytes(), &[round; 64 << 10]);
            }
            while engine.stats().counters.checkpoints == before {
                std::thread::yield_now();
            }
        }
    });
}
