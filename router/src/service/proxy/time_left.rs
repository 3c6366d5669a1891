//! How much time the caller of a request has left: its `grpc-timeout`.
//!
//! Invariants: what cannot be read is no deadline, as the transport has it too; time counts from the
//! arrival of the call, so that what is told to servers is less by what was spent here.

use std::time::Duration;

use tonic::Request;
use vmemkv_client::Deadline;

/// The caller's deadline.
pub(super) fn time_left<T>(request: &Request<T>) -> Deadline {
    let header = request.metadata().get("grpc-timeout").and_then(|value| value.to_str().ok());
    header.and_then(parse).map_or(Deadline::none(), Deadline::within)
}

/// At most eight digits, then a unit.
fn parse(header: &str) -> Option<Duration> {
    let (digits, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_has_them() {
        assert_eq!(parse("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse("99999999n"), Some(Duration::from_nanos(99_999_999)));
        assert_eq!(parse("20m"), Some(Duration::from_millis(20)));
        for wrong in ["", "S", "1", "-1S", "1s", "123456789S", "1\u{e9}"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(time_left(&Request::new(())), Deadline::none());
    }
}
