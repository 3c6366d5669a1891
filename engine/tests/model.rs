//! The engine against a `BTreeMap`: 100,000 random operations with reopen, kill and power cut, in
//! default and in baseline options.
//!
//! Invariant under test: what was acknowledged is there after any crash, and what is there is a
//! prefix of what was written. A failure prints the seed; `VMEMKV_MODEL_SEED` runs one again.

mod harness;

use harness::Run;
use vmemkv_engine::Options;

/// Value segments as small as may be, so that defragment has some to empty.
fn small() -> Options {
    Options { value_segment_bytes: (8 << 20) + (16 << 10), ..Options::for_tests() }
}

fn run(name: &str, options: &Options, operations: usize) {
    let seed = std::env::var("VMEMKV_MODEL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64 & 0xffff_ffff)
    });
    println!("{name}: VMEMKV_MODEL_SEED={seed}");
    Run::new(seed, options.clone()).run(operations);
}

#[test]
fn default_options_match_the_model() {
    run("default", &small(), 100_000);
}

#[test]
fn baseline_options_match_the_model() {
    run("baseline", &Options { bloom: false, inline: false, ..small() }, 100_000);
}

#[test]
fn many_shards_and_background_jobs_match_the_model() {
    let boundaries = ["d", "k/", "k/0005", "k/0005\0", "p"];
    let boundaries = boundaries.iter().map(|key| key.as_bytes().to_vec()).collect();
    let options = Options {
        sharding: vmemkv_engine::Sharding::Alone { boundaries },
        background: true,
        shard_max_entries: 150,
        shard_merge_after: std::time::Duration::ZERO,
        ..small()
    };
    run("shards", &options, 30_000);
}
