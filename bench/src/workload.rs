//! The words of the matrix: scenarios, workloads and flavours, and what follows from each.
//!
//! Invariant: the names on the command line and in the output are the same.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How large values are, and whether they fit in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Scenario {
    /// 8-byte values, in memory.
    #[value(name = "8b-mem")]
    Mem8B,
    /// 1 KiB values, in memory.
    #[value(name = "1kb-mem")]
    Mem1Kb,
    /// 1 KiB values, larger than memory.
    #[value(name = "1kb-ltm")]
    Ltm1Kb,
    /// 64 KiB values, larger than memory.
    #[value(name = "64kb-ltm")]
    Ltm64Kb,
}

impl Scenario {
    /// The size of a full value.
    pub(crate) fn value_bytes(self) -> usize {
        match self {
            Self::Mem8B => 8,
            Self::Mem1Kb | Self::Ltm1Kb => 1 << 10,
            Self::Ltm64Kb => 64 << 10,
        }
    }

    /// Records unless the command line says otherwise.
    pub(crate) fn default_records(self) -> u64 {
        match self {
            Self::Mem8B => 4_000_000,
            Self::Mem1Kb => 2_000_000,
            Self::Ltm1Kb => 4_129_776,
            Self::Ltm64Kb => 65_520,
        }
    }

    /// Whether the measured process runs under a memory limit.
    pub(crate) fn is_larger_than_memory(self) -> bool {
        matches!(self, Self::Ltm1Kb | Self::Ltm64Kb)
    }
}

/// What is done to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Workload {
    /// New keys, sequential ids split between the threads; put if absent.
    Insert,
    /// Existing keys, Zipf, full values; fails if absent.
    UpdateZipf,
    /// Existing keys in order, split between the threads; fails if absent.
    Delete,
    /// Keys of the same shape that do not exist.
    GetMiss,
    /// Existing keys, Zipf.
    GetHitZipf,
    /// Existing keys, uniform.
    GetHitUniform,
    /// 100 entries from a Zipf start.
    ScanZipf,
    /// 100 entries from a uniform start.
    ScanUniform,
    /// 95 % scans of 100 (Zipf), 5 % inserts, with forced background jobs.
    YcsbE,
}

impl Workload {
    /// The length of the timed window unless the command line says otherwise.
    pub(crate) fn default_seconds(self) -> f64 {
        if self == Self::YcsbE { 30.0 } else { 5.0 }
    }

    /// Whether it only reads, and so warms up first.
    pub(crate) fn only_reads(self) -> bool {
        self.is_get() || self.is_scan()
    }

    /// Whether it is a point read.
    pub(crate) fn is_get(self) -> bool {
        matches!(self, Self::GetMiss | Self::GetHitZipf | Self::GetHitUniform)
    }

    /// Whether it is a scan and nothing else.
    pub(crate) fn is_scan(self) -> bool {
        matches!(self, Self::ScanZipf | Self::ScanUniform)
    }

    /// Whether draws are Zipf distributed.
    pub(crate) fn is_zipf(self) -> bool {
        matches!(
            self,
            Self::UpdateZipf | Self::GetMiss | Self::GetHitZipf | Self::ScanZipf | Self::YcsbE
        )
    }
}

/// Two versions of the matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Flavour {
    /// As the seeds' harness has it.
    Seed,
    /// As users have it.
    Field,
}

/// How a value is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Touch {
    /// One word of each cache line.
    Line,
    /// Every byte, as the seeds' harness does.
    Bytes,
}

impl Touch {
    /// Reads `value`; the sum keeps the compiler from leaving it out.
    #[inline]
    pub(crate) fn read(self, value: &[u8]) -> u64 {
        match self {
            Self::Bytes => value
                .iter()
                .fold(0u64, |sum, &byte| sum.wrapping_mul(131).wrapping_add(u64::from(byte))),
            Self::Line => {
                let word = |line: &[u8]| match line.first_chunk::<8>() {
                    Some(word) => u64::from_le_bytes(*word),
                    None => line.iter().fold(0, |sum, &byte| (sum << 8) | u64::from(byte)),
                };
                value.chunks(64).fold(0u64, |sum, line| sum.wrapping_add(word(line)))
            }
        }
    }
}

/// Entries of one scan.
pub(crate) const SCAN_ENTRIES: usize = 100;

/// Fewer records make no sense of the draws.
pub(crate) const MIN_RECORDS: u64 = 1000;

/// One cell of the matrix, without the store.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// Value size and memory.
    pub(crate) scenario: Scenario,
    /// What is done.
    pub(crate) workload: Workload,
    /// Which matrix.
    pub(crate) flavour: Flavour,
    /// Threads that issue operations.
    pub(crate) threads: usize,
    /// Records of the corpus.
    pub(crate) records: u64,
    /// The timed window.
    pub(crate) seconds: f64,
    /// How values are read.
    pub(crate) touch: Touch,
}

impl Cell {
    /// Records in the store before the window. The seeds measure inserts in memory on an empty
    /// store.
    pub(crate) fn loaded_records(&self) -> u64 {
        let empty = self.workload == Workload::Insert
            && self.flavour == Flavour::Seed
            && !self.scenario.is_larger_than_memory();
        if empty { 0 } else { self.records }
    }

    /// Whether the store is scanned after updates and deletes.
    pub(crate) fn is_aged(&self) -> bool {
        self.flavour == Flavour::Field && self.workload.is_scan()
    }

    /// Whether the corpus stays as it was loaded.
    pub(crate) fn leaves_corpus(&self) -> bool {
        self.workload.only_reads() && !self.is_aged()
    }
}

/// The name of a value on the command line.
pub(crate) fn name<T: ValueEnum + Copy>(value: T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_matrix() {
        let scenarios: Vec<_> = Scenario::value_variants().iter().map(|&s| name(s)).collect();
        assert_eq!(scenarios, ["8b-mem", "1kb-mem", "1kb-ltm", "64kb-ltm"]);
        let workloads: Vec<_> = Workload::value_variants().iter().map(|&w| name(w)).collect();
        let expected = "insert update-zipf delete get-miss get-hit-zipf get-hit-uniform scan-zipf \
                        scan-uniform ycsb-e";
        assert_eq!(workloads.join(" "), expected);
    }

    #[test]
    fn touch_reads_short_values_and_tails() {
        assert_eq!(Touch::Line.read(b""), 0);
        assert_eq!(Touch::Line.read(&[1]), 1);
        let mut value = vec![0u8; 130];
        value[128] = 1;
        value[129] = 2;
        assert_eq!(Touch::Line.read(&value), 0x0102);
        assert_eq!(Touch::Bytes.read(&[1, 2]), 133);
    }
}
