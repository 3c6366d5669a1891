//! Which way a record is read. Pure.
//!
//! A record in memory is copied from the random-access mapping. One that is not is one `pread` of
//! just its bytes: an I/O error is then an error and not a signal, its checksum can be verified, and
//! a record of several pages costs one read. Scans of small base records go by the sequential
//! mapping without asking, for the read-ahead.

use super::placement::PAGE;
use crate::options::ReadPolicy;

/// What a read is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// One key.
    Point,
    /// One of many keys in order.
    Scan,
}

/// A way to a base record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadPath {
    RandomMapping,
    SequentialMapping,
    Pread,
}

/// The way to a base record of `allocated` bytes. `is_resident` may cost a system call.
pub(super) fn decide(
    policy: ReadPolicy,
    access: Access,
    allocated: u64,
    is_resident: impl FnOnce() -> bool,
) -> ReadPath {
    match (policy, access) {
        (ReadPolicy::Random, _) => ReadPath::RandomMapping,
        (ReadPolicy::Sequential, _) => ReadPath::SequentialMapping,
        (ReadPolicy::Adaptive, Access::Scan) if allocated <= 2 * PAGE => {
            ReadPath::SequentialMapping
        }
        (ReadPolicy::Adaptive, _) if is_resident() => ReadPath::RandomMapping,
        (ReadPolicy::Adaptive, _) => ReadPath::Pread,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_size_operation_and_residency() {
        use ReadPolicy::{Adaptive, Random, Sequential};
        let decide = |policy, access, len, resident| decide(policy, access, len, || resident);
        assert_eq!(decide(Adaptive, Access::Point, 100, true), ReadPath::RandomMapping);
        assert_eq!(decide(Adaptive, Access::Point, 100, false), ReadPath::Pread);
        assert_eq!(decide(Adaptive, Access::Scan, 1072, false), ReadPath::SequentialMapping);
        assert_eq!(decide(Adaptive, Access::Scan, 65_600, false), ReadPath::Pread);
        assert_eq!(decide(Adaptive, Access::Scan, 65_600, true), ReadPath::RandomMapping);
        assert_eq!(decide(Random, Access::Scan, 100, false), ReadPath::RandomMapping);
        assert_eq!(decide(Sequential, Access::Point, 100, false), ReadPath::SequentialMapping);
    }
}
