//! Disks for tests: one that crashes ([`CrashDisk`]), one that fails ([`FaultDisk`]).
//!
//! Always compiled, so that the tests of other crates can use them; nothing of the engine does.

mod crash_disk;
#[cfg(test)]
mod crash_disk_test;
mod crash_image;
mod crash_journal;
mod fault_disk;
#[cfg(test)]
mod fault_disk_test;
#[cfg(test)]
mod kill_test;

pub use crash_disk::CrashDisk;
pub use crash_image::{Keep, PowerCut};
pub use fault_disk::{Fault, FaultDisk, Operation};

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct SeededRandom(pub(crate) u64);

impl SeededRandom {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
