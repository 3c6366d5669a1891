//! An engine at rest gives the memory back that it needs no more. Alone in its file: it looks at
//! the memory of the whole process.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use vmemkv_engine::{Condition, Engine, Options};

const MIB: u64 = 1 << 20;

/// Resident anonymous memory of this process in bytes.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Waits until at most `most` bytes are resident.
fn wait_for(most: u64, what: &str) {
    let until = Instant::now() + Duration::from_secs(60);
    while anonymous() > most {
        let now = anonymous() / MIB;
        assert!(Instant::now() < until, "{what}: {now} MiB are resident, not {}", most / MIB);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_ring_and_free_memory_go_back_when_the_engine_rests() {
    let dir = tempfile::tempdir().unwrap();
    // One segment holds all that the ring does.
    let options = Options {
        background: true,
        wal_segment_bytes: 64 << 20,
        write_once_bytes: usize::MAX,
        ..Options::for_tests()
    };
    let engine = Engine::open(dir.path().join("data"), options).unwrap();

    let before = anonymous();
    let value = vec![1; 1 << 20];
    for number in 0..24_u32 {
        engine.put(&number.to_le_bytes(), &value, &Condition::None).unwrap();
    }
    assert!(anonymous() >= before + 20 * MIB, "the ring is not touched");
    wait_for(before + 12 * MIB, "the ring");

    let before = anonymous();
    // Free, but below what is still in use: the allocator keeps it.
    let mut pieces: Vec<Vec<u8>> = (0..64 << 10).map(|_| vec![1; 1000]).collect();
    let last = pieces.pop();
    drop(pieces);
    assert!(anonymous() >= before + 50 * MIB, "the allocator gave it back on its own");
    engine.checkpoint().unwrap();
    wait_for(before + 16 * MIB, "free memory");
    drop(last);
    engine.close().unwrap();
}
