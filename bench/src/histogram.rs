//! Latencies of a window and their quantiles.
//!
//! Invariant: three significant digits from a nanosecond to ten minutes; a longer one counts as
//! ten minutes.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

const LONGEST_NS: u64 = 600_000_000_000;

/// A histogram of latencies.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// An empty one.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1, LONGEST_NS, 3)?))
    }

    /// Counts one latency.
    #[inline]
    pub(crate) fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(LONGEST_NS);
        self.0.saturating_record(nanoseconds.max(1));
    }

    /// Adds those of another thread.
    pub(crate) fn add(&mut self, other: &Latencies) -> Result<()> {
        Ok(self.0.add(&other.0)?)
    }

    /// How many were counted.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// A quantile (0.5 is the median) in microseconds; 0 when nothing was counted.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        if self.0.is_empty() {
            return 0.0;
        }
        self.0.value_at_quantile(quantile) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_known_set() {
        let mut latencies = Latencies::new().expect("histogram");
        for microseconds in 1..=1000 {
            latencies.record(Duration::from_micros(microseconds));
        }
        for (quantile, expected) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0)] {
            let found = latencies.quantile_us(quantile);
            assert!((found - expected).abs() <= expected * 0.002, "{quantile}: {found}");
        }
        assert_eq!(latencies.count(), 1000);
    }

    #[test]
    fn threads_add_up() {
        let (mut a, mut b) = (Latencies::new().expect("a"), Latencies::new().expect("b"));
        a.record(Duration::from_micros(1));
        b.record(Duration::from_micros(9));
        a.add(&b).expect("add");
        assert_eq!(a.count(), 2);
        assert!(a.quantile_us(1.0) >= 9.0);
    }

    #[test]
    fn an_empty_or_an_endless_one_does_not_fail() {
        let mut latencies = Latencies::new().expect("histogram");
        assert_eq!(latencies.quantile_us(0.99), 0.0);
        latencies.record(Duration::from_secs(100_000));
        latencies.record(Duration::ZERO);
        assert_eq!(latencies.count(), 2);
    }
}
