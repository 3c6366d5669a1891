//! Seeded draws of record numbers.
//!
//! Invariant: the same seed gives the same draws; warm-up, window and verification have streams
//! of their own, and so has each thread.

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

use crate::keygen::Keys;
use crate::workload::Flavour;

/// What the draws are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// The timed window.
    Window,
    /// Before it.
    WarmUp,
    /// After it.
    Verify,
}

/// The generator of one thread.
pub(crate) fn generator(stream: Stream, thread: usize) -> StdRng {
    let stream: u64 = match stream {
        Stream::Window => 42,
        Stream::WarmUp => 0x1000_0000_0000,
        Stream::Verify => 0x2000_0000_0000,
    };
    StdRng::seed_from_u64(stream + thread as u64)
}

/// Record numbers below a bound.
pub(crate) enum Draws {
    /// Each as likely as the others.
    Uniform {
        /// The bound.
        records: u64,
    },
    /// By rank: the seeds' exponent is 1 and rank is index; the field's is 0.99, scrambled.
    Zipf {
        /// The bound.
        records: u64,
        /// Ranks from 1.
        ranks: Zipf<f64>,
        /// From ranks to records.
        keys: Keys,
    },
}

impl Draws {
    /// Uniform draws of `0..records`.
    pub(crate) fn uniform(records: u64) -> Result<Self> {
        ensure!(records > 0, "there is nothing to draw from");
        Ok(Self::Uniform { records })
    }

    /// Zipf draws of `0..records`.
    pub(crate) fn zipf(flavour: Flavour, keys: Keys, records: u64) -> Result<Self> {
        ensure!(records > 0, "there is nothing to draw from");
        let exponent = match flavour {
            Flavour::Seed => 1.0,
            Flavour::Field => 0.99,
        };
        Ok(Self::Zipf { records, ranks: Zipf::new(records as f64, exponent)?, keys })
    }

    /// The next record.
    pub(crate) fn draw(&self, rng: &mut StdRng) -> u64 {
        match self {
            Self::Uniform { records } => rng.random_range(0..*records),
            Self::Zipf { records, ranks, keys } => {
                let rank = ranks.sample(rng) as u64;
                keys.of_rank(rank.clamp(1, *records) - 1, *records)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(draws: &Draws, records: u64, count: usize) -> Vec<usize> {
        let mut rng = generator(Stream::Window, 0);
        let mut seen = vec![0; records as usize];
        for _ in 0..count {
            seen[draws.draw(&mut rng) as usize] += 1;
        }
        seen
    }

    #[test]
    fn zipf_of_the_seeds_has_the_shares_of_zipf() {
        let keys = Keys::new(Flavour::Seed, 1000);
        let draws = Draws::zipf(Flavour::Seed, keys, 1000).expect("zipf");
        let seen = histogram(&draws, 1000, 200_000);
        let harmonic: f64 = (1..=1000).map(|rank| 1.0 / f64::from(rank)).sum();
        for rank in [1usize, 2, 5, 10, 50] {
            let expected = 200_000.0 / (rank as f64 * harmonic);
            let found = seen[rank - 1] as f64;
            assert!((found - expected).abs() < 6.0 * expected.sqrt(), "{rank}: {found} {expected}");
        }
    }

    #[test]
    fn zipf_of_the_field_is_as_skewed_but_scattered() {
        let keys = Keys::new(Flavour::Field, 1000);
        let draws = Draws::zipf(Flavour::Field, keys, 1000).expect("zipf");
        let seen = histogram(&draws, 1000, 100_000);
        let hottest = keys.of_rank(0, 1000) as usize;
        assert!(seen.iter().enumerate().all(|(i, &count)| i == hottest || count < seen[hottest]));
        assert!(keys.of_rank(0, 1000).abs_diff(keys.of_rank(1, 1000)) > 1);
    }

    #[test]
    fn uniform_reaches_everything_evenly() {
        let seen = histogram(&Draws::uniform(100).expect("uniform"), 100, 100_000);
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)));
    }

    #[test]
    fn streams_and_threads_differ_and_repeat() {
        let first = |stream, thread| {
            let draws = Draws::uniform(1 << 40).expect("uniform");
            draws.draw(&mut generator(stream, thread))
        };
        assert_eq!(first(Stream::Window, 1), first(Stream::Window, 1));
        assert_ne!(first(Stream::Window, 1), first(Stream::Window, 2));
        assert_ne!(first(Stream::Window, 1), first(Stream::WarmUp, 1));
    }

    #[test]
    fn nothing_to_draw_from_is_an_error() {
        assert!(Draws::uniform(0).is_err());
    }
}
