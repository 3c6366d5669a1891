//! How long to wait before a server is asked again.
//!
//! Invariant: waits double from [`FIRST`] to [`LONGEST`], each shortened at random by up to half.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(3);

/// The waits after failures in a row.
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: FIRST }
    }

    /// Waits once more.
    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(self.advance()).await;
    }

    fn advance(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LONGEST);
        wait.mul_f64(1.0 - rand::random::<f64>() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound() {
        let mut backoff = Backoff::new();
        assert!(backoff.advance() <= FIRST);
        for _ in 0..20 {
            let wait = backoff.advance();
            assert!(wait >= FIRST && wait <= LONGEST);
        }
        assert!(backoff.advance() >= LONGEST / 2);
    }
}
