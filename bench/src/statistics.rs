//! Pure arithmetic on measurements: medians, percentiles, losses, stalls.
//!
//! Invariants: no clock and no I/O; the answer is a finite number, or there is none.

/// The median, the mean of the middle two for an even count; none of nothing.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// The smallest value that at least `share` of all values do not exceed: never interpolated, so
/// the 99.9th percentile of fewer than 1000 values is their maximum. None of nothing.
pub(crate) fn percentile(sorted: &[u64], share: f64) -> Option<u64> {
    debug_assert!(sorted.is_sorted());
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// How much of `before` is lost at `during`, in percent; negative when it is faster. None when
/// nothing was done before.
pub(crate) fn loss_percent(before: f64, during: f64) -> Option<f64> {
    let loss = 100.0 * (1.0 - during / before);
    (before > 0.0 && loss.is_finite()).then_some(loss)
}

/// Operations in a time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Rate {
    /// Operations.
    pub(crate) operations: u64,
    /// Seconds.
    pub(crate) seconds: f64,
}

impl Rate {
    /// Operations a second; 0 for no time.
    pub(crate) fn per_second(self) -> f64 {
        if self.seconds > 0.0 { self.operations as f64 / self.seconds } else { 0.0 }
    }

    /// Adds another window.
    pub(crate) fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.seconds += other.seconds;
    }
}

/// Times without any acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stalls {
    /// Whole seconds of gaps of a second or more.
    pub(crate) seconds: u64,
    /// The longest gap, in bins.
    pub(crate) longest_bins: u64,
}

/// Finds the gaps in acknowledgements counted by bin. A gap may begin anywhere, not only at a whole
/// second, and one of 2.9 s counts as two seconds.
pub(crate) fn stalls(bins: &[u64], bins_per_second: u64) -> Stalls {
    let mut found = Stalls::default();
    for gap in bins.split(|&count| count > 0) {
        let length = gap.len() as u64;
        found.seconds += length / bins_per_second;
        found.longest_bins = found.longest_bins.max(length);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn percentiles_never_understate() {
        assert_eq!(percentile(&[], 0.5), None);
        let thousand: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&thousand, 0.5), Some(500));
        assert_eq!(percentile(&thousand, 0.999), Some(999));
        assert_eq!(percentile(&thousand, 1.0), Some(1000));
        assert_eq!(percentile(&thousand[..999], 0.999), Some(999), "the maximum");
        assert_eq!(percentile(&[7], 0.0), Some(7));
    }

    #[test]
    fn losses() {
        assert_eq!(loss_percent(100.0, 85.0).map(f64::round), Some(15.0));
        assert_eq!(loss_percent(100.0, 0.0), Some(100.0));
        assert_eq!(loss_percent(100.0, 110.0).map(f64::round), Some(-10.0));
        assert_eq!(loss_percent(0.0, 10.0), None);
        assert_eq!(loss_percent(f64::NAN, 10.0), None);
    }

    #[test]
    fn rates_add_up_by_time_and_not_by_window() {
        let mut rate = Rate { operations: 10, seconds: 1.0 };
        rate.add(Rate { operations: 0, seconds: 3.0 });
        assert_eq!(rate.per_second(), 2.5);
        assert_eq!(Rate::default().per_second(), 0.0);
    }

    #[test]
    fn gaps_are_found_wherever_they_begin() {
        assert_eq!(stalls(&[1; 20], 10), Stalls::default());
        let mut bins = vec![1; 100];
        bins[5..24].fill(0); // 1.9 s without a whole second of the clock in it twice
        assert_eq!(stalls(&bins, 10), Stalls { seconds: 1, longest_bins: 19 });
        bins[40..49].fill(0);
        assert_eq!(stalls(&bins, 10).seconds, 1);
        bins[60..100].fill(0);
        assert_eq!(stalls(&bins, 10), Stalls { seconds: 5, longest_bins: 40 });
    }
}
