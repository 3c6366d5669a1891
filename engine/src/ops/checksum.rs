//! A checksum of a range that two copies can compare, however they are cut into shards.
//!
//! Invariant: equal sets of entries give equal checksums, in any order.

use xxhash_rust::xxh3::Xxh3;

use crate::api::{Checksum, ScanOptions};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::types::KeyRange;

impl Checksum {
    /// Adds an entry.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        let mut hasher = Xxh3::with_seed(0);
        hasher.update(&(key.len() as u32).to_le_bytes());
        hasher.update(key);
        hasher.update(value);
        self.checksum ^= hasher.digest();
        self.count += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }
}

impl Core {
    /// Checksum of a range; `cancelled` is asked between chunks.
    pub(crate) fn checksum(
        &self,
        range: &KeyRange,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Checksum> {
        let mut checksum = Checksum::default();
        let mut options = ScanOptions { range: range.clone(), ..ScanOptions::default() };
        loop {
            if cancelled() {
                return Err(Error::new(ErrorKind::Unavailable, "the checksum was cancelled"));
            }
            let chunk = self.scan(&options)?;
            for (key, value) in &chunk.entries {
                checksum.add(key, value);
            }
            if chunk.done {
                return Ok(checksum);
            }
            options.range.start = chunk.covered_to;
        }
    }
}
