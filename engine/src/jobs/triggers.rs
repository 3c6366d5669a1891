//! When background work is due: pure functions of sizes.
//!
//! Invariant: no clock, no I/O, no state.

/// An append region is merged when it is half full, so that writers meet its end only when they
/// outrun the merge.
pub(crate) fn reorganize_is_due(entries: usize, capacity: usize) -> bool {
    entries * 2 >= capacity
}

/// A checkpoint is due when replay would read more than `limit_bytes` of log, or write more than
/// that to the value log.
pub(crate) fn checkpoint_is_due(log_bytes: u64, tail_bytes: u64, limit_bytes: u64) -> bool {
    log_bytes.max(tail_bytes) > limit_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_at_the_limits_and_not_before() {
        assert!(!reorganize_is_due(49, 100));
        assert!(reorganize_is_due(50, 100));
        assert!(!checkpoint_is_due(100, 100, 100));
        assert!(checkpoint_is_due(101, 0, 100));
        assert!(checkpoint_is_due(0, 101, 100));
    }
}
