//! The time that leases are counted in.
//!
//! Invariants: it never goes back, and it goes on while the machine is suspended, so that a lease
//! cannot outlive a pause; wall-clock time plays no part.

use std::time::Duration;

/// A clock that counts from an arbitrary moment.
pub(crate) trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Duration;
}

/// `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

/// A clock that tests move by hand.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct ManualClock(std::sync::atomic::AtomicU64);

#[cfg(test)]
impl ManualClock {
    /// Moves it forward.
    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_millis() as u64, std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(test)]
impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(std::sync::atomic::Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_goes_forward() {
        let first = BootClock.now();
        assert!(first > Duration::ZERO);
        assert!(BootClock.now() >= first);
    }
}
