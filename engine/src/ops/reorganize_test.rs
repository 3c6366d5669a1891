//! What makes a merge due, and writers slow, on a real shard whose jobs nobody does.

use std::sync::Arc;

use crate::api::{Condition, ScanOptions};
use crate::core::Core;
use crate::error::ErrorKind;
use crate::io::OsDisk;
use crate::jobs::triggers::Reorganize;
use crate::options::Options;
use crate::recovery;
use crate::stats::State;

struct Bench {
    core: Core,
    written: u32,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(OsDisk::new(dir.path().join("data")));
        Self { core: recovery::open(disk, options).unwrap(), written: 0, _dir: dir }
    }

    fn put(&mut self, keys: u32) {
        for key in self.written..self.written + keys {
            self.core.put(&key.to_le_bytes(), b"v", &Condition::None).unwrap();
        }
        self.written += keys;
    }

    fn append(&self) -> (usize, usize) {
        let table = self.core.store.table.load();
        let bundle = table.shards()[0].load();
        (bundle.active.len(), bundle.active.capacity())
    }

    fn due(&self) -> Option<Reorganize> {
        let shard = Arc::clone(&self.core.store.table.load().shards()[0]);
        self.core.reorganize_is_due(&shard.load())
    }
}

#[test]
fn a_scan_makes_a_merge_due_earlier() {
    let mut bench = Bench::new(Options { append_capacity: 1 << 17, ..Options::for_tests() });
    while bench.append().1 < 1 << 16 || bench.append().0 > 1 << 12 {
        bench.put(1 << 12);
    }
    bench.put((1 << 14) + (1 << 12));
    assert_eq!(bench.due(), None, "{:?}", bench.append());
    bench.core.scan(&ScanOptions { limit: 1, ..ScanOptions::default() }).unwrap();
    assert_eq!(bench.due(), Some(Reorganize::Scanned));
    bench.core.reorganize(None).unwrap();
    assert_eq!(bench.due(), None);
}

#[test]
fn writers_are_slowed_while_the_region_before_theirs_is_merged() {
    let mut bench = Bench::new(Options { background: true, ..Options::for_tests() });
    let slowed = |bench: &Bench| bench.core.store.counters.snapshot().slowed_append;
    let (_, capacity) = bench.append();
    bench.put(capacity as u32 - 1);
    assert_eq!(slowed(&bench), 0, "nothing to wait for");
    let shard = Arc::clone(&bench.core.store.table.load().shards()[0]);
    shard.freeze().unwrap();
    bench.core.stripes.pass();
    let (_, capacity) = bench.append();
    bench.put(capacity as u32 / 4 * 3);
    assert_eq!(slowed(&bench), 0);
    bench.put(20);
    assert_eq!(slowed(&bench), 20);
    // In place: takes no room.
    bench.core.put(&0u32.to_le_bytes(), b"w", &Condition::None).unwrap();
    let after_shadow = slowed(&bench);
    bench.core.put(&0u32.to_le_bytes(), b"x", &Condition::None).unwrap();
    assert_eq!(slowed(&bench), after_shadow);
    let merged = shard.merge_frozen(true, &|| ());
    shard.publish_merged(merged, true).unwrap();
    bench.put(20);
    assert_eq!(slowed(&bench), after_shadow);
}

#[test]
fn what_a_merge_may_come_to_counts_while_it_runs() {
    let mut bench = Bench::new(Options::for_tests());
    bench.put(5000);
    let shard = Arc::clone(&bench.core.store.table.load().shards()[0]);
    bench.core.reorganize(None).unwrap();
    bench.put(5000);
    shard.freeze().unwrap();
    bench.core.stripes.pass();
    let expected = shard.load().merge_bytes();
    let before = bench.core.recount_memory().memory_bytes;
    shard.publish_merged(shard.merge_frozen(true, &|| ()), true).unwrap();
    let grown = shard.load().sorted.memory_bytes();
    assert!(grown <= expected + before as usize, "{grown} of {expected} beside {before}");
    assert!(expected > 0);
}

#[test]
fn a_merge_under_way_may_fill_memory_for_a_while() {
    let mut bench =
        Bench::new(Options { memory_budget_bytes: Some(64 << 20), ..Options::for_tests() });
    bench.put(100);
    assert_eq!(bench.core.state(), State::Healthy);
    {
        let _merging = bench.core.memory.begin_merge(64 << 20);
        assert_eq!(bench.core.state(), State::MemoryFull);
        let refused = bench.core.put(b"new", b"v", &Condition::None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::MemoryFull);
        // The reservation was given back: as many entries as before find room.
        let room = bench.append();
        assert_eq!(room.0, 100);
    }
    assert_eq!(bench.core.state(), State::Healthy);
    bench.put(100);
}
