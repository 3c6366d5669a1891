//! How long to wait before another attempt: [`Retry`], one curve per [`Cause`].
//!
//! Invariants: a wait never reaches beyond the deadline (then there is no other attempt); waits are
//! jittered, from a generator that can be seeded; time is tokio's, which tests can stop.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::deadline::Deadline;

/// Why another attempt is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// The request came to the wrong place, and who said so knew no better than we do.
    Routing,
    /// No connection could be made: nothing was sent.
    Connect,
    /// The connection broke while the answer was awaited.
    Transport,
    /// The server, or every router, said: not now.
    Unavailable,
    /// Disk, memory or a quota is used up.
    Exhausted,
}

impl Cause {
    const COUNT: usize = 5;

    /// First and longest wait.
    fn curve(self) -> (Duration, Duration) {
        let (first, longest) = match self {
            Self::Routing => (2, 500),
            Self::Connect => (25, 1000),
            Self::Transport => (10, 1000),
            Self::Unavailable => (10, 1000),
            Self::Exhausted => (100, 5000),
        };
        (Duration::from_millis(first), Duration::from_millis(longest))
    }
}

/// A source of jitter that many calls share.
#[derive(Clone, Debug)]
pub(crate) struct Jitter(Arc<Mutex<SmallRng>>);

impl Jitter {
    /// With a seed, for a run that repeats; without one, seeded at random.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let rng = SmallRng::seed_from_u64(seed.unwrap_or_else(rand::random));
        Self(Arc::new(Mutex::new(rng)))
    }

    /// Between a half and the whole of `time`.
    fn spread(&self, time: Duration) -> Duration {
        time.mul_f64(self.0.lock().random_range(0.5..1.0))
    }
}

/// The attempts of one call, or of one step of a stream.
#[derive(Debug)]
pub(crate) struct Retry {
    jitter: Jitter,
    attempts: [u32; Cause::COUNT],
}

impl Retry {
    pub(crate) fn new(jitter: Jitter) -> Self {
        Self { jitter, attempts: [0; Cause::COUNT] }
    }

    /// Something has gone well since: the curves start anew.
    pub(crate) fn reset(&mut self) {
        self.attempts = [0; Cause::COUNT];
    }

    /// How long to wait before the next attempt, at least as long as was asked for; none: the
    /// deadline comes before.
    pub(crate) fn next(
        &mut self,
        cause: Cause,
        asked: Option<Duration>,
        deadline: Deadline,
    ) -> Option<Duration> {
        let attempts = &mut self.attempts[cause as usize];
        let (first, longest) = cause.curve();
        let wait = first.saturating_mul(1 << (*attempts).min(16)).min(longest);
        *attempts += 1;
        let wait = self.jitter.spread(wait).max(asked.unwrap_or_default());
        (!deadline.comes_within(wait)).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_the_longest_and_are_jittered() {
        let mut retry = Retry::new(Jitter::new(Some(1)));
        let waits: Vec<_> =
            (0..20).map(|_| retry.next(Cause::Routing, None, Deadline::none()).unwrap()).collect();
        assert!(waits[0] >= Duration::from_millis(1) && waits[0] <= Duration::from_millis(2));
        assert!(waits[10..].iter().all(|wait| *wait >= Duration::from_millis(250)));
        assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(500)));
        assert!(waits[10] != waits[11]);
        retry.reset();
        assert!(retry.next(Cause::Routing, None, Deadline::none()).unwrap() < waits[10]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_seed_repeats() {
        let run = || {
            let mut retry = Retry::new(Jitter::new(Some(7)));
            (0..5).map(|_| retry.next(Cause::Connect, None, Deadline::none())).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
    }

    #[tokio::test(start_paused = true)]
    async fn hints_and_deadlines_are_kept() {
        let mut retry = Retry::new(Jitter::new(Some(1)));
        let hint = Duration::from_secs(3);
        let wait = retry.next(Cause::Unavailable, Some(hint), Deadline::none());
        assert_eq!(wait, Some(hint));
        let soon = Deadline::within(Duration::from_secs(2));
        assert_eq!(retry.next(Cause::Unavailable, Some(hint), soon), None);
    }
}
