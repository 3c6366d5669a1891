//! Which shards a checkpoint writes whole, and of which only what changed.
//!
//! Invariants: pure functions of sizes; what a checkpoint chooses to rewrite beyond the deltas
//! costs at most the log's bytes since the last one plus [`SPARE_BYTES`]; a chain never gets
//! longer than [`MAX_FILES`] files, budget or not.

use super::chain::Chain;

/// A chain of this many files is rewritten when the budget allows it.
const MANY_FILES: usize = 32;
/// A chain of this many files is rewritten in any case.
const MAX_FILES: usize = 96;
/// What a checkpoint may rewrite even if hardly anything was logged, in bytes.
const SPARE_BYTES: u64 = 64 << 20;
/// What an entry is taken to need in a file while there is none to measure, in bytes.
const ENTRY_BYTES: u64 = 32;
/// About what a file needs without entries, in bytes.
const FILE_BYTES: u64 = 200;

/// How a shard is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Every entry, into the first file of a new chain.
    Whole,
    /// What changed, into one more file of its chain.
    Delta,
}

/// A shard that is to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Candidate {
    /// Files of its chain.
    files: usize,
    /// There is no chain, or what changed since is not known.
    must: bool,
    /// What a whole file would have, in bytes.
    whole_bytes: u64,
    /// What this delta would have, in bytes.
    delta_bytes: u64,
    /// What all deltas would have together, this one included.
    all_delta_bytes: u64,
}

impl Candidate {
    /// A shard with this chain, so many entries, and so many of them changed since its last file.
    pub(crate) fn new(chain: &Chain, entries: u64, changed: u64) -> Self {
        let measured = chain.whole().filter(|whole| whole.entries > 0);
        let bytes = |count: u64| {
            let (bytes, entries) = measured.map_or((ENTRY_BYTES, 1), |w| (w.bytes, w.entries));
            let needed = u128::from(count) * u128::from(bytes) / u128::from(entries);
            u64::try_from(needed).unwrap_or(u64::MAX).saturating_add(FILE_BYTES)
        };
        let delta_bytes = bytes(changed);
        Self {
            files: chain.files.len(),
            must: chain.files.is_empty() || chain.rewrite || chain.files.len() >= MAX_FILES,
            whole_bytes: bytes(entries),
            delta_bytes,
            all_delta_bytes: chain.delta_bytes().saturating_add(delta_bytes),
        }
    }

    /// Whether reading the chain back costs half as much again as a whole file would.
    fn wants(&self) -> bool {
        self.files >= MANY_FILES || self.all_delta_bytes.saturating_mul(2) > self.whole_bytes
    }

    /// What a whole file costs more than a delta.
    fn extra(&self) -> u64 {
        self.whole_bytes.saturating_sub(self.delta_bytes)
    }
}

/// Decides for each shard; `log_bytes` is the log's length since the last checkpoint.
pub(crate) fn choose(shards: &[Candidate], log_bytes: u64) -> Vec<Part> {
    let mut parts: Vec<Part> =
        shards.iter().map(|s| if s.must { Part::Whole } else { Part::Delta }).collect();
    let needed = shards.iter().map(|s| if s.must { s.whole_bytes } else { s.delta_bytes });
    let needed = needed.fold(0, u64::saturating_add);
    let mut budget = log_bytes.saturating_add(SPARE_BYTES).saturating_sub(needed);
    let mut wanted: Vec<usize> =
        (0..shards.len()).filter(|&at| !shards[at].must && shards[at].wants()).collect();
    // The longest first, so that each gets its turn; then those with the most to gain.
    wanted.sort_by_key(|&at| {
        let Candidate { files, all_delta_bytes, .. } = shards[at];
        std::cmp::Reverse((files, all_delta_bytes))
    });
    for at in wanted {
        if let Some(left) = budget.checked_sub(shards[at].extra()) {
            budget = left;
            parts[at] = Part::Whole;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::chain::IndexFile;
    use crate::types::CheckpointId;

    const MIB: u64 = 1 << 20;

    /// A chain of a whole file of as many entries of 32 bytes, and deltas of these bytes.
    fn chain(entries: u64, deltas: &[u64]) -> Chain {
        let whole = IndexFile { attempt: CheckpointId(1), bytes: 32 * entries, entries };
        let deltas = (2..).zip(deltas).map(|(attempt, &bytes)| IndexFile {
            attempt: CheckpointId(attempt),
            bytes,
            entries: bytes / 32,
        });
        Chain::new(std::iter::once(whole).chain(deltas).collect())
    }

    fn one(chain: &Chain, entries: u64, changed: u64, log_bytes: u64) -> Part {
        choose(&[Candidate::new(chain, entries, changed)], log_bytes)[0]
    }

    #[test]
    fn what_has_no_usable_chain_is_written_whole() {
        assert_eq!(one(&Chain::default(), 0, 0, 0), Part::Whole);
        assert_eq!(one(&Chain::default(), 1 << 40, 1, 0), Part::Whole);
        let unknown = Chain { rewrite: true, ..chain(1 << 30, &[]) };
        assert_eq!(one(&unknown, 1 << 30, 1, 0), Part::Whole);
    }

    #[test]
    fn a_small_change_is_a_delta_and_half_is_a_whole_file() {
        let chain = chain(1_000_000, &[]);
        let rich = |entries, changed| one(&chain, entries, changed, u64::MAX);
        assert_eq!(rich(1_000_000, 10_000), Part::Delta);
        assert_eq!(rich(1_000_000, 490_000), Part::Delta);
        assert_eq!(rich(1_000_000, 510_000), Part::Whole);
        // Growth counts for the whole file too.
        assert_eq!(rich(1_900_000, 900_000), Part::Delta);
        assert_eq!(rich(2_200_000, 1_200_000), Part::Whole);
    }

    #[test]
    fn a_long_chain_ends_when_the_budget_allows_it_and_at_the_limit_anyway() {
        let large = 10 * SPARE_BYTES / 32;
        let long = chain(large, &[1000; MANY_FILES - 1]);
        assert_eq!(one(&long, large, 10, 0), Part::Delta);
        assert_eq!(one(&long, large, 10, 9 * SPARE_BYTES), Part::Delta);
        assert_eq!(one(&long, large, 10, 9 * SPARE_BYTES + MIB), Part::Whole);
        assert_eq!(one(&chain(large, &[1000; MANY_FILES - 2]), large, 10, u64::MAX), Part::Delta);
        let longest = chain(large, &[1000; MAX_FILES - 1]);
        assert_eq!(one(&longest, large, 10, 0), Part::Whole);
    }

    /// Uniform updates of many shards, over many checkpoints: no one writes more than the log's
    /// bytes and the constant, no chain gets long, and what is read back stays in proportion.
    #[test]
    fn index_bytes_stay_within_the_log_and_a_constant() {
        const SHARDS: usize = 50;
        const ENTRIES: u64 = 200_000;
        for (changed, log_bytes) in [(100, MIB), (4000, 25 * MIB), (60_000, 500 * MIB)] {
            let mut chains: Vec<Chain> = (0..SHARDS).map(|_| chain(ENTRIES, &[])).collect();
            for attempt in 2..400 {
                let candidates: Vec<_> =
                    chains.iter().map(|chain| Candidate::new(chain, ENTRIES, changed)).collect();
                let parts = choose(&candidates, log_bytes);
                let mut written = 0;
                for (chain, part) in chains.iter_mut().zip(parts) {
                    let entries = if part == Part::Whole { ENTRIES } else { changed };
                    let bytes = 32 * entries;
                    let file = IndexFile { attempt: CheckpointId(attempt), bytes, entries };
                    written += bytes;
                    match part {
                        Part::Whole => *chain = Chain::new(vec![file]),
                        Part::Delta => chain.files.push(file),
                    }
                }
                assert!(written <= log_bytes + SPARE_BYTES, "{changed} changed: {written}");
                let worst = chains.iter().map(|chain| chain.files.len()).max();
                assert!(worst < Some(MAX_FILES), "{worst:?}");
                assert!(chains.iter().all(|c| c.delta_bytes() <= 2 * 32 * ENTRIES));
            }
        }
    }
}
