//! What was attempted, acknowledged and shown of each key, in a file that outlives the process
//! that wrote it.
//!
//! Invariants: numbers are stored in the file before (attempts) or after (the rest) the operation
//! they speak of, by plain writes, which a kill of the process does not take back; so after a kill
//! what is in the file is true. The file lies outside of the data directory and is never synced: it
//! is no witness of power cuts.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};

use super::keys::Keys;

/// Numbers that are no key's: operations, changes that were followed, and how often a follower
/// had to begin anew.
const TOTALS: usize = 3;
/// Numbers of one key: attempted, acknowledged, shown.
const PER_KEY: usize = 3;
const ATTEMPTED: usize = 0;
const ACKNOWLEDGED: usize = 1;
const SHOWN: usize = 2;

/// What may be found of a key: one of these writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Allowed {
    /// The last write that was acknowledged, or shown to a reader.
    pub(super) least: u64,
    /// The last write that was attempted.
    pub(super) most: u64,
}

/// The numbers of all keys, behind the totals.
pub(super) struct Ledger {
    file: File,
    numbers: Vec<AtomicU64>,
}

impl Ledger {
    /// Opens the file, or makes one for new keys.
    pub(super) fn open(path: &Path, keys: &Keys) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        let count = TOTALS + PER_KEY * keys.count();
        file.set_len(8 * count as u64)?;
        let mut bytes = vec![0; 8 * count];
        file.read_exact_at(&mut bytes, 0)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(Self { file, numbers: words.iter().map(|w| u64::from_le_bytes(*w).into()).collect() })
    }

    /// A write is about to be tried.
    pub(super) fn attempt(&self, key: usize, n: u64) -> Result<()> {
        self.set(TOTALS + PER_KEY * key + ATTEMPTED, n)
    }

    /// A write was acknowledged.
    pub(super) fn acknowledge(&self, key: usize, n: u64) -> Result<()> {
        self.set(TOTALS + PER_KEY * key + ACKNOWLEDGED, n)
    }

    /// A write was shown to a reader, acknowledged or not.
    pub(super) fn show(&self, key: usize, n: u64) -> Result<()> {
        let at = TOTALS + PER_KEY * key + SHOWN;
        if self.numbers[at].fetch_max(n, Ordering::SeqCst) >= n {
            return Ok(());
        }
        // Two readers may store in the wrong order; then less is known than could be.
        Ok(self.file.write_all_at(&n.to_le_bytes(), 8 * at as u64)?)
    }

    fn set(&self, at: usize, n: u64) -> Result<()> {
        self.numbers[at].store(n, Ordering::SeqCst);
        Ok(self.file.write_all_at(&n.to_le_bytes(), 8 * at as u64)?)
    }

    /// The last write that was attempted.
    pub(super) fn attempted(&self, key: usize) -> u64 {
        self.numbers[TOTALS + PER_KEY * key + ATTEMPTED].load(Ordering::SeqCst)
    }

    /// The last write known to be there for good.
    pub(super) fn known(&self, key: usize) -> u64 {
        let acknowledged =
            self.numbers[TOTALS + PER_KEY * key + ACKNOWLEDGED].load(Ordering::SeqCst);
        acknowledged.max(self.numbers[TOTALS + PER_KEY * key + SHOWN].load(Ordering::SeqCst))
    }

    /// What may be found now, when nobody writes.
    pub(super) fn allowed(&self, key: usize) -> Allowed {
        Allowed { least: self.known(key), most: self.attempted(key) }
    }

    /// After a restart: what was found is there for good.
    pub(super) fn settle(&self, key: usize, n: u64) -> Result<()> {
        self.acknowledge(key, n)
    }

    /// Adds to operations, changes and resyncs, and says what they sum up to.
    pub(super) fn count(&self, more: [u64; TOTALS]) -> Result<[u64; TOTALS]> {
        let mut sums = [0; TOTALS];
        for (at, more) in more.into_iter().enumerate() {
            sums[at] = self.numbers[at].fetch_add(more, Ordering::SeqCst) + more;
            if more > 0 {
                self.file.write_all_at(&sums[at].to_le_bytes(), 8 * at as u64)?;
            }
        }
        Ok(sums)
    }

    /// Sum of the acknowledged writes of all keys.
    pub(super) fn acknowledged(&self) -> u64 {
        let acknowledged = self.numbers[TOTALS..].iter().skip(ACKNOWLEDGED).step_by(PER_KEY);
        acknowledged.map(|n| n.load(Ordering::SeqCst)).sum()
    }
}
