//! What every manifest satisfies, rule by rule; checked before one is written and after one is
//! read.
//!
//! Invariant: pure functions of the manifest.

use super::manifest::Manifest;

type Rule = fn(&Manifest) -> bool;

/// The first rule that does not hold, as a sentence.
pub(crate) fn check(manifest: &Manifest) -> Result<(), &'static str> {
    let rules: [(Rule, &str); 6] = [
        (log_positions_are_ordered, "checkpoint_lsn is above freeze_lsn"),
        (shards_are_ordered_and_disjoint, "shards overlap or are out of order"),
        (instances_are_unique, "an instance is named twice or is not below next_instance"),
        (segments_are_ordered_whole_pages, "segments are out of order or not whole pages"),
        (operations_have_one_outcome, "an operation has two outcomes, or the number 0"),
        (files_are_of_past_attempts, "T1 files are out of order or later than the manifest"),
    ];
    rules.iter().find(|(holds, _)| !holds(manifest)).map_or(Ok(()), |(_, broken)| Err(broken))
}

fn log_positions_are_ordered(manifest: &Manifest) -> bool {
    manifest.checkpoint_lsn <= manifest.freeze_lsn
}

fn shards_are_ordered_and_disjoint(manifest: &Manifest) -> bool {
    let ordered = manifest.shards.windows(2).all(|pair| {
        let end = &pair[0].range.end;
        !end.is_empty() && *end <= pair[1].range.start
    });
    ordered && manifest.shards.iter().all(|shard| !shard.range.is_empty())
}

fn instances_are_unique(manifest: &Manifest) -> bool {
    let mut instances: Vec<_> = manifest.shards.iter().map(|shard| shard.instance).collect();
    instances.sort_unstable();
    let below = instances.last().is_none_or(|last| *last < manifest.next_instance);
    below && instances.windows(2).all(|pair| pair[0] < pair[1])
}

fn operations_have_one_outcome(manifest: &Manifest) -> bool {
    let mut numbers: Vec<u64> = manifest.operations.iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    numbers.first() != Some(&0) && numbers.windows(2).all(|pair| pair[0] < pair[1])
}

fn segments_are_ordered_whole_pages(manifest: &Manifest) -> bool {
    let pages = manifest.segments.iter().all(|base| base.base_bytes.is_multiple_of(4096));
    pages && manifest.segments.windows(2).all(|pair| pair[0].segment < pair[1].segment)
}

fn files_are_of_past_attempts(manifest: &Manifest) -> bool {
    manifest.shards.iter().all(|shard| {
        let ascending = shard.files.windows(2).all(|pair| pair[0].attempt < pair[1].attempt);
        let first = shard.files.first().is_none_or(|file| file.attempt.0 > 0);
        let last = shard.files.last().is_none_or(|file| file.attempt <= manifest.checkpoint);
        ascending && first && last
    })
}
