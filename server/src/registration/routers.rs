//! The configured routers.
//!
//! Invariants: every call has a deadline; a call that finds no router that can answer has tried
//! each of them once, starting with the one that answered last.

use std::fmt;
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Response, Status};
use vmemkv_engine::Error;
use vmemkv_proto::ApiError;
use vmemkv_proto::internal::v1::control_client::ControlClient;
use vmemkv_proto::limits::MAX_MESSAGE_BYTES;
use vmemkv_proto::peer::{endpoint, told};

use super::is_refusal;

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a call of the routers, or what follows from it, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nobody could answer, or this server could not act: try again.
    Unreachable(String),
    /// A router has refused this server.
    Refused(String),
}

impl Failure {
    /// This server cannot act now.
    pub(super) fn here(error: ApiError) -> Self {
        Self::Unreachable(error.message)
    }

    /// The data directory of this server fails.
    pub(super) fn disk(error: &Error) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(reason) | Self::Refused(reason) => f.write_str(reason),
        }
    }
}

/// Clients of all configured routers; connections are made when they are needed.
pub(super) struct Routers {
    routers: Vec<(String, Option<ControlClient<Channel>>)>,
    /// The one that answered last.
    current: usize,
}

impl Routers {
    /// The routers at these addresses, HOST:PORT.
    pub(super) fn new(addresses: &[String]) -> Self {
        let routers = addresses.iter().map(|address| (address.clone(), client(address))).collect();
        Self { routers, current: 0 }
    }

    /// Calls the routers, one after the other, until one answers or refuses.
    pub(super) async fn call<T, Call, Answer>(&mut self, call: Call) -> Result<T, Failure>
    where
        Call: Fn(ControlClient<Channel>) -> Answer,
        Answer: Future<Output = Result<Response<T>, Status>>,
    {
        let mut reason = "no router is configured".to_owned();
        for _ in 0..self.routers.len() {
            let (address, client) = &self.routers[self.current];
            let outcome = match client {
                Some(client) => tokio::time::timeout(CALL_TIMEOUT, call(client.clone()))
                    .await
                    .unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time"))),
                None => Err(Status::unavailable("not an address")),
            };
            match outcome {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if is_refusal(status.code()) => {
                    return Err(Failure::Refused(format!("router {address}: {}", told(&status))));
                }
                Err(status) => reason = format!("router {address}: {}", told(&status)),
            }
            self.current = (self.current + 1) % self.routers.len();
        }
        Err(Failure::Unreachable(reason))
    }
}

fn client(address: &str) -> Option<ControlClient<Channel>> {
    let channel = endpoint(address).ok()?.connect_lazy();
    Some(
        ControlClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES),
    )
}
