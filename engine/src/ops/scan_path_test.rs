//! Which jumps of scans are counted, on plain locations and on files that are not in memory.

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::api::{Condition, ScanOptions};
use crate::index::Slot;
use crate::io::OsDisk;
use crate::options::{Options, ReadPolicy};
use crate::recovery;

/// Coprime to the step that spreads the puts.
const KEYS: u64 = 16_001;

fn sampled(locations: impl Iterator<Item = Location>) -> u64 {
    let mut path = ScanPath::default();
    locations.map(|location| u64::from(path.samples(location))).sum()
}

#[test]
fn one_in_a_few_jumps_between_small_records_is_looked_at() {
    let apart = |len: u64| (0..64_000u64).map(move |n| Location::new(n * 12_345 * 16, len));
    let found = sampled(apart(1024));
    assert!((800..1200).contains(&found), "{found} of 1000");
    assert_eq!(sampled(apart(SMALL_BYTES + 16)), 0);
    // In either direction.
    let forward = || (0..64_000u64).map(|n| Location::new(n * 1024, 1024));
    assert_eq!(sampled(forward()), 0);
    let backward: Vec<Location> = forward().collect();
    assert_eq!(sampled(backward.into_iter().rev()), 0);
}

fn open(dir: &Path) -> Core {
    // Without read-ahead, which would bring all of a small file with the first few jumps.
    let options = Options { read_policy: ReadPolicy::Random, ..Options::for_tests() };
    recovery::open(Arc::new(OsDisk::new(dir)), options).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

/// All values go from memory; whether the file system does that.
fn evict(dir: &Path) {
    for file in std::fs::read_dir(dir.join("t2")).unwrap() {
        let file = std::fs::File::open(file.unwrap().path()).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// Scans all keys, in chunks; the jumps that were counted meanwhile.
fn scan(core: &Core, options: ScanOptions) -> u64 {
    let jumps = || core.store.counters.snapshot().scan_cold_jumps;
    let before = jumps();
    let mut options = ScanOptions { max_bytes: 100_000, ..options };
    let mut entries = 0;
    loop {
        let chunk = core.scan(&options).unwrap();
        entries += chunk.entries.len() as u64;
        if chunk.done {
            break;
        }
        if options.reverse {
            options.range.end = chunk.covered_to;
        } else {
            options.range.start = chunk.covered_to;
        }
    }
    assert_eq!(entries, KEYS);
    jumps() - before
}

#[test]
fn scans_count_their_jumps_only_while_they_wait_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let reopened = || {
        evict(dir.path());
        open(dir.path())
    };
    {
        let core = open(dir.path());
        for step in 0..KEYS {
            let number = step * 6_007 % KEYS;
            core.put(&key(number), &[7; 900], &Condition::None).unwrap();
        }
        core.checkpoint().unwrap();
        assert_eq!(scan(&core, ScanOptions::default()), 0, "all of it is in memory");
    }
    for reverse in [false, true] {
        let core = reopened();
        let keys = ScanOptions { keys_only: true, ..ScanOptions::default() };
        assert_eq!(scan(&core, keys), 0, "no value is read");
        let Some(Slot::Value(at)) = core.store.slot_of(&key(7)).unwrap() else { panic!() };
        if core.store.value_log.is_resident(Location(at)) {
            println!("this file system does not evict: the test shows nothing");
            return;
        }
        let cold = scan(&core, ScanOptions { reverse, ..ScanOptions::default() });
        // A page is cold for the first of its records only.
        assert!((KEYS / 8..KEYS / 2).contains(&cold), "{cold}");
        let table = core.store.table.load();
        let of_shards = table.shards().iter().map(|shard| shard.cold_scans.jumps());
        assert_eq!(of_shards.sum::<u64>(), cold);
        assert_eq!(scan(&core, ScanOptions { reverse, ..ScanOptions::default() }), 0, "warm");
    }
}
