//! Named places in the code where a test ends the process, to see what a crash there leaves behind.
//!
//! Invariants: without the feature `failpoints`, which only tests switch on, [`reach`] is empty and
//! the environment is not read; with it, a process ends at most at one place, the one that
//! [`VARIABLE`] names, and flushes nothing of its own.

/// `NAME`, or `NAME:N` for the N-th time that the place is reached.
pub const VARIABLE: &str = "FAILPOINT_EXIT_AT";
/// The exit status at a place.
pub const EXIT_STATUS: i32 = 86;

/// Ends the process if this is the place that the test has named.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn reach(_name: &str) {}

/// Ends the process if this is the place that the test has named.
#[cfg(feature = "failpoints")]
pub fn reach(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static NAMED: OnceLock<Option<(String, AtomicU64)>> = OnceLock::new();
    let named = NAMED.get_or_init(|| {
        let value = std::env::var(VARIABLE).ok()?;
        let (name, times) = parse(&value);
        Some((name.to_owned(), AtomicU64::new(times)))
    });
    let Some((place, left)) = named else { return };
    // Relaxed: a counter that orders nothing.
    if place == name && left.fetch_sub(1, Ordering::Relaxed) == 1 {
        std::process::exit(EXIT_STATUS);
    }
}

/// The place and how often it is to be reached.
#[cfg(any(feature = "failpoints", test))]
fn parse(value: &str) -> (&str, u64) {
    let counted = value.rsplit_once(':').and_then(|(name, n)| Some((name, n.parse().ok()?)));
    counted.unwrap_or((value, 1))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_place_may_have_a_number() {
        assert_eq!(parse("split.begun"), ("split.begun", 1));
        assert_eq!(parse("split.begun:3"), ("split.begun", 3));
        assert_eq!(parse("split:begun"), ("split:begun", 1));
    }
}
