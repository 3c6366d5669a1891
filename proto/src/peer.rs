//! How our own processes call each other: the connection, and what a failed call says.
//!
//! Invariants: a connection is made when it is needed, and one whose peer has gone is noticed; the
//! text of a failure says what the transport knows, not only that there was one.

use std::time::Duration;

use tonic::Status;
use tonic::transport::Endpoint;

/// How long a connection may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often an idle connection with calls is tried, and how long an answer may take.
const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A peer at HOST:PORT; `UNAVAILABLE` if that is no address.
pub fn endpoint(address: &str) -> Result<Endpoint, Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|_| Status::unavailable("not an address"))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT))
}

/// What a status says, with its causes if they say more.
pub fn told(status: &Status) -> String {
    let mut text = match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    };
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_is_known_of_it() {
        assert_eq!(told(&Status::internal("so it is")), "so it is");
        assert_eq!(told(&Status::aborted("")), tonic::Code::Aborted.to_string());
        let cause = std::io::Error::other("connection refused");
        let said = told(&Status::from_error(Box::new(cause)));
        assert_eq!(said.matches("connection refused").count(), 1, "{said}");
    }

    #[test]
    fn what_is_no_address_is_unavailable() {
        assert!(endpoint("127.0.0.1:7400").is_ok() && endpoint("server-0:7410").is_ok());
        for wrong in ["", "a b:1", "host:port:1"] {
            assert_eq!(endpoint(wrong).unwrap_err().code(), tonic::Code::Unavailable, "{wrong}");
        }
    }
}
