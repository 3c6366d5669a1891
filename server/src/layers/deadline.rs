//! The caller's deadline, from `grpc-timeout`.
//!
//! Invariants: what cannot be read is no deadline (the transport does the same); the deadline
//! counts from the arrival of the call.

use std::time::{Duration, Instant};

use http::HeaderMap;

/// Until when the caller waits; none: for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// The deadline that the headers name.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let timeout = headers
            .get("grpc-timeout")
            .and_then(|value| value.to_str().ok())
            .and_then(parse_timeout);
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// Ready once it has passed; never without one.
    pub(crate) async fn passed(self) {
        match self.0 {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }
}

/// At most eight digits and a unit, as the gRPC protocol has it.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (unit_at, unit) = text.char_indices().last()?;
    let digits = &text[..unit_at];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(count * 3600)),
        'M' => Some(Duration::from_secs(count * 60)),
        'S' => Some(Duration::from_secs(count)),
        'm' => Some(Duration::from_millis(count)),
        'u' => Some(Duration::from_micros(count)),
        'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_has_them() {
        assert_eq!(parse_timeout("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_timeout("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse_timeout("3S"), Some(Duration::from_secs(3)));
        assert_eq!(parse_timeout("4m"), Some(Duration::from_millis(4)));
        assert_eq!(parse_timeout("5u"), Some(Duration::from_micros(5)));
        assert_eq!(parse_timeout("6n"), Some(Duration::from_nanos(6)));
        for wrong in ["", "m", "1", "1x", "-1m", "123456789m", "1.5S", "1\u{e9}"] {
            assert_eq!(parse_timeout(wrong), None, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn no_deadline_never_passes() {
        assert!(!Deadline::default().has_passed());
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", "0n".parse().unwrap());
        let deadline = Deadline::of(&headers);
        assert!(deadline.has_passed());
        deadline.passed().await;
    }
}
